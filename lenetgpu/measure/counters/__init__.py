"""Hardware counters of kernels, read by Nsight Compute's CLI in a process of its own."""
