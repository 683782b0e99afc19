"""The CPU's register-tile microkernel and the loops around it.

One tile is P output pixels by V vectors of channels, held in registers for the whole sum over
`rows` filter rows. A row's filter columns and input channels are contiguous in an NHWC image, so
the inner loop is a broadcast-multiply-add. A fully connected layer has one row, and its pixels are
images. Importing this module imports llvmlite.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from llvmlite import ir

from lenetgpu.cpu import vector
from lenetgpu.cpu.memory import aligned_copy
from lenetgpu.cpu.native import Emitted, Native
from lenetgpu.cpu.vector import CHANNELS, FLOAT, PIXELS, VECTOR_BYTES, VECTORS, WIDTH, Vectors

_HALF = PIXELS // 2


def _sums(
    v: Vectors, pixels: list[Any], w: Any, rows: Any, row_bytes: Any, k: Any
) -> list[list[Any]]:
    """Return the VECTORS sums of each pixel: `rows` times `k` products from its address."""
    builder = v.builder
    slots = [v.slots(VECTORS) for _ in pixels]
    for slot in chain(*slots):
        builder.store(v.zero, slot)
    with v.loop(rows) as row:
        tops = [v.at(pixel, (row, row_bytes)) for pixel in pixels]
        filters = v.at(w, (builder.mul(row, k), FLOAT * CHANNELS))
        with v.loop(k) as step:
            at = v.at(filters, (step, FLOAT * CHANNELS))
            weights = [v.load(v.at(at, (i, VECTOR_BYTES))) for i in range(VECTORS)]
            for top, own in zip(tops, slots, strict=True):
                value = v.spread(v.at(top, (step, FLOAT)))
                for slot, weight in zip(own, weights, strict=True):
                    builder.store(v.fma(value, weight, builder.load(slot)), slot)
    return [[builder.load(slot) for slot in own] for own in slots]


def tile(
    v: Vectors,
    pixels: int,
    pointers: tuple[Any, Any, Any],
    shape: tuple[Any, ...],
    added: bool = False,
) -> None:
    """Emit y[p, m] = sum over rows r and k of x[r*x_row + p*x_pixel + k] * w[r, k, m].

    `pointers` are x, w and y. `shape` is (rows, x_row, k, x_pixel, y_pixel) and optionally a
    vector, the lower bound of the sums. `added` adds the sums to y.
    """
    x, w, y = pointers
    rows, x_row, k, x_pixel, y_pixel, *floor = shape
    pitch, row_bytes = v.product(x_pixel, FLOAT), v.product(x_row, FLOAT)
    starts = [v.at(x, (pitch, p)) for p in range(pixels)]
    for p, sums in enumerate(_sums(v, starts, w, rows, row_bytes, k)):
        for i, value in enumerate(sums):
            at = v.at(y, (v.product(y_pixel, FLOAT), p), (i, VECTOR_BYTES))
            total = v.add(v.load(at), value) if added else value
            v.store(v.bounded(total, floor[0]) if floor else total, at)


def windows(v: Vectors, pointers: tuple[Any, Any, Any], shape: tuple[Any, ...]) -> None:
    """Store ReLU and mean of a `tile` of 2 x PIXELS / 2 pixels: y[p, m] for PIXELS / 4 windows."""
    x, w, y = pointers
    rows, x_row, k, x_pixel, y_pixel = shape
    pitch, row_bytes = v.product(x_pixel, FLOAT), v.product(x_row, FLOAT)
    starts = [v.at(x, (row_bytes, r), (pitch, p)) for r in range(2) for p in range(_HALF)]
    sums = _sums(v, starts, w, v.number(rows), row_bytes, v.number(k))
    for p in range(_HALF // 2):
        window = sums[2 * p], sums[2 * p + 1], sums[_HALF + 2 * p], sums[_HALF + 2 * p + 1]
        for i, four in enumerate(zip(*window, strict=True)):
            out = v.at(y, (v.product(y_pixel, FLOAT), p), (i, VECTOR_BYTES))
            v.store(vector.mean(v, list(four)), out)


def _rows_times_matrix(
    v: Vectors, x: Any, w: Any, y: Any, lo: Any, hi: Any, relu: Any, *sizes: Any
) -> None:
    """Fill output lines lo..hi, all channel blocks, with narrower tiles at a line's end."""
    lines, x_image, x_line, x_pixel, x_row, line_pixels, channels, blocks, rows, k = sizes
    b = v.builder
    with b.goto_entry_block():
        scratch = b.ptrtoint(b.alloca(vector.f32, size=PIXELS * CHANNELS), vector.i64)
    lowest = ir.Constant(v.type, [float("-inf")] * WIDTH)
    floor = b.select(b.icmp_signed("!=", relu, v.number(0)), v.zero, lowest)
    with v.steps(lo, hi, 1) as line, v.loop(blocks) as block:
        image, row = b.sdiv(line, lines), b.srem(line, lines)
        start = v.at(x, (v.product(image, x_image), FLOAT), (v.product(row, x_line), FLOAT))
        line_y = v.at(y, (v.product(line, line_pixels, channels), FLOAT))
        packed = v.at(w, (v.product(block, rows, k), FLOAT * CHANNELS))
        left = b.sub(channels, v.product(block, CHANNELS))
        whole = b.icmp_signed(">=", left, v.number(CHANNELS))
        pitch = b.select(whole, channels, v.number(CHANNELS))
        done: Any = v.number(0)
        for pixels in (PIXELS, _HALF, 1):
            end = b.sub(line_pixels, v.number(pixels - 1))
            with v.steps(done, end, pixels) as pixel:
                out = v.at(line_y, (v.product(pixel, channels), FLOAT), (block, FLOAT * CHANNELS))
                at = v.at(start, (v.product(pixel, x_pixel), FLOAT))
                pointers = at, packed, b.select(whole, out, scratch)
                tile(v, pixels, pointers, (rows, x_row, k, x_pixel, pitch, floor))
                with b.if_then(b.not_(whole)), v.loop(pixels) as p:
                    source = v.at(scratch, (p, FLOAT * CHANNELS))
                    target = v.at(out, (v.product(p, channels), FLOAT))
                    with v.loop(left) as i:
                        a, z = (v.pointer(v.at(end, (i, FLOAT))) for end in (source, target))
                        b.store(b.load(a, align=FLOAT), z, align=FLOAT)
            done = b.add(
                done, v.product(b.sdiv(b.sub(line_pixels, done), v.number(pixels)), pixels)
            )


ROWS_TIMES_MATRIX = Emitted("rows_times_matrix", 16, _rows_times_matrix)


@dataclass(frozen=True)
class Lines:
    """ROWS_TIMES_MATRIX with weights (blocks, rows, k, CHANNELS), padded in the last axis."""

    weights: np.ndarray
    kernel: Native

    def run(
        self, pointers: Sequence[int], geometry: Sequence[int], lo: int, hi: int, relu: bool = False
    ) -> None:
        """Fill output lines lo..hi of y from x, with ReLU on request; `pointers` are float32.

        `geometry` is (lines per image, x elements per image, x elements per line, x
        elements per pixel, x elements per filter row, pixels per line, output channels).
        """
        x, y = pointers
        shape = self.weights.shape[:3]
        self.kernel(x, self.weights.ctypes.data, y, lo, hi, int(relu), *geometry, *shape)


def pack_weights(w: np.ndarray) -> np.ndarray:
    """Pack (rows, k, M) float32 as the tile's (blocks, rows, k, CHANNELS), aligned."""
    rows, k, channels = w.shape
    blocks = -(-channels // CHANNELS)
    padded = np.zeros((rows, k, blocks * CHANNELS), np.float32)
    padded[:, :, :channels] = w
    return aligned_copy(padded.reshape(rows, k, blocks, CHANNELS).transpose(2, 0, 1, 3))
