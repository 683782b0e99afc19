"""The Pascal paper's convolutions (Chang et al.): planners and kernels."""
