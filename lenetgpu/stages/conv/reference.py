"""The truth for convolutions."""

from __future__ import annotations

from typing import Any

from lenetgpu.problems import Conv


def reference(x: Any, w: Any, problem: Conv, arrays: Any = None) -> Any:
    """Cross-correlation in float64: x (N, H, W, C), w (R, S, C, M) -> (N, OH, OW, M).

    `arrays` is the module that computes it: NumPy, or CuPy where given.
    """
    import numpy

    np = arrays or numpy
    x = np.asarray(x, np.float64)
    w = np.asarray(w, np.float64)
    p, t = problem.pad, problem.stride
    x = np.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
    y = np.zeros((len(x) * problem.OH * problem.OW, problem.M))
    for r in range(problem.R):
        for s in range(problem.S):
            rows = slice(r, r + t * (problem.OH - 1) + 1, t)
            columns = slice(s, s + t * (problem.OW - 1) + 1, t)
            y += x[:, rows, columns, :].reshape(-1, problem.C) @ w[r, s]
    return y.reshape(len(x), *problem.out_shape)
