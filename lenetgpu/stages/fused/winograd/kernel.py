"""What one thread computes of conv1 to pool2 on a CPU. Importing this module imports Numba."""

from __future__ import annotations

from typing import Any

from lenetgpu.cpu.jit import njit
from lenetgpu.cpu.tile import windows_tile
from lenetgpu.cpu.vector import CHANNELS, FLOAT, PIXELS, Vectors, kernel
from lenetgpu.cpu.vector import WIDTH as VECTOR
from lenetgpu.cpu.winograd import IMAGES, OUTPUTS, pooled, products_at_points, room_sizes, transform
from lenetgpu.network import FEATURE_COUNT, PIXEL_SCALE, stage
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
assert ROWS % PIXELS == 0 and IMAGE % VECTOR == 0


HALF, VALUES, PRODUCTS = room_sizes(TILES, WIDTH, MAPS, FILTERS)
ROOM = IMAGE + MAP + HALF + VALUES + PRODUCTS
"""Floats of a thread's room: pixels, their pooled map, and what `room_sizes` says of conv2."""


def _unscale(v: Vectors, x: Any, y: Any) -> None:
    """An image's bytes to floats in 0..1."""
    with v.loop(IMAGE // VECTOR) as part:
        pixels = v.bytes(v.at(x, (part.index, VECTOR)))
        v.store(v.scaled(1 / PIXEL_SCALE, pixels), v.at(y, (part.index, FLOAT * VECTOR)))


unscale = kernel(_unscale)


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
def features(x: Any, size: Any, w1: Any, w2: Any, y: Any, room: Any, lo: Any, hi: Any) -> None:
    """Images lo..hi of x (N, 28, 28) to their features y (N, 1024); addresses, all of them.

    `size` is a pixel's in bytes: 1 for bytes, 4 for floats in 0..1.
    """
    pooled_map = room + 4 * IMAGE
    half = pooled_map + 4 * MAP
    values = half + 4 * HALF
    products = values + 4 * VALUES
    for start in range(lo, hi, IMAGES):
        count = min(IMAGES, hi - start)
        for i in range(count):
            image = x + size * (start + i) * IMAGE
            if size == 1:
                unscale((image, room))
                image = room
            first(image, w1, pooled_map)
            at = values + 4 * i * EACH * MAPS
            transform((pooled_map, at, half, TILES, WIDTH, MAPS, ROWS))
        rows = -(-count * EACH // PIXELS) * PIXELS
        products_at_points(values, w2, products, rows, ROWS, MAPS, FILTERS)
        for i in range(count):
            at = products + 4 * i * EACH * FILTERS
            pooled((at, y + 4 * (start + i) * FEATURE_COUNT, TILES, FILTERS, ROWS))
