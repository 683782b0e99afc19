"""Shapes and layouts as `-D` definitions, under the names that the kernels use."""

from __future__ import annotations

from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv

MAPS = ("NHWC", "NCHW")


def conv_kernel(module: str, entry: str, problem: Conv, /, **tile: int) -> Kernel:
    """An entry of the `.cu` file beside `module` for the problem's shape, layouts and a tile."""
    return Kernel.beside(module, entry, **conv_defines(problem), **tile)


def odd_outputs(problem: Conv) -> str | None:
    """A sentence where 2x2 windows do not cover the output."""
    if problem.OH % 2 or problem.OW % 2:
        return f"supports even output sizes, not {problem.OH}x{problem.OW}"
    return None


def map_defines(problem: Any) -> dict[str, int | str]:
    """An (H, W, C) map's shape and the layouts it is read and written in."""
    return {
        "CH": problem.C,
        "H": problem.H,
        "W": problem.W,
        "READS": problem.reads,
        "WRITES": problem.writes,
    }


def conv_defines(problem: Conv) -> dict[str, int | str]:
    """A plain convolution's shape and layouts: one stride, one padding, no dilation or groups."""
    assert not problem.wants, f"no names for {', '.join(sorted(problem.wants))}"
    filters = {"M": problem.M, "R": problem.R, "S": problem.S}
    window = {"STRIDE": problem.stride, "PAD": problem.pad}
    return map_defines(problem) | filters | window


def launch_each(kernel: Kernel, items: int, *arrays: Any, each: int = 1) -> None:
    """Launch `kernel` in blocks of its THREADS, `each` of `items` a thread, which it is told."""
    threads = int(dict(kernel.defines)["THREADS"])
    launch(kernel, (blocks_for(items, each * threads),), (threads,), (*arrays, int(items)))
