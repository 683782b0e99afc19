"""Arrays that begin where a cache line does, so that no vector of one lies across two."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

LINE_BYTES = 64


def aligned_empty(shape: Sequence[int], dtype: Any) -> Any:
    """An uninitialised NumPy array of `shape` and `dtype` that begins at a multiple of LINE_BYTES.

    NumPy's own begin at multiples of 16: the same kernel then takes a tenth longer in one process
    than in the next, by where its weights happen to lie.
    """
    import numpy as np

    size = np.dtype(dtype).itemsize * prod(shape)
    raw = np.empty(size + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(dtype).reshape(tuple(shape))
