"""What the CUDA convolutions share: the shape as `-D` definitions."""

from __future__ import annotations

from pathlib import Path

from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv

MAPS = ("NHWC", "NCHW")


def conv_defines(problem: Conv) -> dict[str, int | str]:
    """The problem's shape and layouts as `-D` definitions."""
    return {
        "CH": problem.C,
        "H": problem.H,
        "W": problem.W,
        "M": problem.M,
        "R": problem.R,
        "S": problem.S,
        "STRIDE": problem.stride,
        "PAD": problem.pad,
        "READS": problem.reads,
        "WRITES": problem.writes,
    }


def conv_kernel(source: Path, entry: str, problem: Conv, **tile: int) -> Kernel:
    """Kernel `entry` of `source` specialised to the problem's shape, layouts and tile sizes."""
    return Kernel(source, entry, tuple((conv_defines(problem) | tile).items()))
