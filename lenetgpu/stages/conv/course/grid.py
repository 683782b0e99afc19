"""The report's grids of direct convolutions, and the blocks that a multiprocessor holds of them."""

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


_DEEPEST = 65_535  # of a grid's second and third extent
_HELD_TWICE = 28 * 28  # threads of conv1's block; registers for two larger ones would spill


def maps_grid(images: int, maps: int, parts: int = 1) -> tuple[int, int, int]:
    """[images,maps] as figures 4 and 5 have it, images fastest; parts of a map lie behind."""
    return images, maps, parts


def grid_refusal(maps: int, parts: int = 1) -> str | None:
    """A sentence where such a grid has no room for the maps (or groups of them), or the parts."""
    if maps > _DEEPEST:
        return f"supports grids of up to {_DEEPEST} blocks across the maps, needs {maps}"
    if parts > _DEEPEST:
        return f"supports grids of up to {_DEEPEST} blocks a map, needs {parts}"
    return None


def residents(threads: int) -> int:
    """Blocks of `threads` that a multiprocessor's registers shall hold at least.

    The same for `shared_constant` and `whole_warps`: else their step would be one of registers.
    """
    return 2 if threads <= _HELD_TWICE else 1
