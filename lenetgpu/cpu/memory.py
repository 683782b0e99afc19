"""Host memory: how much is free, and arrays whose vectors lie across no two cache lines."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, np

LINE_BYTES = 64


def aligned_empty(shape: Sequence[int], dtype: Any) -> Any:
    """An uninitialised NumPy array of `shape` and `dtype` that begins at a multiple of LINE_BYTES.

    NumPy's own begin at multiples of 16: the same kernel then takes a tenth longer in one process
    than in the next, by where its weights happen to lie.
    """
    size = np.dtype(dtype).itemsize * prod(shape)
    raw = np.empty(size + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(dtype).reshape(tuple(shape))


def aligned_copy(values: Array) -> Array:
    """`values` in an array that begins at a multiple of LINE_BYTES."""
    copy: Array = aligned_empty(values.shape, values.dtype)
    copy[...] = values
    return copy


def require_free(needed: int) -> None:
    """MemoryError where `needed` bytes are more than are free, before the system kills who asks."""
    free = free_bytes()
    if free is not None and needed > free:
        raise MemoryError(f"{free:,} bytes free of the {needed:,} that it needs")


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this machine has to give without swapping; None where the system does not say."""
    try:
        told = (root / "proc/meminfo").read_text(encoding="ascii")
        return int(told.split("MemAvailable:")[1].split()[0]) << 10
    except (OSError, ValueError, LookupError):
        return None
