"""The network on Hopper's tensor cores (sm_90a), conv2's filters 2:4 sparse."""
