"""The report's grids of direct convolutions, and the blocks that a multiprocessor holds of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.launch import blocks_for, load_module
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import CONSTANT_BYTES, copy_to_constant
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import conv_kernel


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
_SHARED_BYTES = 48 << 10
_SIDE = 32
Sides = tuple[int, int]  # (height, width)


def inputs(problem: Conv, tile: Sides) -> Sides:
    """Rows and columns of inputs under a tile of outputs."""
    rows = (tile[0] - 1) * problem.stride + problem.R
    return rows, (tile[1] - 1) * problem.stride + problem.S


def parts(problem: Conv, tile: Sides) -> int:
    """Blocks that cover a map with tiles of outputs."""
    return blocks_for(problem.OH, tile[0]) * blocks_for(problem.OW, tile[1])


def tile_refusal(problem: Conv, tile: Sides) -> str | None:
    """A sentence where a tile's inputs do not fit shared memory."""
    rows, columns = inputs(problem, tile)
    if 4 * rows * columns <= _SHARED_BYTES:
        return None
    return f"supports input tiles up to {_SHARED_BYTES} bytes, needs {4 * rows * columns}"


def grid_refusal(problem: Conv, tile: Sides | None = None, maps: int = 1) -> str | None:
    """A sentence where a tile's inputs do not fit, or a grid has no room for groups of `maps`."""
    refusal = None if tile is None else tile_refusal(problem, tile)
    groups, places = blocks_for(problem.M, maps), 1 if tile is None else parts(problem, tile)
    if refusal is None and groups > _DEEPEST:
        return f"supports grids of up to {_DEEPEST} blocks across the maps, needs {groups}"
    if refusal is None and places > _DEEPEST:
        return f"supports grids of up to {_DEEPEST} blocks a map, needs {places}"
    return refusal


def maps_grid(
    images: int, problem: Conv, tile: Sides | None = None, maps: int = 1
) -> tuple[int, int, int]:
    """[images,maps] as figures 4 and 5 have it, images fastest; parts of a map lie behind."""
    return images, blocks_for(problem.M, maps), 1 if tile is None else parts(problem, tile)


def whole_tile(problem: Conv) -> Sides:
    """Outputs of a block whose input tile has at most 32x32 elements."""

    def side(outputs: int, taps: int) -> int:
        return min(outputs, max(1, (_SIDE - taps) // problem.stride + 1))

    return side(problem.OH, problem.R), side(problem.OW, problem.S)


def whole_block(problem: Conv) -> Sides:
    """Threads of that block: one an element of the input tile, and at least one an output."""
    tile = whole_tile(problem)
    rows, columns = inputs(problem, tile)
    return max(tile[0], min(_SIDE, rows)), max(tile[1], min(_SIDE, columns))


def whole_kernel(module: str, entry: str, problem: Conv) -> Kernel:
    """The kernel for that block, whose filters are in constant memory where they fit.

    Of as many threads a multiprocessor's registers shall hold as many blocks at least, whatever the
    kernel: else the step from `shared_constant` to `whole_warps` would be one of registers.
    """
    tile, block = whole_tile(problem), whole_block(problem)
    sizes = {"TILE_H": tile[0], "TILE_W": tile[1], "BLOCK_H": block[0], "BLOCK_W": block[1]}
    sizes["RESIDENT"] = 2 if block[0] * block[1] <= _HELD_TWICE else 1
    held = int(fits(problem))
    return conv_kernel(module, entry, problem, CONSTANT_FILTERS=held, **sizes)
