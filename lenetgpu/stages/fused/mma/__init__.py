"""The whole network on tensor cores of sm_80 and later."""
