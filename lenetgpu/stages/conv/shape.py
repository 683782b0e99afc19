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


def odd_outputs(problem: Conv) -> str | None:
    """A sentence where 2x2 windows do not cover the output."""
    if problem.OH % 2 or problem.OW % 2:
        return f"supports even output sizes, not {problem.OH}x{problem.OW}"
    return None
