"""The course kernels' global accesses, warp by warp: what their efficiency is counted from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lenetgpu.problems import Conv
from lenetgpu.stages.registry import Rows
from lenetgpu.stages.sectors import (
    NONE,
    Counted,
    cells,
    counted,
    efficiency_rows,
    gather,
    lanes,
    total,
)

_TILE = 32


def _weights(problem: Conv, k: Any, m: Any) -> Any:
    """Where filter element (k, m) lies; -1 past the end."""
    import numpy as np

    inside = (k >= 0) & (k < problem.depth) & (m >= 0) & (m < problem.M)
    return np.where(inside, k * problem.M + m, -1)


def _taps(problem: Conv) -> Iterator[tuple[int, int]]:
    return ((r, s) for r in range(problem.R) for s in range(problem.S))


def _corners(problem: Conv, tile: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """First output (y, x) of each tile of a map."""
    for y in range(0, problem.OH, tile[0]):
        yield from ((y, x) for x in range(0, problem.OW, tile[1]))


def _tile_loads(
    problem: Conv, corner: tuple[int, int], tile: tuple[int, int], block: tuple[int, int]
) -> Counted:
    """The loads of one channel's input tile by a block of (width, height) threads."""
    import numpy as np

    rows = (tile[0] - 1) * problem.stride + problem.R
    columns = (tile[1] - 1) * problem.stride + problem.S
    where = cells(problem.reads, problem.in_shape)
    width, height = block
    tx, ty = lanes(width, height)
    found = []
    for r in range(0, rows, height):
        for s in range(0, columns, width):
            loads = (ty >= 0) & (ty + r < rows) & (tx + s < columns)
            y = np.where(loads, ty + r + corner[0] * problem.stride - problem.pad, -1)
            found.append(gather(where, y, tx + s + corner[1] * problem.stride - problem.pad, 0))
    return counted(np.stack(found))


def direct_rows(
    problem: Conv,
    tile: tuple[int, int],
    block: tuple[int, int],
    maps: tuple[int, int] | None = None,
    constant: bool = False,
) -> Rows:
    """Of a kernel that loads (height, width) tiles by (width, height) threads, channel by channel.

    `maps` (across, down) of a block stand side by side; None: one map, its outputs in a row.
    """
    loads, stores = direct_counts(problem, tile, block, maps, constant)
    return efficiency_rows(loads, stores)


def direct_counts(
    problem: Conv,
    tile: tuple[int, int],
    block: tuple[int, int],
    maps: tuple[int, int] | None = None,
    constant: bool = False,
) -> tuple[Counted, Counted]:
    """Loads and stores of all blocks of the first image's first maps, see `direct_rows`."""
    import numpy as np

    tx, ty = lanes(*block)
    there, m = ty >= 0, np.zeros_like(tx)
    if maps is None:
        thread = np.where(there, ty * block[0] + tx, 0)
        oy, ox = thread // tile[1], thread % tile[1]
        there = there & (oy < tile[0])
    else:
        m = ty // tile[0] * maps[0] + tx // tile[1]
        there = there & (ty < maps[1] * tile[0]) & (tx < maps[0] * tile[1]) & (m < problem.M)
        oy, ox = ty % tile[0], tx % tile[1]
    written = cells(problem.writes, problem.out_shape)
    loads, stores = NONE, NONE
    for corner in _corners(problem, tile):
        y, x = corner[0] + oy, corner[1] + ox
        computes = there & (y < problem.OH) & (x < problem.OW)
        stores += counted(gather(written, np.where(computes, y, -1), x, m))
        loads += total(_tile_loads(problem, corner, tile, block) for _ in range(problem.C))
        if not constant:
            k = np.arange(problem.depth)[:, None, None]
            loads += counted(_weights(problem, np.where(computes, k, -1), m))
    return loads, stores


def map_counts(problem: Conv, block: tuple[int, int]) -> tuple[Counted, Counted]:
    """`direct.basic` and `tight`: a block a map, an output a thread, all from global memory."""
    import numpy as np

    tx, ty = lanes(*block)
    read = cells(problem.reads, problem.in_shape)
    written = cells(problem.writes, problem.out_shape)
    loads, stores = NONE, NONE
    for y0, x0 in _corners(problem, (block[1], block[0])):
        computes = (ty >= 0) & (ty + y0 < problem.OH) & (tx + x0 < problem.OW)
        y, x = np.where(computes, ty + y0, -1), tx + x0
        stores += counted(gather(written, y, x, 0))
        for r, s in _taps(problem):
            row = np.where(computes, y * problem.stride + r - problem.pad, -1)
            c = np.arange(problem.C)[:, None, None]
            loads += counted(gather(read, row, x * problem.stride + s - problem.pad, c))
        k = np.arange(problem.depth)[:, None, None]
        loads += counted(_weights(problem, np.where(computes, k, -1), 0))
    return loads, stores


def _unrolled(problem: Conv, k: Any, p: Any) -> Any:
    """Where element (k, p) of X lies; -1 past its end or in the padding."""
    import numpy as np

    inside = (k >= 0) & (k < problem.depth) & (p >= 0) & (p < problem.OH * problem.OW)
    tap, c = k // problem.C, k % problem.C
    y = p // problem.OW * problem.stride + tap // problem.S - problem.pad
    x = p % problem.OW * problem.stride + tap % problem.S - problem.pad
    return gather(cells(problem.reads, problem.in_shape), np.where(inside, y, -1), x, c)


def image_counts(problem: Conv, each: int, transposed: bool | None) -> tuple[Counted, Counted]:
    """A block of 32x32 threads an image; `transposed` None: filters in constant memory."""
    import numpy as np

    lane, warp = np.arange(_TILE)[None, :], np.arange(_TILE)[:, None]
    side, pixels = _TILE * each, problem.OH * problem.OW
    written = cells(problem.writes, problem.out_shape)
    loads, stores = NONE, NONE
    map_steps, pixel_steps = range(0, problem.M, side), range(0, pixels, side)
    for j in range(each):
        for p0 in pixel_steps:
            p = p0 + j * _TILE + lane
            for k0 in range(0, problem.depth, _TILE):
                found = counted(_unrolled(problem, k0 + warp, p))
                loads += total(found for _ in map_steps)
            for m0 in map_steps:
                for i in range(each):
                    m = m0 + i * _TILE + warp
                    inside = (p < pixels) & (m < problem.M)
                    y = np.where(inside, p // problem.OW, -1)
                    stores += counted(gather(written, y, p % problem.OW, m))
    if transposed is not None:
        m, k = (lane, warp) if transposed else (warp, lane)
        for m0 in range(0, each * len(map_steps) * _TILE, _TILE):
            for k0 in range(0, problem.depth, _TILE):
                found = counted(_weights(problem, k0 + k, m0 + m))
                loads += total(found for _ in pixel_steps)
    return loads, stores


def naive_counts(problem: Conv) -> tuple[Counted, Counted]:
    """The same block without shared memory: a thread an output at a time."""
    import numpy as np

    lane = np.arange(_TILE)
    _, stores = image_counts(problem, 1, None)
    loads = NONE
    k = np.arange(problem.depth)[:, None]
    for p0 in range(0, problem.OH * problem.OW, _TILE):
        p = p0 + lane[None, :]
        here = (p < problem.OH * problem.OW) & (k >= 0)
        once = counted(_unrolled(problem, k, p)) + counted(
            np.where(here, _weights(problem, k, np.zeros_like(p)), -1)
        )
        loads += Counted(once.floats * problem.M, once.sectors * problem.M)
    return loads, stores


def image_rows(problem: Conv, each: int, transposed: bool | None) -> Rows:
    """`image_counts` as a variant's `explain` gives them."""
    return efficiency_rows(*image_counts(problem, each, transposed))
