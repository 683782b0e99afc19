"""Convolution as a matrix product over unrolled inputs: the report's section 2.2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Conv
from lenetgpu.stages.conv.cuda import MAPS, conv_kernel
from lenetgpu.stages.registry import cpu, cuda, variant

_CPU_WORKSPACE_BYTES = 8 << 20
_NAIVE_THREADS = 256
_TILE = 32


@dataclass
class _Unrolled:
    """Filters as (DEPTH, M) and workspace for the unrolled rows of `chunk` images."""

    matrix: Any
    padded: Any
    rows: Any
    chunk: int


def _prepare_blas(w: Any, problem: Conv, batch: int) -> _Unrolled:
    import numpy as np

    pixels = problem.OH * problem.OW
    chunk = max(1, min(batch, _CPU_WORKSPACE_BYTES // (4 * pixels * problem.depth)))
    window = (problem.OH, problem.OW, problem.R, problem.S, problem.C)
    padded = None
    if problem.pad:
        shape = (chunk, problem.H + 2 * problem.pad, problem.W + 2 * problem.pad, problem.C)
        padded = np.zeros(shape, np.float32)
    return _Unrolled(
        np.ascontiguousarray(w.reshape(problem.depth, problem.M)),
        padded,
        np.empty((chunk, *window), np.float32),
        chunk,
    )


@variant(
    kind="conv",
    family="unrolled",
    reads="NHWC",
    writes="NHWC",
    needs=cpu(),
    prepare=_prepare_blas,
    default=True,
    paper="report 2.2 on a CPU",
)
def blas(x: Any, w: _Unrolled, y: Any, problem: Conv) -> None:
    """Windows copied to rows in cache-sized chunks, then one BLAS matrix product."""
    import numpy as np
    from numpy.lib.stride_tricks import as_strided

    pad, t = problem.pad, problem.stride
    for lo in range(0, len(x), w.chunk):
        part = x[lo : lo + w.chunk]
        n = len(part)
        if pad:
            w.padded[:n, pad:-pad, pad:-pad] = part
            part = w.padded[:n]
        sn, sh, sw, sc = part.strides
        shape = (n, problem.OH, problem.OW, problem.R, problem.S, problem.C)
        windows = as_strided(part, shape, (sn, t * sh, t * sw, sh, sw, sc), writeable=False)
        np.copyto(w.rows[:n], windows)
        rows = w.rows[:n].reshape(-1, problem.depth)
        np.matmul(rows, w.matrix, out=y[lo : lo + n].reshape(-1, problem.M))


@cache
def _naive(problem: Conv) -> tuple[Kernel, ...]:
    return (conv_kernel("unrolled.cu", "conv_naive", problem, THREADS=_NAIVE_THREADS),)


@variant(
    kind="conv",
    family="unrolled",
    reads=MAPS,
    writes=MAPS,
    needs=cuda(),
    kernels=_naive,
    paper="report 2.2.1, table 7",
)
def naive(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """One output per thread of the unrolled product, nothing shared."""
    (kernel,) = _naive(problem)
    args = (x, w, y, int(y.size))
    launch(kernel, (blocks_for(y.size, _NAIVE_THREADS),), (_NAIVE_THREADS,), args)


def _maps_each(problem: Conv) -> int:
    return 2 if problem.M > _TILE else 1


@cache
def _tiled(problem: Conv) -> tuple[Kernel, ...]:
    return (conv_kernel("unrolled.cu", "conv_tiled", problem, MAPS_EACH=_maps_each(problem)),)


@variant(
    kind="conv",
    family="unrolled",
    reads=("NCHW", "NHWC"),
    writes=("NCHW", "NHWC"),
    needs=cuda(),
    kernels=_tiled,
    default=True,
    paper="report 2.2.2, table 5",
)
def tiled(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """Shared-memory tiles of the unrolled product, 2x2 outputs per thread."""
    (kernel,) = _tiled(problem)
    tiles = blocks_for(problem.M, _TILE * _maps_each(problem)) * blocks_for(
        problem.OH * problem.OW, 2 * _TILE
    )
    launch(kernel, (len(x) * tiles,), (_TILE, _TILE), (x, w, y))


def _even_outputs(problem: Conv) -> str | None:
    if problem.OH % 2 or problem.OW % 2:
        return f"supports even output sizes, not {problem.OH}x{problem.OW}"
    return None


@variant(
    kind="conv",
    family="unrolled",
    reads="NCHW",
    writes="QUAD",
    needs=cuda(),
    kernels=_tiled,
    supports=_even_outputs,
    paper="report 2.2.4, table 6",
)
def layout(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """The tiled product from NCHW into QUAD, so that reads, writes and the pool coalesce."""
    tiled(x, w, y, problem)
