"""Winograd F(4x4,5x5) on vectors of channels: the transforms around the tile's products.

A 5x5 convolution's 4x4 outputs are computed from 64 products. An 8x8 input window and the filter
are evaluated as polynomials at 0, +-1, +-2, +-1/2 and infinity along either axis, and multiplied
point by point (Lavin & Gray, arXiv 1509.09308). Importing this module imports llvmlite.
"""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from lenetgpu.cpu.memory import aligned_copy
from lenetgpu.cpu.native import Emitted
from lenetgpu.cpu.tile import pack_weights, tile
from lenetgpu.cpu.vector import CHANNELS, FLOAT, PIXELS, VECTOR_BYTES, WIDTH, Vectors, mean

PAIRS = (1.0, 2.0, 0.5)
OUTPUTS, POINTS = 4, 8
PART = 8


def _squares(points: tuple[float, ...]) -> list[float]:
    """Return the coefficients of the product of (x^2 - p^2) in powers of x^2, lowest first."""
    minus = [-point * point for point in points]
    count = len(minus)
    return [sum(prod(some) for some in combinations(minus, count - k)) for k in range(count + 1)]


def _sum(v: Vectors, factors: list[float], values: list[Any]) -> Any:
    """Return the sum of factors times values; the last factor is 1."""
    total = values[-1]
    for factor, value in zip(factors[:-1], values[:-1], strict=True):
        total = v.fma(factor, value, total)
    return total


def at_points(v: Vectors, d: list[Any]) -> list[Any]:
    """Transform eight neighbours to the eight transform points, 0 first and infinity last."""
    whole = _squares(PAIRS)
    found = [_sum(v, whole, d[0::2])]
    for point in PAIRS:
        rest = _squares(tuple(other for other in PAIRS if other != point))
        even, odd = _sum(v, rest, d[2::2]), _sum(v, rest, d[1:7:2])
        found += [v.fma(point, odd, even), v.fma(-point, odd, even)]
    return [*found, _sum(v, whole, d[1::2])]


def of_points(v: Vectors, m: list[Any]) -> list[Any]:
    """Transform products at the eight transform points to four neighbouring outputs."""
    sums = [v.add(m[i], m[i + 1]) for i in (1, 3, 5)]
    differences = [v.builder.fsub(m[i], m[i + 1]) for i in (1, 3, 5)]
    found = []
    for power, parts in enumerate((sums, differences, sums, differences)):
        total = {0: m[0], 3: m[7]}.get(power)
        for point, part in zip(PAIRS, parts, strict=True):
            factor = point**power
            total = v.scaled(factor, part) if total is None else v.fma(factor, part, total)
        found.append(total)
    return found


def transform(
    v: Vectors, x: Any, y: Any, workspace: Any, tiles: Any, width: Any, channels: Any, pixels: Any
) -> None:
    """Transform tiles x tiles windows of an image to their values y (64, pixels, channels).

    The image is (.., width, channels); `workspace` holds 8 * width * channels floats.
    """
    builder = v.builder
    pixel = builder.mul(channels, v.number(FLOAT))
    vectors = builder.udiv(channels, v.number(WIDTH))
    line = builder.mul(width, pixel)
    plane = builder.mul(pixels, pixel)
    with v.loop(tiles) as row:
        top = v.at(x, (builder.mul(row, line), OUTPUTS))
        with v.loop(builder.mul(width, vectors)) as column:
            here = (column, VECTOR_BYTES)
            window = [v.load(v.at(top, here, (line, k))) for k in range(POINTS)]
            for k, value in enumerate(at_points(v, window)):
                v.store(value, v.at(workspace, here, (line, k)))
        with v.loop(POINTS) as point, v.loop(tiles) as tile, v.loop(vectors) as vector:
            here = (vector, VECTOR_BYTES)
            left = v.at(workspace, (point, line), (builder.mul(tile, pixel), OUTPUTS), here)
            window = [v.load(v.at(left, (pixel, k))) for k in range(POINTS)]
            at = builder.add(builder.mul(row, tiles), tile)
            out = v.at(y, (builder.mul(point, plane), POINTS), (at, pixel), here)
            for k, value in enumerate(at_points(v, window)):
                v.store(value, v.at(out, (plane, k)))


def finish(v: Vectors, means: bool, x: Any, y: Any, tiles: Any, channels: Any, pixels: Any) -> None:
    """Transform an image's products x (64, pixels, channels) to its outputs y.

    y is (4 * tiles, 4 * tiles, channels); `means` applies ReLU and the 2x2 mean.
    """
    builder = v.builder
    pixel = builder.mul(channels, v.number(FLOAT))
    vectors = builder.udiv(channels, v.number(WIDTH))
    plane = builder.mul(pixels, pixel)
    side = OUTPUTS // 2 if means else OUTPUTS
    line = builder.mul(builder.mul(tiles, pixel), v.number(side))
    sums = v.slots(POINTS * OUTPUTS)
    with v.loop(tiles) as row, v.loop(tiles) as tile, v.loop(vectors) as vector:
        here = (vector, VECTOR_BYTES)
        at = builder.add(builder.mul(row, tiles), tile)
        first = v.at(x, (at, pixel), here)
        for k in range(POINTS):
            across = [v.load(v.at(first, (plane, POINTS * k + q))) for q in range(POINTS)]
            for j, value in enumerate(of_points(v, across)):
                builder.store(value, sums[OUTPUTS * k + j])
        corner = v.at(y, (builder.mul(row, line), side), here)
        corner = v.at(corner, (builder.mul(tile, pixel), side))
        columns = (
            of_points(v, [builder.load(sums[OUTPUTS * k + j]) for k in range(POINTS)])
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


# Images whose windows one product covers: operands and results stay in a core's own cache.
IMAGES = 4


def workspace_sizes(tiles: int, width: int, channels: int, filters: int) -> tuple[int, int, int]:
    """Return the floats of a thread's workspace for IMAGES maps, in three parts.

    They hold half-transformed windows, input values at the points, and products at the points.
    """
    pixels = -(-IMAGES * tiles * tiles // PIXELS) * PIXELS
    whole = POINTS * POINTS * pixels
    return POINTS * width * channels, whole * channels, whole * filters


def pack_points(w: np.ndarray) -> np.ndarray:
    """Pack filters at the points (64, C, M) as (64 * blocks, 1, C, CHANNELS), aligned."""
    return aligned_copy(np.concatenate([pack_weights(point[None]) for point in w]))


def products(
    v: Vectors, pointers: tuple[Any, Any, Any], rows: Any, pixels: Any, channels: Any, filters: Any
) -> None:
    """Emit y[p, r, m] = sum over c of x[p, r, c] * w[p, m / CHANNELS, c, m % CHANNELS].

    `pointers` are x (64, pixels, channels), packed w, y (64, pixels, filters). `rows` pixels are
    filled, rounded up to a multiple of PIXELS; `filters` is a multiple of CHANNELS. Parts of PART
    channels are summed separately, because most of the error comes from long sums.
    """
    x, w, y = pointers
    with v.loop(POINTS * POINTS) as point:
        values = v.at(x, (v.product(point, pixels, channels), FLOAT))
        sums = v.at(y, (v.product(point, pixels, filters), FLOAT))
        packed = v.at(w, (v.product(point, filters, channels), FLOAT))
        with v.steps(0, filters, CHANNELS) as block, v.steps(0, rows, PIXELS) as row:
            own = v.at(packed, (v.product(block, channels), FLOAT))
            at = v.at(values, (v.product(row, channels), FLOAT))
            out = v.at(sums, (v.product(row, filters), FLOAT), (block, FLOAT))
            shape = v.number(1), v.number(0), v.number(PART), channels, filters
            tile(v, PIXELS, (at, own, out), shape)
            with v.steps(PART, channels, PART) as part:
                further = v.at(at, (part, FLOAT)), v.at(own, (part, FLOAT * CHANNELS)), out
                tile(v, PIXELS, further, shape, added=True)


def convolve(
    v: Vectors,
    image: Callable[[Any], Any],
    pointers: tuple[Any, Any, Any],
    part: tuple[Any, Any],
    sizes: tuple[Any, ...],
    means: bool,
) -> None:
    """Convolve the images of `part` (lo, hi) into y, with ReLU and 2x2 mean if `means` is set.

    `image` emits the address of an image (H, W, C) by number. `pointers` are those of the packed
    filters, y, and the floats of `workspace_sizes`. `sizes` is (tiles, width, channels, filters).
    """
    tiles, width, channels, filters = map(v.number, sizes)
    (w, y, workspace), (lo, hi), b = pointers, part, v.builder
    each = v.product(tiles, tiles)
    most = b.add(v.product(each, IMAGES), v.number(PIXELS - 1))
    pixels = b.and_(most, v.number(-PIXELS))
    values = v.at(workspace, (v.product(width, channels), POINTS * FLOAT))
    results = v.at(values, (v.product(pixels, channels), POINTS * POINTS * FLOAT))
    side = OUTPUTS // 2 if means else OUTPUTS
    with v.steps(lo, hi, IMAGES) as start:
        count = v.least(IMAGES, b.sub(hi, start))
        with v.loop(count) as i:
            source = image(b.add(start, i))
            into = v.at(values, (v.product(i, each, channels), FLOAT))
            transform(v, source, into, workspace, tiles, width, channels, pixels)
        rows = v.product(count, each)
        products(v, (values, w, results), rows, pixels, channels, filters)
        with v.loop(count) as i:
            at = v.at(results, (v.product(i, each, filters), FLOAT))
            offset = v.product(b.add(start, i), each, filters)
            finish(v, means, at, v.at(y, (offset, side * side * FLOAT)), tiles, filters, pixels)


def _kernel(
    v: Vectors, x: Any, w: Any, y: Any, workspace: Any, lo: Any, hi: Any, *sizes: Any, means: bool
) -> None:
    image_bytes = v.product(sizes[1], sizes[1], sizes[2], FLOAT)
    convolve(v, lambda i: v.at(x, (i, image_bytes)), (w, y, workspace), (lo, hi), sizes, means)


CONVOLVE = Emitted("winograd", 10, partial(_kernel, means=False))
CONVOLVE_POOL = Emitted("winograd_pooled", 10, partial(_kernel, means=True))
