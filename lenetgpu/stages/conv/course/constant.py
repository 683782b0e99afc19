"""Filters in the constant memory of a module of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.launch import load_module
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import CONSTANT_BYTES, copy_to_constant
from lenetgpu.problems import Conv


@dataclass
class Filters:
    """Filters in global memory, and the function whose module holds them too, or None."""

    array: Any
    function: Any


def fits(problem: Conv) -> bool:
    """Whether all filters fit into constant memory."""
    return 4 * problem.depth * problem.M <= CONSTANT_BYTES


def refusal(problem: Conv) -> str | None:
    """A sentence where they do not."""
    needed = 4 * problem.depth * problem.M
    if needed <= CONSTANT_BYTES:
        return None
    return f"supports filters up to {CONSTANT_BYTES} bytes, constant memory, not {needed}"


def hold(w: Any, kernel: Kernel, problem: Conv) -> Filters:
    """Filters `w` (R, S, C, M) on the device, and where they fit in `kernel`'s own `filters`."""
    array = cupy.asarray(w)
    if not fits(problem):
        return Filters(array, None)
    module = load_module(kernel)
    copy_to_constant(module.get_global_var("filters"), array)
    cupy.cuda.get_current_stream().synchronize()
    return Filters(array, module.get_function(kernel.entry))
