"""ReLU and mean by tiles: on a GPU rows in shared memory (report, 3.2.3), on a CPU in cache."""

from functools import cache
from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Pool
from lenetgpu.stages.defines import MAPS
from lenetgpu.stages.registry import of_shape, pool_variant

_THREADS = 256
_TILE_BYTES = 8 << 10
_SHARED_BYTES = 48 << 10


@lazy_njit
def _lines_in(x, y, lo, hi):  # type: ignore[no-untyped-def]
    """Compute lines lo to hi of y (lines, OW, C) from x (lines, 2, OW, 2, C), row by row."""
    zero, quarter = y.dtype.type(0), y.dtype.type(0.25)
    for line in range(lo, hi):
        for row in range(2):
            for ox in range(y.shape[1]):
                for c in range(y.shape[2]):
                    a, b = x[line, row, ox, 0, c], x[line, row, ox, 1, c]
                    pair = (zero if a < zero else a) + (zero if b < zero else b)
                    if row == 0:
                        y[line, ox, c] = pair
                    else:
                        y[line, ox, c] = (y[line, ox, c] + pair) * quarter


@pool_variant(
    family="tiled",
    paper="report 3.2.3 on a CPU: the tile is a line of the output, in cache",
)
def lines(x: Any, y: Any, problem: Pool) -> None:
    """A box filter row by row, with ReLU: a row of sums stays in cache for the next row."""
    height, width, channels = problem.out_shape
    into = x.reshape(len(x) * height, 2, width, 2, channels)
    out = y.reshape(len(y) * height, width, channels)
    parallel_ranges(len(out), lambda lo, hi: _lines_in(into, out, lo, hi))


def _row(problem: Pool) -> int:
    return problem.W * (problem.C if problem.reads == "NHWC" else 1)


def _lines(problem: Pool) -> int:
    return max(1, _TILE_BYTES // (8 * _row(problem)))


@cache
def _kernel(problem: Pool) -> Kernel:
    shape: dict[str, int | str] = {"CH": problem.C, "H": problem.H, "W": problem.W}
    shape |= {"READS": problem.reads, "LINES": _lines(problem), "THREADS": _THREADS}
    return Kernel.beside(__file__, "relu_mean_tile", **shape)


def _keeps_layout(problem: Pool) -> str | None:
    if problem.reads != problem.writes:
        return f"supports one layout in and out, not {problem.reads} to {problem.writes}"
    if 8 * _row(problem) > _SHARED_BYTES:
        return f"supports rows up to {_SHARED_BYTES // 8} elements, not {_row(problem)}"
    return None


@pool_variant(
    family="tiled",
    reads=MAPS,
    writes=MAPS,
    kernels=of_shape(_kernel),
    supports=_keeps_layout,
    default=True,
    paper="report 3.2.3",
)
def shared(x: Any, y: Any, problem: Pool) -> None:
    """Rows loaded coalesced into shared memory, ReLU and mean from there."""
    lines = int(y.size) // (_row(problem) // 2)
    launch(_kernel(problem), (blocks_for(lines, _lines(problem)),), (_THREADS,), (x, y, lines))
