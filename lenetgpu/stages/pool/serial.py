"""Serial ReLU and mean: one thread, two passes, as in the report's serial code."""

from __future__ import annotations

from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.network import Pool
from lenetgpu.stages.registry import cpu, variant


@lazy_njit
def _loops(x, rectified, y):  # type: ignore[no-untyped-def]
    for n in range(x.shape[0]):
        for iy in range(x.shape[1]):
            for ix in range(x.shape[2]):
                for c in range(x.shape[3]):
                    value = x[n, iy, ix, c]
                    rectified[iy, ix, c] = value if value > 0 else 0
        for oy in range(y.shape[1]):
            for ox in range(y.shape[2]):
                for c in range(y.shape[3]):
                    total = y.dtype.type(0)
                    for dy in range(2):
                        for dx in range(2):
                            total += rectified[2 * oy + dy, 2 * ox + dx, c]
                    y[n, oy, ox, c] = total * y.dtype.type(0.25)


def _prepare(w: None, problem: Pool, batch: int) -> Any:
    import numpy as np

    return np.empty(problem.in_shape, np.float32)


@variant(
    kind="pool",
    family="serial",
    reads="NHWC",
    writes="NHWC",
    needs=cpu(),
    prepare=_prepare,
    paper="report 3.1 and 3.2, tables 9 and 11: the serial code",
)
def loops(x: Any, rectified: Any, y: Any, problem: Pool) -> None:
    """ReLU, then mean, in scalar loops on one CPU thread."""
    _loops(x, rectified, y)
