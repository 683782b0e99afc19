"""Direct convolution with the report's new design of block (section 2.1.4)."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.course.counts import direct_counts
from lenetgpu.stages.conv.course.grid import Filters, fits, grid_refusal, hold, maps_grid, residents
from lenetgpu.stages.defines import MAPS, conv_kernel
from lenetgpu.stages.registry import Rows, cuda, of_shape, variant
from lenetgpu.stages.sectors import efficiency_rows, idle, reuse

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_SHARED_BYTES = 48 << 10
_SIDE = 32
_TILE = 8
_MOST_ROWS = 64  # of 16 threads

direct = partial(variant, kind="conv", family="direct", needs=cuda(), reads=MAPS, writes=MAPS)


def _rows(problem: Conv, outputs: int) -> int:
    """Input rows of `outputs` rows of outputs."""
    return (outputs - 1) * problem.stride + problem.R


def _columns(problem: Conv, outputs: int) -> int:
    return (outputs - 1) * problem.stride + problem.S


def _parts(problem: Conv, tile: tuple[int, int]) -> int:
    """Blocks that cover a map with tiles of (height, width) outputs."""
    return blocks_for(problem.OH, tile[0]) * blocks_for(problem.OW, tile[1])


def _refusal(problem: Conv, tile: tuple[int, int], maps: int = 1) -> str | None:
    needed = 4 * _rows(problem, tile[0]) * _columns(problem, tile[1])
    if needed > _SHARED_BYTES:
        return f"supports input tiles up to {_SHARED_BYTES} bytes, needs {needed}"
    return grid_refusal(blocks_for(problem.M, maps), _parts(problem, tile))


def _used(problem: Conv, tile: tuple[int, int], maps: int) -> float:
    """Uses of an input value per load."""
    loaded = _rows(problem, tile[0]) * _columns(problem, tile[1])
    return maps * problem.R * problem.S * tile[0] * tile[1] / loaded


def _warps_tile(problem: Conv) -> tuple[int, int]:
    """Outputs (height, width) of a block whose input tile has at most 32x32 elements."""

    def side(outputs: int, taps: int) -> int:
        return min(outputs, max(1, (_SIDE - taps) // problem.stride + 1))

    return side(problem.OH, problem.R), side(problem.OW, problem.S)


def _warps_block(problem: Conv) -> tuple[int, int]:
    """Threads (height, width): one an element of the input tile, and at least one an output."""
    tile = _warps_tile(problem)
    height = max(tile[0], min(_SIDE, _rows(problem, tile[0])))
    return height, max(tile[1], min(_SIDE, _columns(problem, tile[1])))


@cache
def _whole_warps(problem: Conv) -> Kernel:
    tile, block = _warps_tile(problem), _warps_block(problem)
    sizes = {"TILE_H": tile[0], "TILE_W": tile[1], "BLOCK_H": block[0], "BLOCK_W": block[1]}
    held = {"CONSTANT_FILTERS": int(fits(problem)), "RESIDENT": residents(block[0] * block[1])}
    return conv_kernel(_SOURCE, "conv_whole_warps", problem, **sizes, **held)


def _explain_warps(problem: Conv, batch: int, machine: Machine) -> Rows:
    tile, (height, width) = _warps_tile(problem), _warps_block(problem)
    threads = _parts(problem, tile) * height * width
    return [
        *efficiency_rows(*direct_counts(problem, tile, (width, height), constant=fits(problem))),
        *reuse(_used(problem, tile, 1)),
        *idle(problem.OH * problem.OW, threads),
    ]


@direct(
    prepare=lambda w, problem, batch: hold(w, _whole_warps(problem), problem),
    kernels=of_shape(_whole_warps),
    explain=_explain_warps,
    supports=lambda problem: _refusal(problem, _warps_tile(problem)),
    paper="report 2.1.4, table 4, of conv1; which threads compute is our reading",
)
def whole_warps(x: Any, w: Filters, y: Any, problem: Conv) -> None:
    """A map a block, a thread an input: 28x28, of which 18 whole warps compute conv1's 24x24.

    Table 4 keeps table 3's block and reuse for conv1 and says "control divergence: No"; 24x24
    outputs leave 208 of 784 threads idle, and no warp diverges where whole warps are.
    """
    height, width = _warps_block(problem)
    grid = maps_grid(len(x), problem.M, _parts(problem, _warps_tile(problem)))
    launch(_whole_warps(problem), grid, (width, height), (x, w.array, y), loaded=w.function)


_EIGHT = (_TILE, _TILE)


def _two_maps_rows(problem: Conv) -> int:
    """Rows of threads: as many as the input tile has, 12 for conv2."""
    return max(_TILE, min(_MOST_ROWS, _rows(problem, _TILE)))


def _side_by_side(problem: Conv, maps: tuple[int, int], rows: int) -> tuple[Kernel, ...]:
    sizes = {"TILE_H": _TILE, "TILE_W": _TILE, "BLOCK_H": rows, "MAPS_X": maps[0]}
    return (conv_kernel(_SOURCE, "conv_side_by_side", problem, **sizes, MAPS_Y=maps[1]),)


def _blocks(x: Any, problem: Conv, maps: int) -> tuple[int, int, int]:
    return maps_grid(len(x), blocks_for(problem.M, maps), _parts(problem, _EIGHT))


def _explain_side(problem: Conv, maps: tuple[int, int], rows: int) -> Rows:
    together, width = maps[0] * maps[1], _TILE * maps[0]
    threads = blocks_for(problem.M, together) * _parts(problem, _EIGHT) * width * rows
    return [
        *efficiency_rows(*direct_counts(problem, _EIGHT, (width, rows), maps)),
        *reuse(_used(problem, _EIGHT, together)),
        *idle(problem.OH * problem.OW * problem.M, threads),
    ]


@cache
def _two_maps(problem: Conv) -> tuple[Kernel, ...]:
    return _side_by_side(problem, (2, 1), _two_maps_rows(problem))


@direct(
    kernels=of_shape(_two_maps),
    explain=lambda problem, batch, machine: _explain_side(problem, (2, 1), _two_maps_rows(problem)),
    supports=lambda problem: _refusal(problem, _EIGHT, 2),
    paper="report 4.2, fig. 5: [10000,32] blocks of [16,12]",
)
def two_maps(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """[16,12] threads load a 12x12 tile; 16x8 of them compute 8x8 outputs of two maps."""
    (kernel,) = _two_maps(problem)
    launch(kernel, _blocks(x, problem, 2), (2 * _TILE, _two_maps_rows(problem)), (x, w, y))


@cache
def _quadrants(problem: Conv) -> tuple[Kernel, ...]:
    return _side_by_side(problem, (2, 2), 2 * _TILE)


@direct(
    kernels=of_shape(_quadrants),
    explain=lambda problem, batch, machine: _explain_side(problem, (2, 2), 2 * _TILE),
    supports=lambda problem: _refusal(problem, _EIGHT, 4),
    paper="report 2.1.4, table 4, fig. 3",
)
def quadrants(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """16x16 threads compute 8x8 outputs of four maps, a quadrant each, from one input tile."""
    (kernel,) = _quadrants(problem)
    launch(kernel, _blocks(x, problem, 4), (2 * _TILE, 2 * _TILE), (x, w, y))
