"""The truth for convolutions."""

from __future__ import annotations

from typing import Any

from lenetgpu.network import Conv


def reference(x: Any, w: Any, problem: Conv) -> Any:
    """Cross-correlation in float64: x (N, H, W, C), w (R, S, C, M) -> (N, OH, OW, M)."""
    import numpy as np

    x = np.asarray(x, np.float64)
    w = np.asarray(w, np.float64)
    p, t = problem.pad, problem.stride
    x = np.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
    y = np.zeros((len(x), *problem.out_shape))
    for r in range(problem.R):
        for s in range(problem.S):
            rows = slice(r, r + t * (problem.OH - 1) + 1, t)
            columns = slice(s, s + t * (problem.OW - 1) + 1, t)
            y += x[:, rows, columns, :] @ w[r, s]
    return y
