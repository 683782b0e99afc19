"""The report's grids of direct convolutions and the number of blocks per multiprocessor."""

from dataclasses import dataclass
from math import prod
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.launch import blocks_for, load_module
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import CONSTANT_BYTES, copy_to_constant
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.course.counts import direct_counts
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import Rows
from lenetgpu.stages.sectors import efficiency_rows, idle, reuse


@dataclass
class Filters:
    """Filters in global memory; `function` has them in constant memory too, or is None."""

    array: Any
    function: Any


def refusal(problem: Conv) -> str | None:
    """Return the reason if the filters do not fit into constant memory, else None."""
    needed = 4 * problem.gemm_k * problem.M
    if needed <= CONSTANT_BYTES:
        return None
    return f"supports filters up to {CONSTANT_BYTES} bytes, constant memory, not {needed}"


def fits(problem: Conv) -> bool:
    """Return True if all filters fit into constant memory."""
    return refusal(problem) is None


def hold(w: Any, kernel: Kernel, problem: Conv) -> Filters:
    """Copy filters `w` (R, S, C, M) to the device and, if they fit, to constant memory."""
    array = cupy.asarray(w)
    if not fits(problem):
        return Filters(array, None)
    module = load_module(kernel)
    copy_to_constant(module.get_global_var("filters"), array)
    cupy.cuda.get_current_stream().synchronize()
    return Filters(array, module.get_function(kernel.entry))


_DEEPEST = 65_535  # blocks along a grid's second and third extent
_HELD_TWICE = 28 * 28  # threads of conv1's block; larger blocks would spill at two per SM
_SHARED_BYTES = 48 << 10
_SIDE = 32
Sides = tuple[int, int]  # (height, width)


def inputs(problem: Conv, tile: Sides) -> Sides:
    """Return the rows and columns of inputs read by a tile of outputs."""
    return (tile[0] - 1) * problem.stride + problem.R, (tile[1] - 1) * problem.stride + problem.S


def parts(problem: Conv, tile: Sides) -> int:
    """Return the number of blocks that cover a map with tiles of outputs."""
    return blocks_for(problem.OH, tile[0]) * blocks_for(problem.OW, tile[1])


def explain_direct(problem: Conv, tile: Sides, block: Sides, maps: Any, **loads: bool) -> Rows:
    """Return efficiency, uses of an input value per load and idle threads of `direct_counts`."""
    counts = direct_counts(problem, tile, block[::-1], maps, **loads)
    together = prod(maps or (1, 1))
    uses = together * problem.R * problem.S * prod(tile) / prod(inputs(problem, tile))
    blocks = parts(problem, tile) * blocks_for(problem.M, together)
    idle_rows = idle(problem.OH * problem.OW * problem.M, blocks * prod(block))
    return [*efficiency_rows(*counts), *reuse(uses), *idle_rows]


def explain_whole(problem: Conv, maps: tuple[int, int] | None, in_a_row: bool = False) -> Rows:
    """Return the rows of `explain_direct` for a block of `whole_block`."""
    tile, block, constant = whole_tile(problem), whole_block(problem), fits(problem)
    return explain_direct(problem, tile, block, maps, constant=constant, in_a_row=in_a_row)


def tile_refusal(problem: Conv, tile: Sides) -> str | None:
    """Return the reason if a tile's inputs do not fit shared memory, else None."""
    needed = 4 * prod(inputs(problem, tile))
    if needed <= _SHARED_BYTES:
        return None
    return f"supports input tiles up to {_SHARED_BYTES} bytes, needs {needed}"


def grid_refusal(problem: Conv, tile: Sides | None = None, maps: int = 1) -> str | None:
    """Return the reason if a tile's inputs or a grid for groups of `maps` are too large."""
    _, groups, tiles = maps_grid(1, problem, tile, maps)
    if tile is not None and tile_refusal(problem, tile):
        return tile_refusal(problem, tile)
    if groups > _DEEPEST:
        return f"supports grids of up to {_DEEPEST} blocks across the maps, needs {groups}"
    if tiles > _DEEPEST:
        return f"supports grids of up to {_DEEPEST} blocks a map, needs {tiles}"
    return None


def maps_grid(
    images: int, problem: Conv, tile: Sides | None = None, maps: int = 1
) -> tuple[int, int, int]:
    """Return the grid [images, maps] of figures 4 and 5; x is the image, z the part of a map."""
    return images, blocks_for(problem.M, maps), 1 if tile is None else parts(problem, tile)


def whole_tile(problem: Conv) -> Sides:
    """Return the outputs of a block whose input tile has at most 32x32 elements."""

    def side(outputs: int, size: int) -> int:
        return min(outputs, max(1, (_SIDE - size) // problem.stride + 1))

    return side(problem.OH, problem.R), side(problem.OW, problem.S)


def whole_block(problem: Conv) -> Sides:
    """Return that block's threads: at least one per output, and one per input up to 32x32."""
    tile = whole_tile(problem)
    rows, columns = inputs(problem, tile)
    return max(tile[0], min(_SIDE, rows)), max(tile[1], min(_SIDE, columns))


def whole_kernel(module: str, entry: str, problem: Conv) -> Kernel:
    """Return the kernel for that block, with filters in constant memory if they fit."""
    tile, block = whole_tile(problem), whole_block(problem)
    sizes = {"TILE_H": tile[0], "TILE_W": tile[1], "BLOCK_H": block[0], "BLOCK_W": block[1]}
    # depends on the threads only: `shared_constant` and `whole_warps` have the same registers
    sizes["MIN_BLOCKS"] = 2 if block[0] * block[1] <= _HELD_TWICE else 1
    return conv_kernel(module, entry, problem, CONSTANT_FILTERS=int(fits(problem)), **sizes)
