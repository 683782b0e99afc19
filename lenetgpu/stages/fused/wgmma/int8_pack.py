"""Filters for the int8 conv2 kernel, in the order they are read; NumPy on the host."""

from lenetgpu.arrays import Array, np
from lenetgpu.files.scaling import most_pooled
from lenetgpu.stages.fused.wgmma import fp16_pack
from lenetgpu.stages.rounding import to_whole

BYTE_MOST, FILTER_MOST = 255, 127
_WIDEST = 256  # bound on filter element / largest output, so that fp16 holds the scaled filters
_ROUNDING = 1e-9  # tolerance for another summation order
_LEAST_STEPS = 8  # so that a channel's range grows by at most an eighth


def ranges(conv1: Array) -> Array:
    """Return (32,) float64: the value of 255 in each of pool1's channels; no image saturates.

    Where that costs little precision, white is a whole number of steps: flat strokes are exact.
    """
    most = most_pooled(conv1)
    most = np.where(most > 0, np.maximum(most, np.abs(conv1).max((0, 1, 2)) / _WIDEST), 0.0)
    white = np.maximum(conv1.astype(np.float64).sum((0, 1, 2)), 0)
    steps = np.floor(BYTE_MOST * white / np.where(most > 0, most, 1.0) + _ROUNDING)
    whole = steps >= _LEAST_STEPS
    return np.where(whole, BYTE_MOST * white / np.where(whole, steps, 1.0), most)


def quantize(conv2: Array, largest: Array) -> tuple[Array, Array]:
    """Return (5, 5, 32, 64) filters as int8, and per output the scale of four summed products.

    `largest` (32,) is the value of 255 in each input channel.
    """
    scaled = conv2 * (largest / BYTE_MOST)[:, None]
    widest = np.abs(scaled).max((0, 1, 2))
    step = np.where(widest > 0, widest, 1.0) / FILTER_MOST
    whole = np.clip(to_whole(scaled / step), -FILTER_MOST, FILTER_MOST).astype(np.int8)
    return whole, (0.25 * step).astype(np.float32)


def pack_conv1(conv1: Array, largest: Array) -> Array:
    """Pack as for fp16 with `largest` (32,) as 255; the channels of a thread are adjacent.

    Column 16a + 8dx + 2q + e is channel 8q + 2a + e.
    """
    plane, quad, item = np.meshgrid(np.arange(4), np.arange(4), np.arange(2), indexing="ij")
    order = (8 * quad + 2 * plane + item).reshape(-1)
    scales = np.where(largest > 0, BYTE_MOST / np.where(largest > 0, largest, 1.0), 0.0)
    return fp16_pack.pack_conv1((conv1 * scales)[..., order].astype(np.float32))


def pack_conv2(whole: Array) -> Array:
    """Arrange (5, 5, 32, 64) int8 as (25, 2, 64, 16): element, channel/16, output, channel."""
    return np.ascontiguousarray(whole.reshape(25, 2, 16, 64).transpose(0, 1, 3, 2))


def pack(conv1: Array, conv2: Array) -> tuple[Array, Array, Array]:
    """Pack filters (5, 5, 1, 32) and (5, 5, 32, 64) for the kernel; also return scales (64,)."""
    largest = ranges(conv1)
    whole, scales = quantize(conv2, largest)
    return pack_conv1(conv1, largest), pack_conv2(whole), scales
