"""Serial ReLU and mean: one thread, two passes, as in the report's serial code."""

from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.problems import Pool
from lenetgpu.stages.registry import pool_variant


@lazy_njit
def relu_loops(x, y):  # type: ignore[no-untyped-def]
    """Compute y = max(x, 0) element by element; NaN stays NaN."""
    for i in range(x.size):
        y[i] = 0 if x[i] < 0 else x[i]


@lazy_njit
def mean_loops(x, y):  # type: ignore[no-untyped-def]
    """Compute the mean of each 2x2 window of one (H, W, C) map."""
    for oy in range(y.shape[0]):
        for ox in range(y.shape[1]):
            for c in range(y.shape[2]):
                total = y.dtype.type(0)
                for dy in range(2):
                    for dx in range(2):
                        total += x[2 * oy + dy, 2 * ox + dx, c]
                y[oy, ox, c] = total * y.dtype.type(0.25)


@pool_variant(
    family="serial",
    prepare=lambda w, problem, batch: np.empty(problem.in_shape, np.float32),
    paper="report 3.1 and 3.2, tables 9 and 11: the serial code",
)
def loops(x: Any, rectified: Any, y: Any, problem: Pool) -> None:
    """ReLU, then mean, in scalar loops on one CPU thread."""
    for image, pooled in zip(x, y, strict=True):
        relu_loops(image.reshape(-1), rectified.reshape(-1))
        mean_loops(rectified, pooled)
