"""The truth for fully connected layers."""

from __future__ import annotations

from typing import Any

from lenetgpu.arrays import np
from lenetgpu.problems import Fc


def reference(x: Any, w: Any, problem: Fc) -> Any:
    """x (N, K) @ w (K, M) in float64, then ReLU where the problem has one: (N, M)."""
    y = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    return np.maximum(y, 0) if problem.relu else y
