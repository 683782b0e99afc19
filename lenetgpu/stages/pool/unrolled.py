"""Pools as a matrix product: windows unrolled to rows, ReLU taken, times a box filter.

The report's section 2.2 on its section 3.2: y (1, outputs) = box (1, 4) @ rows (4, outputs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.blas import exact_sgemm
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import FLOAT_BYTES, Pool
from lenetgpu.stages.defines import map_defines
from lenetgpu.stages.registry import cuda, of_shape, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256
_WINDOW = 4
_CPU_WORKSPACE_BYTES = 8 << 20
_MAPS = ("NHWC", "NCHW")


def _rows_bytes(problem: Pool) -> int:
    """Of one image's unrolled windows."""
    return FLOAT_BYTES * _WINDOW * prod(problem.out_shape)


def _images(rows: Any, problem: Pool) -> int:
    """How many images' windows `rows` holds."""
    return int(rows.size) // (_WINDOW * prod(problem.out_shape))


def _kernel(problem: Pool, entry: str) -> Kernel:
    defines = map_defines(problem) | {"THREADS": _THREADS}
    return Kernel(_SOURCE, entry, tuple(defines.items()))


@dataclass
class _Rows:
    """Workspace for unrolled windows, flat, and the box filter (1, 4)."""

    rows: Any
    box: Any


def _prepare_cpu(w: None, problem: Pool, batch: int) -> _Rows:
    chunk = images_within(batch, _rows_bytes(problem), _CPU_WORKSPACE_BYTES)
    rows = np.empty(chunk * _WINDOW * prod(problem.out_shape), np.float32)
    return _Rows(rows, np.full((1, _WINDOW), 0.25, np.float32))


@variant(
    kind="pool",
    family="unrolled",
    also="cublas.blas",
    prepare=_prepare_cpu,
    paper="report 2.2 and 3.2 on a CPU: a pool is a product too",
)
def blas(x: Any, w: _Rows, y: Any, problem: Pool) -> None:
    """Windows copied to rows in cache-sized chunks, ReLU taken, then a BLAS product with a box."""
    height, width, channels = problem.out_shape
    chunk = _images(w.rows, problem)
    for lo in range(0, len(x), chunk):
        part, out = x[lo : lo + chunk], y[lo : lo + chunk]
        windows = part.reshape(len(part), height, 2, width, 2, channels)
        rows = w.rows[: _WINDOW * out.size].reshape(_WINDOW, *out.shape)
        for d in range(_WINDOW):
            np.maximum(windows[:, :, d // 2, :, d % 2], 0, out=rows[d])
        np.matmul(w.box, rows.reshape(_WINDOW, -1), out=out.reshape(1, -1))


product = partial(variant, kind="pool", reads=_MAPS, writes=_MAPS, needs=cuda())


def _prepare(w: None, problem: Pool, batch: int) -> Any:
    """Workspace for the unrolled windows of as many images as fit."""
    chunk = images_within(batch, _rows_bytes(problem))
    return cupy.empty(chunk * _WINDOW * prod(problem.out_shape), cupy.float32)


def _in_parts(
    x: Any, rows: Any, y: Any, problem: Pool, multiply: Callable[[Any, Any], None]
) -> None:
    """Windows of as many images as `rows` holds, then `multiply(those rows, their outputs)`."""
    chunk = _images(rows, problem)
    unroll = _kernel(problem, "unroll_windows")
    for lo in range(0, len(x), chunk):
        part, out = x[lo : lo + chunk], y[lo : lo + chunk]
        used = rows[: _WINDOW * out.size]
        grid = (blocks_for(used.size, _THREADS),)
        launch(unroll, grid, (_THREADS,), (part, used, int(out.size)))
        multiply(used, out)


@cache
def _two_kernels(problem: Pool) -> tuple[Kernel, ...]:
    return _kernel(problem, "unroll_windows"), _kernel(problem, "box_product")


@product(
    family="unrolled",
    prepare=_prepare,
    kernels=of_shape(_two_kernels),
    paper="report 2.2.1 and 3.2: a pool is a product too",
)
def windows(x: Any, rows: Any, y: Any, problem: Pool) -> None:
    """Windows copied to rows by a kernel, ReLU taken, then their product with a box."""
    _, box = _two_kernels(problem)

    def multiply(used: Any, out: Any) -> None:
        grid = (blocks_for(out.size, _THREADS),)
        launch(box, grid, (_THREADS,), (used, out, int(out.size)))

    _in_parts(x, rows, y, problem, multiply)


def _prepare_box(w: None, problem: Pool, batch: int) -> _Rows:
    box = cupy.full((1, _WINDOW), 0.25, cupy.float32)
    return _Rows(_prepare(w, problem, batch), box)


@cache
def _one_kernel(problem: Pool) -> Kernel:
    return _kernel(problem, "unroll_windows")


@product(
    family="cublas",
    prepare=_prepare_box,
    kernels=of_shape(_one_kernel),
    paper="report 2.2.6 and 3.2: a pool is a product too",
)
def sgemm(x: Any, w: _Rows, y: Any, problem: Pool) -> None:
    """Windows copied to rows by a kernel, ReLU taken, then cuBLAS SGEMM with a box."""
    _in_parts(
        x, w.rows, y, problem,
        lambda used, out: exact_sgemm(w.box, used.reshape(_WINDOW, -1), out.reshape(1, -1)),
    )  # fmt: skip
