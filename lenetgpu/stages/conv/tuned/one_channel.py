"""Our own fastest convolution of single-channel maps."""

from functools import cache
from typing import Any, NamedTuple

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv import nchw
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import of_shape

_MOST_ELEMENTS = 64
_INPUT_REGISTERS = 96
_MANY_ELEMENTS = 16
_MOST_THREADS = 256
_THREADS = 128
_GROUPS = (64, 32, 16, 8, 4, 2, 1)
_LEAST_GROUP = 4
_MANY_GROUP = 32
_FEW_ELEMENTS = 4
_BLOCKS_EACH = 1.9
_WRITTEN_TOGETHER = 16 << 20


class Tile(NamedTuple):
    """Outputs per thread: `columns` (one store) by `rows`."""

    columns: int
    rows: int


def _inputs(problem: Conv, columns: int, rows: int) -> int:
    return ((rows - 1) * problem.stride + problem.R) * ((columns - 1) * problem.stride + problem.S)


def tiles(problem: Conv) -> tuple[Tile, ...]:
    """Return the widest stores that OW permits, with the best measured rows, most rows first."""
    columns = next(width for width in (4, 2, 1) if problem.OW % width == 0)
    while columns > 1 and _inputs(problem, columns, 1) > _INPUT_REGISTERS:
        columns //= 2
    many = problem.R * problem.S >= _MANY_ELEMENTS
    rows = {4: (8, 4, 2) if many else (2,), 2: (2,) if many else (1,), 1: (1,)}[columns]
    fitting = [
        Tile(columns, count)
        for count in rows
        if count <= problem.OH and _inputs(problem, columns, count) <= _INPUT_REGISTERS
    ]
    return tuple(fitting) or (Tile(columns, 1),)


def _blocks(problem: Conv, n: int, shape: Tile) -> tuple[int, int]:
    """Return (computing threads, blocks) for one group of filters."""
    vectors = n * blocks_for(problem.OH, shape.rows) * (problem.OW // shape.columns)
    return vectors, blocks_for(vectors, _THREADS)


def _tile(problem: Conv, n: int, processors: int) -> Tile:
    """Return the first of `tiles` with about two blocks per multiprocessor, else the last."""
    *larger, last = tiles(problem)
    enough = _BLOCKS_EACH * processors / blocks_for(problem.M, _MANY_GROUP)
    return next((shape for shape in larger if _blocks(problem, n, shape)[1] >= enough), last)


@cache
def _kernel(problem: Conv, shape: Tile) -> Kernel:
    sizes = {"TILE_W": shape.columns, "TILE_H": shape.rows, "THREADS": _MOST_THREADS}
    return conv_kernel(__file__, "conv_single", problem, **sizes)


def _supported(problem: Conv) -> str | None:
    if problem.C != 1:
        return f"supports one-channel maps, not {problem.C} channels"
    if problem.R * problem.S > _MOST_ELEMENTS:
        return f"supports filters of up to {_MOST_ELEMENTS} elements, not {problem.R * problem.S}"
    return None


def _filters_a_block(problem: Conv, blocks: int, processors: int) -> int:
    """Return the most filters per block that leave about two blocks per multiprocessor."""
    written = _WRITTEN_TOGETHER // (4 * problem.OH * problem.OW)
    # Writing few maps at once is faster and pays off for medium sizes.
    medium = _FEW_ELEMENTS < problem.R * problem.S < _MANY_ELEMENTS
    for group in _GROUPS:
        enough = blocks * blocks_for(problem.M, group) >= _BLOCKS_EACH * processors
        if enough and (not medium or group <= max(_LEAST_GROUP, written)):
            return group
    return 1


def _pack(w: Any, problem: Conv, batch: int) -> Any:
    """Return filters (R, S, 1, M) as (M, R*S rounded up to 4), zero-padded."""
    by_filter = np.ascontiguousarray(np.asarray(w, np.float32).reshape(-1, problem.M).T)
    return cupy.asarray(np.pad(by_filter, ((0, 0), (0, -problem.gemm_k % 4))))


@nchw(
    family="direct",
    prepare=_pack,
    kernels=of_shape(lambda problem: tuple(_kernel(problem, shape) for shape in tiles(problem))),
    supports=_supported,
    paper="after Chang 3.1: one channel, the map divided, filters run over",
)
def tuned_single(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """One-channel maps: a thread's inputs in registers, filters streamed from shared memory."""
    shape = _tile(problem, len(x), multiprocessors())
    vectors, blocks = _blocks(problem, len(x), shape)
    filters = _filters_a_block(problem, blocks, multiprocessors())
    grid, shared = (blocks, blocks_for(problem.M, filters)), filters * w.itemsize * w.shape[1]
    args = (x, w, y, np.int32(vectors), np.int32(filters))
    launch(_kernel(problem, shape), grid, (_THREADS,), args, shared=shared)
