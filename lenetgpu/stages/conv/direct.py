"""Direct convolution on the GPU with one output per thread: the report's section 2.1."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.course import grid
from lenetgpu.stages.conv.course.counts import direct_counts, map_counts
from lenetgpu.stages.conv.course.grid import Filters, hold
from lenetgpu.stages.defines import MAPS, conv_kernel
from lenetgpu.stages.registry import Rows, of_shape, variant
from lenetgpu.stages.sectors import efficiency_rows, idle, reuse

_MAX_THREADS = 1024


Block = tuple[int, int]
direct = partial(variant, kind="conv", family="direct", reads=MAPS, writes=MAPS)
channels_first = partial(direct, reads=MAPS[::-1], writes=MAPS[::-1])


@cache
def _map(problem: Conv, block: Block) -> Kernel:
    return conv_kernel(__file__, "conv_map", problem, BLOCK_W=block[0], BLOCK_H=block[1])


def _explain_map(problem: Conv, block: Block) -> Rows:
    counted = efficiency_rows(*map_counts(problem, block))
    return counted + reuse(1) + idle(problem.OH * problem.OW, block[0] * block[1])


_WHOLE = (32, 32)


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


@cache
def _shared_constant(problem: Conv) -> Kernel:
    return grid.whole_kernel(__file__, "conv_shared_constant", problem)


def _explain_shared(problem: Conv, batch: int, machine: Machine) -> Rows:
    tile, (height, width) = grid.whole_tile(problem), grid.whole_block(problem)
    outputs = problem.OH * problem.OW
    used = problem.R * problem.S * outputs / (problem.H * problem.W)
    block, constant = (width, height), grid.fits(problem)
    counts = direct_counts(problem, tile, block, (1, 1), constant, in_a_row=True)
    threads = grid.parts(problem, tile) * height * width
    return efficiency_rows(*counts) + reuse(used) + idle(outputs, threads)


@channels_first(
    explain=_explain_shared,
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


@cache
def _four_maps(problem: Conv) -> Kernel:
    return conv_kernel(__file__, "conv_four_maps", problem, TILE_H=8, TILE_W=8)


def _explain_four_maps(problem: Conv, batch: int, machine: Machine) -> Rows:
    blocks = blocks_for(problem.M, 4) * blocks_for(problem.OH, 8) * blocks_for(problem.OW, 8)
    used = 4 * problem.R * problem.S * 64 / ((8 + problem.R - 1) * (8 + problem.S - 1))
    outputs = problem.OH * problem.OW * problem.M
    counts = direct_counts(problem, (8, 8), (8, 32), (1, 4), in_a_row=True)
    return efficiency_rows(*counts) + reuse(used) + idle(outputs, 256 * blocks)


@channels_first(
    kernels=of_shape(_four_maps),
    explain=_explain_four_maps,
    supports=lambda problem: grid.tile_refusal(problem, (8, 8)),
    also="tiled.four_maps",
    paper="after report 2.1.4, table 4: 256 threads in a row, any map in 8x8 parts",
)
def four_maps(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """256 threads compute an 8x8 part of four maps that share one input tile."""
    tiles = blocks_for(problem.OH, 8) * blocks_for(problem.OW, 8)
    launch(_four_maps(problem), (len(x) * blocks_for(problem.M, 4) * tiles,), (256,), (x, w, y))
