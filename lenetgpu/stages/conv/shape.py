"""What the CUDA convolutions share: a kernel specialised to a shape."""

from __future__ import annotations

from pathlib import Path

from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import conv_defines

MAPS = ("NHWC", "NCHW")


def conv_kernel(source: Path, entry: str, problem: Conv, **tile: int) -> Kernel:
    """Kernel `entry` of `source` specialised to the problem's shape, layouts and tile sizes."""
    return Kernel(source, entry, tuple((conv_defines(problem) | tile).items()))
