"""Global memory accesses of the course kernels in the first image, counted warp by warp.

Of large problems, some tiles, steps along K and maps of each are sampled (`sectors.some`).
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.problems import Conv
from lenetgpu.stages.sectors import NONE, Counted, Offsets, counted, gather, lanes, some

_TILE = 32
Pair = tuple[int, int]


def _weights(problem: Conv, k: Any, m: Any) -> Any:
    """Return the offset of filter element (k, m); -1 past the end."""
    inside = (k >= 0) & (k < problem.gemm_k) & (m >= 0) & (m < problem.M)
    return np.where(inside, k * problem.M + m, -1)


def _corners(problem: Conv, tile: Pair) -> Sequence[Pair]:
    """Return the first output (y, x) of each tile of a map."""
    return some([*product(range(0, problem.OH, tile[0]), range(0, problem.OW, tile[1]))])


def _tile_loads(problem: Conv, corner: Pair, tile: Pair, block: Pair, in_a_row: bool) -> Counted:
    """Count the loads of one channel's input tile by a block of (width, height) threads."""
    rows = (tile[0] - 1) * problem.stride + problem.R
    columns = (tile[1] - 1) * problem.stride + problem.S
    where = Offsets(problem.reads, problem.in_shape)
    width, height = block
    tx, ty = lanes(width, height)
    firsts = [(first, 0) for first in range(0, rows * columns, width * height)]
    indices = []
    # thread t loads elements t, t + threads, ... if `in_a_row`; else thread (x, y) loads (y, x)
    for r, s in firsts if in_a_row else product(range(0, rows, height), range(0, columns, width)):
        if in_a_row:
            at = np.where(ty < 0, rows * columns, r + ty * width + tx)
            y, x = at // columns, at % columns
        else:
            y, x = np.where(ty < 0, rows, ty + r), tx + s
        y = np.where((y < rows) & (x < columns), y + corner[0] * problem.stride - problem.pad, -1)
        indices.append(gather(where, y, x + corner[1] * problem.stride - problem.pad, 0))
    return counted(np.stack(indices))


def direct_counts(
    problem: Conv,
    tile: Pair,
    block: Pair,
    maps: Pair | None = None,
    constant: bool = False,
    in_a_row: bool = False,
) -> tuple[Counted, Counted]:
    """Count the float32 loads and stores of all blocks of the first image's first maps.

    The kernel loads (height, width) tiles with (width, height) threads, as in `_tile_loads`.
    A block's `maps` (across, down) are adjacent; None: one map, its outputs in a row.
    """
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
    written = Offsets(problem.writes, problem.out_shape)
    loads, stores = NONE, NONE
    for corner in _corners(problem, tile):
        y, x = corner[0] + oy, corner[1] + ox
        computes = there & (y < problem.OH) & (x < problem.OW)
        stores += counted(gather(written, np.where(computes, y, -1), x, m))
        loads += sum([_tile_loads(problem, corner, tile, block, in_a_row)] * problem.C, NONE)
        if not constant:
            k = np.arange(problem.gemm_k)[:, None, None]
            loads += counted(_weights(problem, np.where(computes, k, -1), m))
    return loads, stores


def map_counts(problem: Conv, block: Pair) -> tuple[Counted, Counted]:
    """Count accesses of `direct.basic` and `tight`: a block per map, all from global memory."""
    tx, ty = lanes(*block)
    read = Offsets(problem.reads, problem.in_shape)
    written = Offsets(problem.writes, problem.out_shape)
    loads, stores = NONE, NONE
    for y0, x0 in _corners(problem, (block[1], block[0])):
        computes = (ty >= 0) & (ty + y0 < problem.OH) & (tx + x0 < problem.OW)
        y, x = np.where(computes, ty + y0, -1), tx + x0
        stores += counted(gather(written, y, x, 0))
        for r, s in product(range(problem.R), range(problem.S)):
            row = np.where(computes, y * problem.stride + r - problem.pad, -1)
            c = np.array(some(range(problem.C)))[:, None, None]
            loads += counted(gather(read, row, x * problem.stride + s - problem.pad, c))
            k = (r * problem.S + s) * problem.C + c
            loads += counted(_weights(problem, np.where(computes, k, -1), 0))
    return loads, stores


def _unrolled(problem: Conv, k: Any, p: Any) -> Any:
    """Return the offset of element (k, p) of X; -1 past its end or in the padding."""
    inside = (k >= 0) & (k < problem.gemm_k) & (p >= 0) & (p < problem.OH * problem.OW)
    element, c = k // problem.C, k % problem.C
    y = p // problem.OW * problem.stride + element // problem.S - problem.pad
    x = p % problem.OW * problem.stride + element % problem.S - problem.pad
    return gather(Offsets(problem.reads, problem.in_shape), np.where(inside, y, -1), x, c)


def image_counts(problem: Conv, each: Pair, transposed: bool | None) -> tuple[Counted, Counted]:
    """Count all tiles of an image's product by 32x32 threads, `each` (maps, pixels) per thread.

    `transposed` is how W' is loaded into shared memory; None: it is in constant memory.
    """
    lane, warp = np.arange(_TILE)[None, :], np.arange(_TILE)[:, None]
    pixels = problem.OH * problem.OW
    written = Offsets(problem.writes, problem.out_shape)
    loads, stores = NONE, NONE
    map_steps = some(range(0, problem.M, _TILE * each[0]))
    pixel_steps = some(range(0, pixels, _TILE * each[1]))
    starts = some(range(0, problem.gemm_k, _TILE))
    maps = [m0 + i * _TILE for m0 in map_steps for i in range(each[0])]
    for p0 in (p0 + j * _TILE for p0 in pixel_steps for j in range(each[1])):
        p = p0 + lane
        for k0 in starts:
            loads += sum([counted(_unrolled(problem, k0 + warp, p))] * len(map_steps), NONE)
        for m0 in maps:
            y = np.where((p < pixels) & (m0 + warp < problem.M), p // problem.OW, -1)
            stores += counted(gather(written, y, p % problem.OW, m0 + warp))
    if transposed is not None:
        m, k = (lane, warp) if transposed else (warp, lane)
        for m0 in maps:
            for k0 in starts:
                loads += sum([counted(_weights(problem, k0 + k, m0 + m))] * len(pixel_steps), NONE)
    return loads, stores


def flat_counts(problem: Conv) -> tuple[Counted, Counted]:
    """Count accesses with one output per thread, in a row over maps and pixels, without sharing."""
    pixels = problem.OH * problem.OW
    warps = np.array(some(range(-(-problem.M * pixels // _TILE)), 2048))[:, None]
    outputs = warps * _TILE + np.arange(_TILE)
    m, p = outputs // pixels, outputs % pixels
    here = m < problem.M
    written = Offsets(problem.writes, problem.out_shape)
    loads = NONE
    for k in some(range(problem.gemm_k), 1024):
        loads += counted(_unrolled(problem, np.where(here, k, -1), p))
        loads += counted(_weights(problem, np.where(here, k, -1), m))
    return loads, counted(gather(written, np.where(here, p // problem.OW, -1), p % problem.OW, m))


def naive_counts(problem: Conv) -> tuple[Counted, Counted]:
    """Count the same block without shared memory; a thread computes one output at a time."""
    _, stores = image_counts(problem, (1, 1), None)
    loads = NONE
    k = np.arange(problem.gemm_k)[:, None]
    for p0 in some(range(0, problem.OH * problem.OW, _TILE)):
        p = p0 + np.arange(_TILE)[None, :]
        weights = np.where(p < problem.OH * problem.OW, _weights(problem, k, np.zeros_like(p)), -1)
        once = counted(_unrolled(problem, k, p)) + counted(weights)
        loads += Counted(once.floats * problem.M, once.sectors * problem.M)
    return loads, stores
