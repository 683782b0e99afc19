"""The network on Hopper's tensor cores (sm_90a) with a Winograd conv2."""
