"""The CPU's register-tile microkernel and the loops around it.

One tile is P output pixels by V vectors of channels, held in registers for the whole sum.
Its depth runs over `rows` filter rows; within one row the products of all filter columns and
input channels are contiguous in an NHWC image, so the inner loop is a broadcast-multiply-add
with no index arithmetic. A fully connected layer is the case of one row whose pixels are images.
Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lenetgpu.cpu.jit import njit
from lenetgpu.cpu.memory import aligned_empty
from lenetgpu.cpu.vector import (
    CHANNELS,
    FLOAT,
    PIXELS,
    VECTOR_BYTES,
    VECTORS,
    Vectors,
    kernel,
    mean,
)

_HALF = PIXELS // 2


def _sums(
    v: Vectors, pixels: list[Any], w: Any, rows: Any, row_bytes: Any, depth: Any
) -> list[list[Any]]:
    """The VECTORS sums of each pixel: of `rows` times `depth` products from its address on."""
    builder = v.builder
    slots = [v.slots(VECTORS) for _ in pixels]
    for own in slots:
        for slot in own:
            builder.store(v.zero, slot)
    with v.loop(rows) as row:
        tops = [v.at(pixel, (row.index, row_bytes)) for pixel in pixels]
        filters = v.at(w, (builder.mul(row.index, depth), FLOAT * CHANNELS))
        with v.loop(depth) as step:
            at = v.at(filters, (step.index, FLOAT * CHANNELS))
            weights = [v.load(v.at(at, (i, VECTOR_BYTES))) for i in range(VECTORS)]
            for top, own in zip(tops, slots, strict=True):
                value = v.spread(v.at(top, (step.index, FLOAT)))
                for slot, weight in zip(own, weights, strict=True):
                    builder.store(v.fma(value, weight, builder.load(slot)), slot)
    return [[builder.load(slot) for slot in own] for own in slots]


def _make_tile(pixels: int) -> Any:
    def tile(
        v: Vectors, x: Any, w: Any, y: Any, rows: Any, x_row: Any, depth: Any, *pitches: Any
    ) -> None:
        """y[p, m] = sum over rows r and depth k of x[r*x_row + p*x_pixel + k] * w[r, k, m]."""
        x_pixel, y_pixel = (v.builder.mul(pitch, v.number(FLOAT)) for pitch in pitches)
        row_bytes = v.builder.mul(x_row, v.number(FLOAT))
        starts = [v.at(x, (x_pixel, p)) for p in range(pixels)]
        for p, sums in enumerate(_sums(v, starts, w, rows, row_bytes, depth)):
            for i, value in enumerate(sums):
                v.store(value, v.at(y, (y_pixel, p), (i, VECTOR_BYTES)))

    return kernel(tile)


wide_tile = _make_tile(PIXELS)
_half_tile = _make_tile(_HALF)
_narrow_tile = _make_tile(1)


def _windows(
    v: Vectors, x: Any, w: Any, y: Any, rows: Any, x_row: Any, depth: Any, *pitches: Any
) -> None:
    """ReLU and mean of a tile of 2 x _HALF pixels: y[p, m] for _HALF / 2 windows."""
    x_pixel, y_pixel = (v.builder.mul(pitch, v.number(FLOAT)) for pitch in pitches)
    row_bytes = v.builder.mul(x_row, v.number(FLOAT))
    starts = [v.at(x, (row_bytes, r), (x_pixel, p)) for r in range(2) for p in range(_HALF)]
    sums = _sums(v, starts, w, rows, row_bytes, depth)
    for p in range(_HALF // 2):
        window = sums[2 * p], sums[2 * p + 1], sums[_HALF + 2 * p], sums[_HALF + 2 * p + 1]
        for i, four in enumerate(zip(*window, strict=True)):
            v.store(mean(v, list(four)), v.at(y, (y_pixel, p), (i, VECTOR_BYTES)))


windows_tile = kernel(_windows)


@njit
def rows_times_matrix(
    x: np.ndarray,
    w: np.ndarray,
    y: np.ndarray,
    geometry: tuple[int, int, int, int, int, int, int],
    lo: int,
    hi: int,
) -> None:
    """Fill output lines lo..hi of y (float32, flat) from x (float32, flat) and packed weights.

    `w` is (blocks, rows, depth, CHANNELS), zero-padded in its last axis. `geometry` is
    (lines per image, x elements per image, x elements per line, x elements per pixel,
    x elements per filter row, pixels per line, output channels).
    """
    lines, x_image, x_line, x_pixel, x_row, line_pixels, channels = geometry
    blocks, rows, depth, _ = w.shape
    scratch = np.empty(PIXELS * CHANNELS, np.float32)
    for line in range(lo, hi):
        x0 = np.int64(x.ctypes.data) + 4 * ((line // lines) * x_image + (line % lines) * x_line)
        y0 = np.int64(y.ctypes.data) + 4 * line * line_pixels * channels
        for block in range(blocks):
            w0 = np.int64(w.ctypes.data) + 4 * block * rows * depth * CHANNELS
            full = (block + 1) * CHANNELS <= channels
            pixel = 0
            while pixel < line_pixels:
                left = line_pixels - pixel
                count = PIXELS if left >= PIXELS else (_HALF if left >= _HALF else 1)
                out = y0 + 4 * (pixel * channels + block * CHANNELS)
                step = channels
                if not full:
                    out = np.int64(scratch.ctypes.data)
                    step = CHANNELS
                at = x0 + 4 * pixel * x_pixel
                if count == PIXELS:
                    wide_tile((at, w0, out, rows, x_row, depth, x_pixel, step))
                elif count == _HALF:
                    _half_tile((at, w0, out, rows, x_row, depth, x_pixel, step))
                else:
                    _narrow_tile((at, w0, out, rows, x_row, depth, x_pixel, step))
                if not full:
                    for p in range(count):
                        for m in range(channels - block * CHANNELS):
                            index = (line * line_pixels + pixel + p) * channels + block * CHANNELS
                            y[index + m] = scratch[p * CHANNELS + m]
                pixel += count


def pack_weights(w: np.ndarray) -> np.ndarray:
    """(rows, depth, M) float32 to the microkernel's (blocks, rows, depth, CHANNELS), aligned."""
    rows, depth, channels = w.shape
    blocks = -(-channels // CHANNELS)
    padded = np.zeros((rows, depth, blocks * CHANNELS), np.float32)
    padded[:, :, :channels] = w
    split = padded.reshape(rows, depth, blocks, CHANNELS)
    packed: np.ndarray = aligned_empty((blocks, rows, depth, CHANNELS), np.float32)
    packed[:] = split.transpose(2, 0, 1, 3)
    return packed
