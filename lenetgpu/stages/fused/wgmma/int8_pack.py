"""Filters for the kernel with conv2 in bytes, in the order they are read; NumPy on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.stages.fused.wgmma import fp16_pack

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BYTE_MOST, FILTER_MOST = 255, 127


def quantize(conv2: Array, largest: float) -> tuple[Array, Array]:
    """(5, 5, 32, 64) filters as int8 and, per output, what four sums of byte products mean."""
    import numpy as np

    widest = np.abs(conv2).max((0, 1, 2)).astype(np.float64)
    step = np.where(widest > 0, widest, 1.0) / FILTER_MOST
    whole = np.rint(conv2 / step).astype(np.int8)
    return whole, (0.25 * step * largest / BYTE_MOST).astype(np.float32)


def pack_conv1(conv1: Array, largest: float) -> Array:
    """fp16's packing with `largest` as 255, channels ordered so that a thread's 8 are adjacent.

    Column 16a + 8dx + 2q + e is channel 8q + 2a + e.
    """
    import numpy as np

    plane, quad, item = np.meshgrid(np.arange(4), np.arange(4), np.arange(2), indexing="ij")
    order = (8 * quad + 2 * plane + item).reshape(-1)
    return fp16_pack.pack_conv1(conv1[..., order] * np.float32(BYTE_MOST / largest))


def pack_conv2(whole: Array) -> Array:
    """(5, 5, 32, 64) int8 as (25, 2, 64, 16): tap, channel/16, output, channel."""
    import numpy as np

    return np.ascontiguousarray(whole.reshape(25, 2, 16, 64).transpose(0, 1, 3, 2))
