"""Direct convolution on the GPU with one output per thread: the report's section 2.1."""

from functools import cache, partial
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.course import grid
from lenetgpu.stages.conv.course.counts import map_counts
from lenetgpu.stages.conv.course.grid import Filters, hold
from lenetgpu.stages.defines import MAPS, conv_kernel
from lenetgpu.stages.registry import Rows, of_shape, variant
from lenetgpu.stages.sectors import efficiency_rows, idle, reuse

_MAX_THREADS = 1024
_WHOLE = (32, 32)
Block = tuple[int, int]
direct = partial(variant, kind="conv", family="direct", reads=MAPS, writes=MAPS)
channels_first = partial(direct, reads=MAPS[::-1], writes=MAPS[::-1])
_shared_constant = cache(partial(grid.whole_kernel, __file__, "conv_shared_constant"))
_four_maps = cache(partial(conv_kernel, __file__, "conv_four_maps", TILE_H=8, TILE_W=8))


@cache
def _map(problem: Conv, block: Block) -> Kernel:
    return conv_kernel(__file__, "conv_map", problem, BLOCK_W=block[0], BLOCK_H=block[1])


def _explain_map(problem: Conv, block: Block) -> Rows:
    counted = efficiency_rows(*map_counts(problem, block))
    return counted + reuse(1) + idle(problem.OH * problem.OW, block[0] * block[1])


@direct(
    kernels=of_shape(lambda problem: _map(problem, _WHOLE)),
    explain=lambda problem, batch, machine: _explain_map(problem, _WHOLE),
    supports=grid.grid_refusal,
    default=True,
    paper="report 2.1.1, table 1",
)
def basic(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A 32x32 block per output map, from global memory, threads past the map idle."""
    launch(_map(problem, _WHOLE), grid.maps_grid(len(x), problem), _WHOLE, (x, w, y))


def _tight(problem: Conv) -> Block:
    width = min(problem.OW, 32)
    return width, min(problem.OH, _MAX_THREADS // width)


@direct(
    kernels=of_shape(lambda problem: _map(problem, _tight(problem))),
    explain=lambda problem, batch, machine: _explain_map(problem, _tight(problem)),
    supports=grid.grid_refusal,
    paper="report 2.1.2, table 2",
)
def tight(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A block with as many threads as the map has outputs, from global memory."""
    block = _tight(problem)
    launch(_map(problem, block), grid.maps_grid(len(x), problem), block, (x, w, y))


@channels_first(
    explain=lambda problem, batch, machine: grid.explain_whole(problem, (1, 1), in_a_row=True),
    prepare=lambda w, problem, batch: hold(w, _shared_constant(problem), problem),
    kernels=of_shape(_shared_constant),
    supports=lambda problem: grid.grid_refusal(problem, grid.whole_tile(problem)),
    also="tiled.shared_constant",
    paper="report 2.1.3, table 3",
)
def shared_constant(x: Any, w: Filters, y: Any, problem: Conv) -> None:
    """Input tile in shared memory, filters in constant memory where they fit."""
    height, width = grid.whole_block(problem)
    blocks = grid.maps_grid(len(x), problem, grid.whole_tile(problem))
    launch(_shared_constant(problem), blocks, (width, height), (x, w.array, y), loaded=w.function)


@channels_first(
    kernels=of_shape(_four_maps),
    explain=lambda problem, batch, machine: grid.explain_direct(
        problem, (8, 8), (32, 8), (1, 4), in_a_row=True
    ),
    supports=lambda problem: grid.tile_refusal(problem, (8, 8)),
    also="tiled.four_maps",
    paper="after report 2.1.4, table 4: 256 threads in a row, any map in 8x8 parts",
)
def four_maps(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """256 threads compute an 8x8 part of four maps that share one input tile."""
    blocks = len(x) * blocks_for(problem.M, 4) * grid.parts(problem, (8, 8))
    launch(_four_maps(problem), (blocks,), (256,), (x, w, y))
