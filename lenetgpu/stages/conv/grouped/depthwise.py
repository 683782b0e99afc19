"""Depthwise GPU convolution: every channel has filters of its own."""

from functools import cache
from typing import Any

from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.grouped.direct import defines_of
from lenetgpu.stages.defines import MAPS, launch_each
from lenetgpu.stages.registry import conv_variant, of_shape
from lenetgpu.stages.sectors import reuse

_TALL = 4  # outputs per thread
_MOST = 49  # filter elements, which stay in registers


@cache
def _kernels(problem: Conv) -> tuple[Kernel, ...]:
    defines = defines_of(problem) | {"TALL": _TALL}
    del defines["GROUPS"]
    return (Kernel.beside(__file__, "conv_depthwise", **defines),)


def _refusal(problem: Conv) -> str | None:
    if problem.groups != problem.C:
        return f"supports one channel per group, not {problem.each[0]}"
    if problem.R * problem.S > _MOST:
        return f"supports at most {_MOST} filter elements, not {problem.R * problem.S}"
    return None


@conv_variant(
    family="direct",
    reads=MAPS,
    writes=MAPS,
    options="strides pads dilation groups bias relu fp16 bf16",
    supports=_refusal,
    kernels=of_shape(_kernels),
    explain=lambda problem, batch, machine: reuse(_TALL),
)
def depthwise(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A channel a group: four outputs of a column per thread, filters in registers."""
    (kernel,), (filters, bias) = _kernels(problem), w if problem.bias else (w, w)
    items = len(x) * blocks_for(problem.OH, _TALL) * problem.OW * problem.M
    launch_each(kernel, items, x, filters, bias, y)  # `bias` is not read without one
