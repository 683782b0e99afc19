"""The truth for convolutions."""

from __future__ import annotations

from typing import Any

from lenetgpu.problems import Conv


def reference(x: Any, w: Any, problem: Conv, arrays: Any = None) -> Any:
    """Cross-correlation in float64: x (N, H, W, C), w (R, S, C / groups, M) -> (N, OH, OW, M).

    `arrays` is the module that computes it: NumPy, or CuPy where given.
    """
    import numpy

    np = arrays or numpy
    x = np.asarray(x, np.float64)
    w = np.asarray(w, np.float64)
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
    return y.transpose(1, 0, 2).reshape(len(x), *problem.out_shape)
