"""Direct convolution with the report's new block design (section 2.1.4)."""

from functools import cache, partial
from typing import Any

from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.course import grid
from lenetgpu.stages.conv.course.grid import Filters, hold
from lenetgpu.stages.defines import MAPS, conv_kernel
from lenetgpu.stages.registry import Rows, of_shape, variant

_TILE = 8
_EIGHT = (_TILE, _TILE)
_MOST_ROWS = 64  # rows of 16 threads

direct = partial(variant, kind="conv", family="direct", reads=MAPS, writes=MAPS)
_whole_warps = cache(partial(grid.whole_kernel, __file__, "conv_whole_warps"))


@direct(
    prepare=lambda w, problem, batch: hold(w, _whole_warps(problem), problem),
    kernels=of_shape(_whole_warps),
    explain=lambda problem, batch, machine: grid.explain_whole(problem, None),
    supports=lambda problem: grid.grid_refusal(problem, grid.whole_tile(problem)),
    paper="report 2.1.4, table 4, of conv1; which threads compute is our reading",
)
def whole_warps(x: Any, w: Filters, y: Any, problem: Conv) -> None:
    """One map per block, one thread per input (28x28); 18 full warps compute conv1's 24x24.

    Table 4 says "control divergence: No" for conv1, which leaves 208 of 784 threads idle.
    """
    height, width = grid.whole_block(problem)
    blocks = grid.maps_grid(len(x), problem, grid.whole_tile(problem))
    launch(_whole_warps(problem), blocks, (width, height), (x, w.array, y), loaded=w.function)


def _two_maps_rows(problem: Conv) -> int:
    """Return the rows of threads: the rows of the input tile, 12 for conv2."""
    return max(_TILE, min(_MOST_ROWS, grid.inputs(problem, _EIGHT)[0]))


@cache
def _side_by_side(problem: Conv, maps: tuple[int, int], rows: int) -> Kernel:
    sizes = {"TILE_H": _TILE, "TILE_W": _TILE, "BLOCK_H": rows, "MAPS_X": maps[0]}
    return conv_kernel(__file__, "conv_side_by_side", problem, **sizes, MAPS_Y=maps[1])


def _explain_side(problem: Conv, maps: tuple[int, int], rows: int) -> Rows:
    return grid.explain_direct(problem, _EIGHT, (rows, _TILE * maps[0]), maps)


@direct(
    kernels=of_shape(lambda problem: _side_by_side(problem, (2, 1), _two_maps_rows(problem))),
    explain=lambda problem, batch, machine: _explain_side(problem, (2, 1), _two_maps_rows(problem)),
    supports=lambda problem: grid.grid_refusal(problem, _EIGHT, 2),
    paper="report 4.2, fig. 5: [10000,32] blocks of [16,12]",
)
def two_maps(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """[16,12] threads load a 12x12 tile; 16x8 of them compute 8x8 outputs of two maps."""
    rows, blocks = _two_maps_rows(problem), grid.maps_grid(len(x), problem, _EIGHT, 2)
    launch(_side_by_side(problem, (2, 1), rows), blocks, (2 * _TILE, rows), (x, w, y))


@direct(
    kernels=of_shape(lambda problem: _side_by_side(problem, (2, 2), 2 * _TILE)),
    explain=lambda problem, batch, machine: _explain_side(problem, (2, 2), 2 * _TILE),
    supports=lambda problem: grid.grid_refusal(problem, _EIGHT, 4),
    paper="report 2.1.4, table 4, fig. 3",
)
def quadrants(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """16x16 threads compute 8x8 outputs of four maps, a quadrant each, from one input tile."""
    kernel = _side_by_side(problem, (2, 2), 2 * _TILE)
    launch(kernel, grid.maps_grid(len(x), problem, _EIGHT, 4), (2 * _TILE, 2 * _TILE), (x, w, y))
