"""How sure the network is: its scores as probabilities."""

from __future__ import annotations

from typing import Any


def probabilities(scores: Any) -> Any:
    """Softmax of scores (N, 10), any float type: float64 (N, 10), each row's sum 1."""
    import numpy as np

    shifted = np.asarray(scores, dtype=np.float64)
    shifted = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
