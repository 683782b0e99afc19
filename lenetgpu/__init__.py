"""lenetgpu: MNIST LeNet inference with every stage switchable, checked and timed."""

__version__ = "0.1.0"
