"""Convolution by a library matrix product: what the report could not link (section 2.2.6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.memory import exact_sgemm, images_within
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Conv
from lenetgpu.stages.conv.cuda import conv_kernel
from lenetgpu.stages.registry import cuda, variant

_THREADS = 256


@dataclass
class _Matrix:
    """Filters as (DEPTH, M) and workspace for the unrolled rows of `chunk` images."""

    filters: Any
    rows: Any
    chunk: int


def _prepare(w: Any, problem: Conv, batch: int) -> _Matrix:
    import cupy

    rows_per_image = problem.OH * problem.OW
    chunk = images_within(batch, 4 * rows_per_image * problem.depth)
    rows = cupy.empty((chunk * rows_per_image, problem.depth), cupy.float32)
    return _Matrix(cupy.asarray(w).reshape(problem.depth, problem.M), rows, chunk)


@cache
def _im2col(problem: Conv) -> tuple[Kernel, ...]:
    return (conv_kernel("gemm.cu", "im2col", problem, THREADS=_THREADS),)


@variant(
    kind="conv",
    family="cublas",
    reads="NHWC",
    writes="NHWC",
    needs=cuda(),
    prepare=_prepare,
    kernels=_im2col,
    paper="report 2.2.6",
)
def im2col(x: Any, w: _Matrix, y: Any, problem: Conv) -> None:
    """Windows copied to rows by a kernel, then cuBLAS SGEMM without TF32."""
    (kernel,) = _im2col(problem)
    pixels = problem.OH * problem.OW
    for lo in range(0, len(x), w.chunk):
        part = x[lo : lo + w.chunk]
        rows = w.rows[: len(part) * pixels]
        grid = (blocks_for(rows.size, _THREADS),)
        launch(kernel, grid, (_THREADS,), (part, rows, int(rows.size)))
        exact_sgemm(rows, w.filters, y[lo : lo + len(part)].reshape(-1, problem.M))
