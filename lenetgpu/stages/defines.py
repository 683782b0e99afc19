"""Shapes and layouts as `-D` definitions, under the names that the kernels use."""

from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv

MAPS = ("NHWC", "NCHW")


def conv_kernel(module: str, entry: str, problem: Conv, /, **tile: int) -> Kernel:
    """Return an entry of the `.cu` file next to `module` for a problem and its tile."""
    return Kernel.beside(module, entry, **conv_defines(problem), **tile)


def odd_outputs(problem: Conv) -> str | None:
    """Return a refusal if 2x2 windows do not cover the output (an odd size), else None."""
    if problem.OH % 2 or problem.OW % 2:
        return f"supports even output sizes, not {problem.OH}x{problem.OW}"
    return None


def map_defines(problem: Any) -> dict[str, int | str]:
    """Return the shape of an (H, W, C) map and the layouts it is read and written in."""
    shape: dict[str, int | str] = {"CH": problem.C, "H": problem.H, "W": problem.W}
    return shape | {"READS": problem.reads, "WRITES": problem.writes}


def conv_defines(problem: Conv) -> dict[str, int | str]:
    """Return the shape and layouts of a plain convolution.

    Plain means one stride, one padding, no dilation and no groups.
    """
    assert not problem.requires, f"no names for {', '.join(sorted(problem.requires))}"
    filters = {"M": problem.M, "R": problem.R, "S": problem.S}
    window = {"STRIDE": problem.stride, "PAD": problem.pad}
    return map_defines(problem) | filters | window


def launch_each(kernel: Kernel, items: int, *arrays: Any, each: int = 1) -> None:
    """Launch `kernel` in blocks of THREADS threads, `each` items per thread.

    The number of items is the kernel's last argument.
    """
    threads = int(dict(kernel.defines)["THREADS"])
    launch(kernel, (blocks_for(items, each * threads),), (threads,), (*arrays, int(items)))
