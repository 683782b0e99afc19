"""The GPU: which one, compiling kernels for it, launching them, memory."""
