"""Fully connected layers by tiles: register tiles on a CPU, shared-memory tiles on a GPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Fc
from lenetgpu.stages.registry import cpu, cuda, of_shape, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_TILE = 32
_PART = 1 << 23
"""Multiply-adds that pay for handing them to another thread."""


@lazy_njit
def relu_rows(y, lo, hi):  # type: ignore[no-untyped-def]
    """max(y, 0) in place on rows lo..hi."""
    for n in range(lo, hi):
        for m in range(y.shape[1]):
            y[n, m] = y[n, m] if y[n, m] > 0 else 0


def _pack(w: Any, problem: Fc, batch: int) -> Any:
    from lenetgpu.cpu.tile import pack_weights

    return pack_weights(w.reshape(1, problem.K, problem.M))


@variant(
    kind="fc",
    family="tiled",
    reads="NC",
    writes="NC",
    needs=cpu(),
    prepare=_pack,
    paper="report tables 5-8 on a CPU",
)
def blocked(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """Register tiles of images x outputs, vector fused multiply-adds, every core."""
    from lenetgpu.cpu.tile import rows_times_matrix

    x_flat, y_flat = x.reshape(-1), y.reshape(-1)

    def images(lo: int, hi: int) -> None:
        geometry = (1, 0, 0, problem.K, problem.K, hi - lo, problem.M)
        part = x_flat[lo * problem.K : hi * problem.K]
        rows_times_matrix(part, w, y_flat[lo * problem.M : hi * problem.M], geometry, 0, 1)
        if problem.relu:
            relu_rows(y, lo, hi)

    parallel_ranges(len(x), images, least=-(-_PART // (problem.K * problem.M)))


@cache
def _kernel(problem: Fc) -> tuple[Kernel, ...]:
    shape = {"K": problem.K, "M": problem.M, "RELU": int(problem.relu), "TILE": _TILE}
    return (Kernel(_SOURCE, "fully_forward_tile", tuple(shape.items())),)


@variant(
    kind="fc",
    family="tiled",
    reads="NC",
    writes="NC",
    needs=cuda(),
    kernels=of_shape(_kernel),
    paper="report tables 5-8, figs 4-6: fully_forward_tile",
)
def shared(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """32x32 tiles of both matrices in shared memory, one output per thread."""
    import numpy as np

    (kernel,) = _kernel(problem)
    grid = (blocks_for(len(x), _TILE) * blocks_for(problem.M, _TILE),)
    launch(kernel, grid, (_TILE, _TILE), (x, w, y, np.int32(len(x))))
