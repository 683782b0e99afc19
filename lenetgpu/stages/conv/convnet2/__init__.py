"""cuda-convnet2's convolution, the paper's optimization ladder on it, and the paper's engines."""
