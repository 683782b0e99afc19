"""The whole network in fp32 on CUDA cores."""
