"""cuda-convnet2's convolution, the paper's ladder on it, and its engines."""
