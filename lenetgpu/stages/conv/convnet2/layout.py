"""cuda-convnet2's layout with images innermost: the workspace and both conversions."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.problems import FLOAT_BYTES, Conv

_TILE, _ROWS = 32, 8
_INDEX_LIMIT = 2**31
TRANSPOSE = Kernel.beside(__file__, "conv_transpose", ROWS=_ROWS)


def transpose(
    source: Any, target: Any, rows: int, columns: int, pitch: int, matrices: int = 1
) -> None:
    """Transpose `matrices` matrices (rows, columns) of `source` to zero-padded (columns, pitch)."""
    down, across = blocks_for(pitch, _TILE), blocks_for(columns, _TILE)
    sizes = [np.int32(value) for value in (rows, columns, pitch, down, across)]
    launch(TRANSPOSE, (matrices * down * across,), (_TILE, _ROWS), (source, target, *sizes))


def indexable(problem: Conv) -> str | None:
    """Return None if 32-bit indices reach every element, else the reason to refuse `problem`."""
    largest = max(prod(problem.in_shape), prod(problem.out_shape), problem.gemm_k * problem.M)
    if largest >= _INDEX_LIMIT:
        return f"supports images, maps and filters below 2^31 elements, needs {largest}"
    return None


@dataclass
class Innermost:
    """Device filters (R, S, C, M), workspaces for `chunk` images, and an index table or None."""

    filters: Any
    images: Any
    outputs: Any
    table: Any
    chunk: int


def prepare_innermost(w: Any, problem: Conv, batch: int, table: Any = None) -> Innermost:
    """Copy filters to the device and allocate workspaces for as many of `batch` images as fit."""
    sizes = prod(problem.in_shape), prod(problem.out_shape)
    chunk = images_within(batch, FLOAT_BYTES * sum(sizes))
    filters = cupy.ascontiguousarray(cupy.asarray(w, cupy.float32))
    count = 0 if chunk == 1 else chunk
    images, maps = (cupy.empty(count * size, cupy.float32) for size in sizes)
    return Innermost(filters, images, maps, table, chunk)


def run_innermost(
    convolve: Callable[[Any, Any, int], None], x: Any, state: Innermost, y: Any, problem: Conv
) -> None:
    """Convolve NCHW `x` to NCHW `y` by `convolve(images, outputs, count)` with images innermost."""
    inputs, outputs = prod(problem.in_shape), prod(problem.out_shape)
    for lo in range(0, len(x), state.chunk):
        part, out = x[lo : lo + state.chunk], y[lo : lo + state.chunk]
        n = len(part)
        if n == 1:  # has the same bytes in both layouts
            convolve(part, out, 1)
            continue
        transpose(part, state.images, n, inputs, n)
        convolve(state.images, state.outputs, n)
        transpose(state.outputs, out, outputs, n, outputs)
