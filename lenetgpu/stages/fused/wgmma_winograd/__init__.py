"""The network on Hopper's tensor cores (sm_90a), Winograd transforms in front of conv2."""
