"""The truth for convolutions."""

from __future__ import annotations

from typing import Any

from lenetgpu.layouts import widened
from lenetgpu.problems import Conv


def reference(x: Any, w: Any, problem: Conv, arrays: Any = None) -> Any:
    """Cross-correlation in float64: x (N, H, W, C), w (R, S, C / groups, M) -> (N, OH, OW, M).

    With a bias `w` is (filters, bias (M,)). What is of fewer bits is taken as it is; the sums are
    not rounded. `arrays` is the module that computes it: NumPy, or CuPy where given.
    """
    import numpy

    np = arrays or numpy
    w, *rest = w if problem.bias else (w,)
    x, w, *rest = (widened(np.asarray(held)).astype(np.float64) for held in (x, w, *rest))
    above, left, below, right = problem.around
    x = np.pad(x, ((0, 0), (above, below), (left, right), (0, 0)))
    groups, (channels, maps) = problem.groups, problem.each
    y = np.zeros((groups, len(x) * problem.OH * problem.OW, maps))
    for r in range(problem.R):
        for s in range(problem.S):
            rows, columns = (
                slice(tap * far, tap * far + by * (fits - 1) + 1, by)
                for tap, far, by, fits in zip(
                    (r, s), problem.dilation, problem.step, (problem.OH, problem.OW), strict=True
                )
            )
            seen = x[:, rows, columns, :].reshape(-1, groups, channels)
            filters = w[r, s].reshape(channels, groups, maps)
            y += np.matmul(seen.transpose(1, 0, 2), filters.transpose(1, 0, 2))
    y = y.transpose(1, 0, 2).reshape(len(x), *problem.out_shape)
    for bias in rest:
        y += bias
    return np.maximum(y, 0.0) if problem.relu else y
