"""Direct GPU convolution that supports every parameter of a convolution."""

from functools import cache
from typing import Any

from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import MAPS, launch_each, map_defines
from lenetgpu.stages.registry import conv_variant, of_shape
from lenetgpu.stages.sectors import reuse

THREADS = 256


def defines_of(problem: Conv) -> dict[str, int | str]:
    """Return a convolution with all of its parameters as `-D` definitions."""
    (down, across), (far, wide) = problem.step, problem.dilation
    above, left, _, _ = problem.around
    return map_defines(problem) | {
        "M": problem.M, "R": problem.R, "S": problem.S, "OH": problem.OH, "OW": problem.OW,
        "STRIDE_Y": down, "STRIDE_X": across, "ABOVE": above, "LEFT": left,
        "DILATION_Y": far, "DILATION_X": wide, "GROUPS": problem.groups, "THREADS": THREADS,
        "DTYPE": problem.dtype.upper(), "BIAS": int(problem.bias), "RELU": int(problem.relu),
    }  # fmt: skip


@cache
def _kernels(problem: Conv) -> tuple[Kernel, ...]:
    return (Kernel.beside(__file__, "conv_grouped", **defines_of(problem)),)


@conv_variant(
    family="direct",
    reads=MAPS,
    writes=MAPS,
    options="strides pads dilation groups bias relu fp16 bf16",
    kernels=of_shape(_kernels),
    explain=lambda problem, batch, machine: reuse(1),
)
def grouped(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """Any strides, padding, dilation and groups: one output per thread."""
    (kernel,), (filters, bias) = _kernels(problem), w if problem.bias else (w, w)
    launch_each(kernel, y.size, x, filters, bias, y)  # `bias` is not read without one
