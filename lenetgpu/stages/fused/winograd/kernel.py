"""What one thread computes of conv1 to pool2 on a CPU. Importing this module imports Numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from lenetgpu.cpu.jit import njit
from lenetgpu.cpu.memory import aligned_empty
from lenetgpu.cpu.tile import windows_tile
from lenetgpu.cpu.vector import CHANNELS, PIXELS
from lenetgpu.cpu.winograd import IMAGES, OUTPUTS, pooled, products_at_points, room_for, transform
from lenetgpu.network import FEATURE_COUNT, stage
from lenetgpu.problems import Conv

_FIRST, _SECOND = stage("conv1").problem, stage("conv2").problem
assert isinstance(_FIRST, Conv) and isinstance(_SECOND, Conv)
LINE, TAPS = _FIRST.W, _FIRST.S
IMAGE = _FIRST.H * _FIRST.W
WIDTH, MAPS = _SECOND.W, _SECOND.C
MAP = _SECOND.H * WIDTH * MAPS
FILTERS = _SECOND.M
TILES = _SECOND.OH // OUTPUTS
EACH = TILES * TILES
ROWS = IMAGES * EACH
assert ROWS % PIXELS == 0


def workspace() -> tuple[Any, ...]:
    """A thread's room: an image's pixels, its pooled map, and what `room_for` says of conv2."""
    own = (aligned_empty((size,), np.float32) for size in (IMAGE, MAP))
    return (*own, *room_for(TILES, WIDTH, MAPS, FILTERS))


@njit
def first(x: Any, w: Any, y: Any) -> None:
    """conv1, ReLU and mean of an image (28, 28): the map (12, 12, 32)."""
    columns = PIXELS // 2
    for block in range(MAPS // CHANNELS):
        filters = w + 4 * block * TAPS * TAPS * CHANNELS
        for row in range(WIDTH):
            for column in range(0, 2 * WIDTH, columns):
                at = x + 4 * (2 * row * LINE + column)
                out = y + 4 * ((row * WIDTH + column // 2) * MAPS + block * CHANNELS)
                windows_tile((at, filters, out, TAPS, LINE, TAPS, 1, MAPS))


@njit
def features(
    x: np.ndarray,
    scale: np.float32,
    w1: np.ndarray,
    w2: np.ndarray,
    y: np.ndarray,
    room: tuple[np.ndarray, ...],
    lo: int,
    hi: int,
) -> None:
    """Images lo..hi of x (N, 784), `scale` times a pixel in 0..1, to their features y (N, 1024)."""
    pixels, pooled_map, half, values, products = room
    of, into = np.int64(pooled_map.ctypes.data), np.int64(half.ctypes.data)
    before, behind = np.int64(values.ctypes.data), np.int64(products.ctypes.data)
    for start in range(lo, hi, IMAGES):
        count = min(IMAGES, hi - start)
        for i in range(count):
            image = x[start + i]
            for k in range(IMAGE):
                pixels[k] = np.float32(image[k]) * scale
            first(np.int64(pixels.ctypes.data), np.int64(w1.ctypes.data), of)
            at = before + 4 * i * EACH * MAPS
            transform((of, at, into, TILES, WIDTH, MAPS, ROWS))
        rows = -(-count * EACH // PIXELS) * PIXELS
        products_at_points(before, np.int64(w2.ctypes.data), behind, rows, ROWS, MAPS, FILTERS)
        for i in range(count):
            at = behind + 4 * i * EACH * FILTERS
            out = np.int64(y.ctypes.data) + 4 * (start + i) * FEATURE_COUNT
            pooled((at, out, TILES, FILTERS, ROWS))
