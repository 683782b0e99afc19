"""Pools as a matrix product (report 2.2 for 3.2): y (1, n) = box (1, 4) @ unrolled rows (4, n)."""

from collections.abc import Iterator
from functools import cache, partial
from math import prod
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.cpu.blas import matmul
from lenetgpu.gpu.blas import exact_sgemm
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import WORKSPACE_BYTES, images_within
from lenetgpu.problems import FLOAT_BYTES, Pool
from lenetgpu.stages.defines import MAPS, launch_each, map_defines
from lenetgpu.stages.registry import of_shape, pool_variant, variant

_WINDOW, _THREADS = 4, 256
_CPU_WORKSPACE_BYTES = 8 << 20
product = partial(variant, kind="pool", reads=MAPS, writes=MAPS)


def _workspace(arrays: Any, problem: Pool, batch: int, limit: int = WORKSPACE_BYTES) -> Any:
    """Allocate flat workspace for the unrolled windows of as many images as `limit` bytes hold."""
    values = _WINDOW * prod(problem.out_shape)
    return arrays.empty(images_within(batch, FLOAT_BYTES * values, limit) * values, "float32")


def _box(arrays: Any) -> Any:
    return arrays.full((1, _WINDOW), 0.25, "float32")


def _parts(x: Any, rows: Any, y: Any, problem: Pool) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (images, workspace, outputs) for as many images at a time as `rows` holds."""
    chunk = int(rows.size) // (_WINDOW * prod(problem.out_shape))
    for lo in range(0, len(x), chunk):
        out = y[lo : lo + chunk]
        yield x[lo : lo + chunk], rows[: _WINDOW * out.size], out


@pool_variant(
    family="unrolled",
    also="cublas.blas",
    prepare=lambda w, problem, batch: _workspace(np, problem, batch, _CPU_WORKSPACE_BYTES),
    paper="report 2.2 and 3.2 on a CPU: a pool is a product too",
)
def blas(x: Any, rows: Any, y: Any, problem: Pool) -> None:
    """Windows copied to rows in cache-sized chunks, with ReLU, then a BLAS product with a box."""
    height, width, channels = problem.out_shape
    for part, used, out in _parts(x, rows, y, problem):
        windows = part.reshape(len(part), height, 2, width, 2, channels)
        unrolled = used.reshape(_WINDOW, *out.shape)
        for d in range(_WINDOW):
            np.maximum(windows[:, :, d // 2, :, d % 2], 0, out=unrolled[d])
        matmul(_box(np), used.reshape(_WINDOW, -1), out.reshape(1, -1))


@cache
def _kernel(problem: Pool, entry: str = "unroll_windows") -> Kernel:
    return Kernel.beside(__file__, entry, **map_defines(problem), THREADS=_THREADS)


def _unrolled(x: Any, rows: Any, y: Any, problem: Pool) -> Iterator[tuple[Any, Any]]:
    """Yield the unrolled windows of each part, and its outputs."""
    for part, used, out in _parts(x, rows, y, problem):
        grid = (blocks_for(used.size, _THREADS),)
        launch(_kernel(problem), grid, (_THREADS,), (part, used, int(out.size)))
        yield used, out


@product(
    family="unrolled",
    prepare=lambda w, problem, batch: _workspace(cupy, problem, batch),
    kernels=of_shape(lambda problem: (_kernel(problem), _kernel(problem, "box_product"))),
    paper="report 2.2.1 and 3.2: a pool is a product too",
)
def windows(x: Any, rows: Any, y: Any, problem: Pool) -> None:
    """Windows copied to rows by a kernel, with ReLU, then their product with a box."""
    box = _kernel(problem, "box_product")
    for used, out in _unrolled(x, rows, y, problem):
        launch_each(box, out.size, used, out)


@product(
    family="cublas",
    prepare=lambda w, problem, batch: (_workspace(cupy, problem, batch), _box(cupy)),
    kernels=of_shape(_kernel),
    paper="report 2.2.6 and 3.2: a pool is a product too",
)
def sgemm(x: Any, w: tuple[Any, Any], y: Any, problem: Pool) -> None:
    """Windows copied to rows by a kernel, with ReLU, then cuBLAS SGEMM with a box."""
    rows, box = w
    for used, out in _unrolled(x, rows, y, problem):
        exact_sgemm(box, used.reshape(_WINDOW, -1), out.reshape(1, -1))
