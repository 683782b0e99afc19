"""Convolution by a library matrix product, not available to the report (sections 2.2.6, 3.6)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.blas import exact_sgemm, half_gemm
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import conv_kernel, launch_each
from lenetgpu.stages.registry import cuda, of_shape, variant
from lenetgpu.stages.rounding import to_half

product = partial(variant, kind="conv", family="cublas", reads="NHWC", writes="NHWC", needs=cuda())

_THREADS = 256


@dataclass
class _Matrix:
    """Filters as (K_SIZE, M) and a workspace for the unrolled rows of `chunk` images."""

    filters: Any
    rows: Any
    chunk: int


def _prepare(w: Any, problem: Conv, batch: int, dtype: str = "float32") -> _Matrix:
    item, rows_per_image = cupy.dtype(dtype).itemsize, problem.OH * problem.OW
    chunk = images_within(batch, item * rows_per_image * problem.gemm_k)
    rounded = to_half(w) if dtype == "float16" and problem.C == 1 else w
    filters = cupy.asarray(rounded).reshape(problem.gemm_k, problem.M).astype(dtype)
    return _Matrix(filters, cupy.empty((chunk * rows_per_image, problem.gemm_k), dtype), chunk)


def _multiply(
    x: Any, w: _Matrix, y: Any, problem: Conv, kernel: Kernel, product: Callable[..., None]
) -> None:
    pixels = problem.OH * problem.OW
    for lo in range(0, len(x), w.chunk):
        part = x[lo : lo + w.chunk]
        rows = w.rows[: len(part) * pixels]
        launch_each(kernel, rows.size, part, rows)
        product(rows, w.filters, y[lo : lo + len(part)].reshape(-1, problem.M))


@cache
def _kernel(problem: Conv, entry: str = "im2col") -> Kernel:
    return conv_kernel(__file__, entry, problem, THREADS=_THREADS)


@product(
    prepare=_prepare,
    kernels=of_shape(_kernel),
    default=True,
    paper="report 2.2.6, which could not link it",
)
def im2col(x: Any, w: _Matrix, y: Any, problem: Conv) -> None:
    """Windows copied to rows by a kernel, then cuBLAS SGEMM without TF32."""
    _multiply(x, w, y, problem, _kernel(problem), exact_sgemm)


@product(
    precision="fp16",
    prepare=partial(_prepare, dtype="float16"),
    kernels=of_shape(lambda problem: _kernel(problem, "im2col_half")),
    paper="report 3.6, whose system had no half type",
)
def half(x: Any, w: _Matrix, y: Any, problem: Conv) -> None:
    """Windows and filters rounded to fp16, cuBLAS GemmEx with fp32 sums."""
    _multiply(x, w, y, problem, _kernel(problem, "im2col_half"), half_gemm)
