"""The whole network on Hopper's tensor cores (sm_90a)."""
