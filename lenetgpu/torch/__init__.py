"""PyTorch, which this package imports: operator `conv2d`, and `accelerate` for models."""

from lenetgpu.torch.accelerate import Row, accelerate, report, restore
from lenetgpu.torch.operator import conv2d

__all__ = ["Row", "accelerate", "conv2d", "report", "restore"]
