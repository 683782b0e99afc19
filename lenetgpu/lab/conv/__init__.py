"""`lenetgpu conv`: any convolution checked and timed, simulated, parted."""
