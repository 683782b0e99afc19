"""Ranges of activations, for kernels that hold them in a byte.

Such a kernel multiplies pool1's outputs by 255 over the largest it expects; larger ones are cut.
The largest is stored with the weights (attribute `largest_pooled` of /conv1, by
`scripts/calibrate.py`), or found on the shipped digits where a file has none.
"""

from __future__ import annotations

from typing import Any

from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.network import PIXEL_SCALE

_IMAGES = 256


def largest_pooled(conv1: Any, images: Any = None) -> float:
    """The largest output of pool1 over `images` (N, 28, 28, 1), or over some shipped digits.

    `conv1` is (5, 5, 1, 32); uint8 images count as 0..1.
    """
    import numpy as np

    if images is None:
        images = load_dataset(assets.default_digits()).images[:_IMAGES]
    filters = np.asarray(conv1, np.float32).reshape(25, -1)
    largest = 0.0
    for lo in range(0, len(images), _IMAGES):
        part = np.asarray(images[lo : lo + _IMAGES, :, :, 0], np.float32)
        part = part / np.float32(PIXEL_SCALE) if images.dtype == np.uint8 else part
        windows = np.lib.stride_tricks.sliding_window_view(part, (5, 5), axis=(1, 2))
        n, height, width = windows.shape[:3]
        maps = np.maximum(windows.reshape(n, height, width, 25) @ filters, 0)
        pooled = maps.reshape(n, height // 2, 2, width // 2, 2, -1).mean((2, 4))
        largest = max(largest, float(pooled.max()))
    return largest
