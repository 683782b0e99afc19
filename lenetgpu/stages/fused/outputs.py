"""What classifiers write, as their kernels take it."""

from __future__ import annotations

from typing import Any

from lenetgpu.arrays import np


def output_args(y: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    """Labels (n,) int32, scores (n, 10) or a null pointer where nobody asked for them, and n."""
    labels, scores = y
    return labels, np.uint64(0) if scores is None else scores, np.int32(len(labels))
