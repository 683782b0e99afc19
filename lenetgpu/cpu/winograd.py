"""Winograd F(4x4,5x5) on vectors of channels: the transforms around a product of the tile.

A 5x5 convolution's 4x4 outputs are the product of 64 numbers, the polynomials through an 8x8
window at 0, +-1, +-2, +-1/2 and infinity along either axis, with the filters' 64 at the same
points (Lavin & Gray, arXiv 1509.09308). Importing this module imports Numba.
"""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from lenetgpu.cpu.jit import njit
from lenetgpu.cpu.memory import aligned_empty
from lenetgpu.cpu.tile import pack_weights, wide_tile
from lenetgpu.cpu.vector import CHANNELS, FLOAT, PIXELS, VECTOR_BYTES, WIDTH, Vectors, kernel, mean

PAIRS = (1.0, 2.0, 0.5)
OUTPUTS, POINTS = 4, 8


def _squares(points: tuple[float, ...]) -> list[float]:
    """Coefficients of the product of (x^2 - p^2) in powers of x^2, the least first."""
    minus = [-point * point for point in points]
    count = len(minus)
    return [sum(prod(some) for some in combinations(minus, count - k)) for k in range(count + 1)]


def _sum(v: Vectors, factors: list[float], values: list[Any]) -> Any:
    """The sum of factors times values; the last factor is 1."""
    found = values[-1]
    for factor, value in zip(factors[:-1], values[:-1], strict=True):
        found = v.fma(factor, value, found)
    return found


def at_points(v: Vectors, d: list[Any]) -> list[Any]:
    """Eight neighbours to their values at the eight points, 0 first and infinity last."""
    whole = _squares(PAIRS)
    found = [_sum(v, whole, d[0::2])]
    for point in PAIRS:
        rest = _squares(tuple(other for other in PAIRS if other != point))
        even, odd = _sum(v, rest, d[2::2]), _sum(v, rest, d[1:7:2])
        found += [v.fma(point, odd, even), v.fma(-point, odd, even)]
    return [*found, _sum(v, whole, d[1::2])]


def of_points(v: Vectors, m: list[Any]) -> list[Any]:
    """Products at the eight points to four neighbouring outputs."""
    sums = [v.add(m[i], m[i + 1]) for i in (1, 3, 5)]
    differences = [v.subtract(m[i], m[i + 1]) for i in (1, 3, 5)]
    found = []
    for power, parts in enumerate((sums, differences, sums, differences)):
        total = {0: m[0], 3: m[7]}.get(power)
        for point, part in zip(PAIRS, parts, strict=True):
            factor = point**power
            total = v.scaled(factor, part) if total is None else v.fma(factor, part, total)
        found.append(total)
    return found


def _transform(
    v: Vectors, x: Any, y: Any, room: Any, tiles: Any, width: Any, channels: Any, pixels: Any
) -> None:
    """An image (.., width, channels) to y (64, pixels, channels), tiles x tiles of its windows.

    `y` is where the image's first window begins; `room` holds 8 * width * channels floats.
    """
    builder = v.builder
    pixel = builder.mul(channels, v.number(FLOAT))
    vectors = builder.udiv(channels, v.number(WIDTH))
    line = builder.mul(width, pixel)
    plane = builder.mul(pixels, pixel)
    with v.loop(tiles) as row:
        top = v.at(x, (builder.mul(row.index, line), OUTPUTS))
        with v.loop(builder.mul(width, vectors)) as column:
            here = (column.index, VECTOR_BYTES)
            window = [v.load(v.at(top, here, (line, k))) for k in range(POINTS)]
            for k, value in enumerate(at_points(v, window)):
                v.store(value, v.at(room, here, (line, k)))
        with v.loop(POINTS) as point, v.loop(tiles) as tile, v.loop(vectors) as vector:
            here = (vector.index, VECTOR_BYTES)
            left = v.at(room, (point.index, line), (builder.mul(tile.index, pixel), OUTPUTS), here)
            window = [v.load(v.at(left, (pixel, k))) for k in range(POINTS)]
            at = builder.add(builder.mul(row.index, tiles), tile.index)
            out = v.at(y, (builder.mul(point.index, plane), POINTS), (at, pixel), here)
            for k, value in enumerate(at_points(v, window)):
                v.store(value, v.at(out, (plane, k)))


def _finish(
    v: Vectors, means: bool, x: Any, y: Any, tiles: Any, channels: Any, pixels: Any
) -> None:
    """Products x (64, pixels, channels) of an image to its outputs y, or those' ReLU and mean.

    `x` is where the image's first tile begins; y is (4 * tiles, 4 * tiles, channels), and half as
    high and wide where `means` is set.
    """
    builder = v.builder
    pixel = builder.mul(channels, v.number(FLOAT))
    vectors = builder.udiv(channels, v.number(WIDTH))
    plane = builder.mul(pixels, pixel)
    side = OUTPUTS // 2 if means else OUTPUTS
    line = builder.mul(builder.mul(tiles, pixel), v.number(side))
    room = v.slots(POINTS * OUTPUTS)
    with v.loop(tiles) as row, v.loop(tiles) as tile, v.loop(vectors) as vector:
        here = (vector.index, VECTOR_BYTES)
        at = builder.add(builder.mul(row.index, tiles), tile.index)
        first = v.at(x, (at, pixel), here)
        for k in range(POINTS):
            across = [v.load(v.at(first, (plane, POINTS * k + q))) for q in range(POINTS)]
            for j, value in enumerate(of_points(v, across)):
                builder.store(value, room[OUTPUTS * k + j])
        corner = v.at(y, (builder.mul(row.index, line), side), here)
        corner = v.at(corner, (builder.mul(tile.index, pixel), side))
        columns = (
            of_points(v, [builder.load(room[OUTPUTS * k + j]) for k in range(POINTS)])
            for j in range(OUTPUTS)
        )
        if means:
            columns = (
                [mean(v, [*left[i : i + 2], *right[i : i + 2]]) for i in range(0, OUTPUTS, 2)]
                for left, right in zip(columns, columns, strict=True)
            )
        for j, column in enumerate(columns):
            for i, value in enumerate(column):
                v.store(value, v.at(corner, (line, i), (pixel, j)))


def _outputs(v: Vectors, *arguments: Any) -> None:
    _finish(v, False, *arguments)


def _pooled(v: Vectors, *arguments: Any) -> None:
    _finish(v, True, *arguments)


transform = kernel(_transform)
outputs = kernel(_outputs)
pooled = kernel(_pooled)
IMAGES = 4
"""Images whose windows one product takes: operands and results stay in a core's own cache."""
Geometry = tuple[int, int, int, int, int]


def room_sizes(tiles: int, width: int, channels: int, filters: int) -> tuple[int, int, int]:
    """Floats of a thread's room for IMAGES maps: half-transformed, values, products at the points.

    Each part is a multiple of a cache line where `channels` is one of 16.
    """
    pixels = -(-IMAGES * tiles * tiles // PIXELS) * PIXELS
    return (
        POINTS * width * channels,
        POINTS * POINTS * pixels * channels,
        POINTS * POINTS * pixels * filters,
    )


def pack_points(w: np.ndarray) -> np.ndarray:
    """Filters at the points (64, C, M) to the tile's (64 * blocks, 1, C, CHANNELS), aligned."""
    parts = np.concatenate([pack_weights(point[None]) for point in w])
    packed: np.ndarray = aligned_empty(parts.shape, np.float32)
    packed[:] = parts
    return packed


@njit
def products_at_points(
    x: Any, w: Any, y: Any, rows: Any, pixels: Any, channels: Any, filters: Any
) -> None:
    """y[p, r, m] = sum over c of x[p, r, c] * w[p, m / CHANNELS, c, m % CHANNELS], 64 points p.

    Addresses of x (64, pixels, channels), packed w, y (64, pixels, filters); `rows` of the pixels
    are filled, a multiple of PIXELS, and `filters` is one of CHANNELS.
    """
    for point in range(POINTS * POINTS):
        values = x + 4 * point * pixels * channels
        sums = y + 4 * point * pixels * filters
        for block in range(0, filters, CHANNELS):
            packed = w + 4 * (point * filters + block) * channels
            for row in range(0, rows, PIXELS):
                at, out = values + 4 * row * channels, sums + 4 * (row * filters + block)
                wide_tile((at, packed, out, 1, 0, channels, channels, filters))


@njit
def convolve(x: Any, w: Any, y: Any, room: Any, geometry: Geometry, lo: int, hi: int) -> None:
    """Images lo..hi of x (N, H, W, C), convolved, to y; all four are addresses.

    `geometry` is that of `room_sizes` with a fifth entry: not 0 if ReLU and 2x2 mean follow.
    """
    tiles, width, channels, filters, means = geometry
    each = tiles * tiles
    pixels = -(-IMAGES * each // PIXELS) * PIXELS
    values = room + 4 * POINTS * width * channels
    products = values + 4 * POINTS * POINTS * pixels * channels
    side = OUTPUTS // 2 if means else OUTPUTS
    for start in range(lo, hi, IMAGES):
        count = min(IMAGES, hi - start)
        for i in range(count):
            image = x + 4 * (start + i) * width * width * channels
            at = values + 4 * i * each * channels
            transform((image, at, room, tiles, width, channels, pixels))
        rows = -(-count * each // PIXELS) * PIXELS
        products_at_points(values, w, products, rows, pixels, channels, filters)
        for i in range(count):
            at = products + 4 * i * each * filters
            out = y + 4 * (start + i) * each * side * side * filters
            if means:
                pooled((at, out, tiles, filters, pixels))
            else:
                outputs((at, out, tiles, filters, pixels))
