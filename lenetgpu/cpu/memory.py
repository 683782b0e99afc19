"""Host memory: free bytes, and arrays whose vectors never straddle two cache lines."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, np

_LINE_BYTES = 64


def aligned_empty(shape: Sequence[int], dtype: Any) -> Any:
    """Return an uninitialised NumPy array of `shape` and `dtype`, aligned to a cache line.

    NumPy's alignment of 16 bytes makes some processes a tenth slower than others.
    """
    size = np.dtype(dtype).itemsize * prod(shape)
    raw = np.empty(size + _LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _LINE_BYTES
    return raw[start : start + size].view(dtype).reshape(tuple(shape))


def aligned_copy(values: Array) -> Array:
    """Copy `values` to an array that is aligned to a cache line."""
    copy: Array = aligned_empty(values.shape, values.dtype)
    copy[...] = values
    return copy


def require_free(needed: int) -> None:
    """Raise MemoryError if `needed` bytes exceed free memory, before the system kills us."""
    free = free_bytes()
    if free is not None and needed > free:
        raise MemoryError(f"{free:,} bytes free of the {needed:,} that it needs")


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes available without swapping, or None if the system does not report them."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
        return int(text.split("MemAvailable:")[1].split()[0]) << 10
    except (OSError, ValueError, LookupError):
        return None
