"""Direct convolution on the GPU: the report's section 2.1, one output per thread."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.course.counts import direct_counts, map_counts
from lenetgpu.stages.conv.course.grid import Filters, fits, grid_refusal, hold, maps_grid, residents
from lenetgpu.stages.defines import MAPS, conv_kernel
from lenetgpu.stages.registry import Rows, cuda, of_shape, variant
from lenetgpu.stages.sectors import efficiency_rows, idle, reuse

_SOURCE = Path(__file__).with_suffix(".cu").resolve()

_SHARED_BYTES = 48 * 1024
_MAX_THREADS = 1024


@cache
def _basic(problem: Conv) -> Kernel:
    return conv_kernel(_SOURCE, "conv_map", problem, BLOCK_W=32, BLOCK_H=32)


def _explain_basic(problem: Conv, batch: int, machine: Machine) -> Rows:
    counted = efficiency_rows(*map_counts(problem, (32, 32)))
    return counted + reuse(1) + idle(problem.OH * problem.OW, _MAX_THREADS)


direct = partial(variant, kind="conv", family="direct", needs=cuda())


@direct(
    reads=MAPS,
    writes=MAPS,
    kernels=of_shape(_basic),
    explain=_explain_basic,
    supports=lambda problem: grid_refusal(problem.M),
    default=True,
    paper="report 2.1.1, table 1",
)
def basic(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A 32x32 block per output map, from global memory, threads past the map idle."""
    launch(_basic(problem), maps_grid(len(x), problem.M), (32, 32), (x, w, y))


def _tight_block(problem: Conv) -> tuple[int, int]:
    width = min(problem.OW, 32)
    return width, min(problem.OH, _MAX_THREADS // width)


@cache
def _tight(problem: Conv) -> Kernel:
    width, height = _tight_block(problem)
    return conv_kernel(_SOURCE, "conv_map", problem, BLOCK_W=width, BLOCK_H=height)


def _explain_tight(problem: Conv, batch: int, machine: Machine) -> Rows:
    width, height = _tight_block(problem)
    counted = efficiency_rows(*map_counts(problem, (width, height)))
    return counted + reuse(1) + idle(problem.OH * problem.OW, width * height)


@direct(
    reads=MAPS,
    writes=MAPS,
    kernels=of_shape(_tight),
    explain=_explain_tight,
    supports=lambda problem: grid_refusal(problem.M),
    paper="report 2.1.2, table 2",
)
def tight(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A block with as many threads as the map has outputs, from global memory."""
    launch(_tight(problem), maps_grid(len(x), problem.M), _tight_block(problem), (x, w, y))


def _shared_tile(problem: Conv) -> tuple[int, int, int, int]:
    """(tile height, tile width, block height, block width): a thread per input element."""

    def side(outputs: int, taps: int) -> tuple[int, int]:
        tile = min(outputs, max(1, (32 - taps) // problem.stride + 1))
        return tile, max(tile, min(32, (tile - 1) * problem.stride + taps))

    tile_h, block_h = side(problem.OH, problem.R)
    tile_w, block_w = side(problem.OW, problem.S)
    return tile_h, tile_w, block_h, block_w


def _shared_parts(problem: Conv) -> int:
    tile_h, tile_w, _, _ = _shared_tile(problem)
    return blocks_for(problem.OH, tile_h) * blocks_for(problem.OW, tile_w)


@cache
def _shared_constant(problem: Conv) -> Kernel:
    tile_h, tile_w, block_h, block_w = _shared_tile(problem)
    kernel = conv_kernel(
        _SOURCE,
        "conv_shared_constant",
        problem,
        TILE_H=tile_h,
        TILE_W=tile_w,
        BLOCK_H=block_h,
        BLOCK_W=block_w,
        CONSTANT_FILTERS=int(fits(problem)),
        RESIDENT=residents(block_h * block_w),
    )
    return kernel


def _tile_fits(problem: Conv) -> str | None:
    tile_h, tile_w, _, _ = _shared_tile(problem)
    rows = (tile_h - 1) * problem.stride + problem.R
    columns = (tile_w - 1) * problem.stride + problem.S
    if 4 * rows * columns > _SHARED_BYTES:
        return f"supports input tiles up to {_SHARED_BYTES} bytes, needs {4 * rows * columns}"
    return grid_refusal(problem.M, _shared_parts(problem))


def _hold(w: Any, problem: Conv, batch: int) -> Filters:
    return hold(w, _shared_constant(problem), problem)


def _explain_shared(problem: Conv, batch: int, machine: Machine) -> Rows:
    tile_h, tile_w, block_h, block_w = _shared_tile(problem)
    outputs = problem.OH * problem.OW
    used = problem.R * problem.S * outputs / (problem.H * problem.W)
    tile, block, constant = (tile_h, tile_w), (block_w, block_h), fits(problem)
    counts = direct_counts(problem, tile, block, (1, 1), constant, in_a_row=True)
    threads = _shared_parts(problem) * block_h * block_w
    return efficiency_rows(*counts) + reuse(used) + idle(outputs, threads)


@direct(
    reads=("NCHW", "NHWC"),
    writes=("NCHW", "NHWC"),
    explain=_explain_shared,
    prepare=_hold,
    kernels=of_shape(_shared_constant),
    supports=_tile_fits,
    also="tiled.shared_constant",
    paper="report 2.1.3, table 3",
)
def shared_constant(x: Any, w: Filters, y: Any, problem: Conv) -> None:
    """Input tile in shared memory, filters in constant memory where they fit."""
    _, _, block_h, block_w = _shared_tile(problem)
    grid = maps_grid(len(x), problem.M, _shared_parts(problem))
    launch(_shared_constant(problem), grid, (block_w, block_h), (x, w.array, y), loaded=w.function)


@cache
def _four_maps(problem: Conv) -> Kernel:
    return conv_kernel(_SOURCE, "conv_four_maps", problem, TILE_H=8, TILE_W=8)


def _eight_by_eight_fits(problem: Conv) -> str | None:
    needed = 4 * (7 * problem.stride + problem.R) * (7 * problem.stride + problem.S)
    if needed > _SHARED_BYTES:
        return f"supports input tiles up to {_SHARED_BYTES} bytes, needs {needed}"
    return None


def _explain_four_maps(problem: Conv, batch: int, machine: Machine) -> Rows:
    blocks = blocks_for(problem.M, 4) * blocks_for(problem.OH, 8) * blocks_for(problem.OW, 8)
    used = 4 * problem.R * problem.S * 64 / ((8 + problem.R - 1) * (8 + problem.S - 1))
    outputs = problem.OH * problem.OW * problem.M
    counts = direct_counts(problem, (8, 8), (8, 32), (1, 4), in_a_row=True)
    return efficiency_rows(*counts) + reuse(used) + idle(outputs, 256 * blocks)


@direct(
    reads=("NCHW", "NHWC"),
    writes=("NCHW", "NHWC"),
    kernels=of_shape(_four_maps),
    explain=_explain_four_maps,
    supports=_eight_by_eight_fits,
    also="tiled.four_maps",
    paper="after report 2.1.4, table 4: 256 threads in a row, any map in 8x8 parts",
)
def four_maps(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """256 threads compute an 8x8 part of four maps that share one input tile."""
    tiles = blocks_for(problem.OH, 8) * blocks_for(problem.OW, 8)
    launch(_four_maps(problem), (len(x) * blocks_for(problem.M, 4) * tiles,), (256,), (x, w, y))
