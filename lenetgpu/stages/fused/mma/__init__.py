"""The whole network on the tensor cores of every GPU from sm_80 on."""
