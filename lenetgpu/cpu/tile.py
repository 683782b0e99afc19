"""The CPU's register-tile microkernel and the loops around it.

One tile is P output pixels by V vectors of channels, held in registers for the whole sum.
Its depth runs over `rows` filter rows; within one row the products of all filter columns and
input channels are contiguous in an NHWC image, so the inner loop is a broadcast-multiply-add
with no index arithmetic. A fully connected layer is the case of one row whose pixels are images.
Numba's own vectoriser keeps no register tile, so the tile is emitted as LLVM vector IR.
Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from lenetgpu.cpu.memory import aligned_empty


def _tile_shape() -> tuple[int, int, int]:
    """(vector width, vectors, pixels) that fill the host's vector registers."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 2, 8
    if features.get("avx"):
        return 8, 2, 4
    return 4, 2, 4


WIDTH, VECTORS, PIXELS = _tile_shape()
CHANNELS = WIDTH * VECTORS


def _emit_tile(context: Any, builder: Any, args: Any, pixels: int) -> Any:
    x_addr, w_addr, y_addr, rows, x_row, depth, x_pixel, y_pixel = args
    f32, i64 = ir.FloatType(), ir.IntType(64)
    vector = ir.VectorType(f32, WIDTH)
    declare: Any = cgutils.get_or_insert_function
    fma = declare(builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{WIDTH}f32")
    zero = ir.Constant(vector, None)
    four = ir.Constant(i64, 4)
    allocate: Any = cgutils.alloca_once
    sums = [[allocate(builder, vector) for _ in range(VECTORS)] for _ in range(pixels)]
    for row in sums:
        for slot in row:
            builder.store(zero, slot)

    def bytes_of(count: Any) -> Any:
        return builder.mul(count, four)

    def vector_at(address: Any) -> Any:
        return builder.inttoptr(address, vector.as_pointer())

    w_bytes = ir.Constant(i64, CHANNELS * 4)
    with cgutils.for_range(builder, rows) as row_loop:
        x_base = builder.add(x_addr, bytes_of(builder.mul(row_loop.index, x_row)))
        w_base = builder.add(w_addr, builder.mul(builder.mul(row_loop.index, depth), w_bytes))
        with cgutils.for_range(builder, depth) as loop:
            w_k = builder.add(w_base, builder.mul(loop.index, w_bytes))
            weights = [
                builder.load(vector_at(builder.add(w_k, ir.Constant(i64, v * WIDTH * 4))), align=4)
                for v in range(VECTORS)
            ]
            x_k = builder.add(x_base, bytes_of(loop.index))
            for p in range(pixels):
                offset = bytes_of(builder.mul(ir.Constant(i64, p), x_pixel))
                pointer = builder.inttoptr(builder.add(x_k, offset), f32.as_pointer())
                lane = builder.insert_element(
                    ir.Constant(vector, ir.Undefined),
                    builder.load(pointer, align=4),
                    ir.Constant(ir.IntType(32), 0),
                )
                spread = builder.shuffle_vector(
                    lane,
                    ir.Constant(vector, ir.Undefined),
                    ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), None),
                )
                for v in range(VECTORS):
                    slot = sums[p][v]
                    builder.store(builder.call(fma, [spread, weights[v], builder.load(slot)]), slot)
    for p in range(pixels):
        y_p = builder.add(y_addr, bytes_of(builder.mul(ir.Constant(i64, p), y_pixel)))
        for v in range(VECTORS):
            address = builder.add(y_p, ir.Constant(i64, v * WIDTH * 4))
            builder.store(builder.load(sums[p][v]), vector_at(address), align=4)
    return context.get_dummy_value()


def _make_tile(pixels: int) -> Any:
    @intrinsic  # type: ignore[misc, untyped-decorator, unused-ignore]
    def tile(  # type: ignore[no-untyped-def]
        typingctx, x_addr, w_addr, y_addr, rows, x_row, depth, x_pixel, y_pixel
    ):
        """y[p, m] = sum over rows r and depth k of x[r*x_row + p*x_pixel + k] * w[r, k, m]."""
        signature = types.void(*([types.int64] * 8))

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return _emit_tile(context, builder, args, pixels)

        return signature, codegen

    return tile


_wide_tile = _make_tile(PIXELS)
_half_tile = _make_tile(PIXELS // 2)
_narrow_tile = _make_tile(1)
_HALF = PIXELS // 2


@numba.njit(cache=True, nogil=True)  # type: ignore[misc, untyped-decorator, unused-ignore]
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
        x0 = x.ctypes.data + 4 * ((line // lines) * x_image + (line % lines) * x_line)
        y0 = y.ctypes.data + 4 * line * line_pixels * channels
        for block in range(blocks):
            w0 = w.ctypes.data + 4 * block * rows * depth * CHANNELS
            full = (block + 1) * CHANNELS <= channels
            pixel = 0
            while pixel < line_pixels:
                left = line_pixels - pixel
                count = PIXELS if left >= PIXELS else (_HALF if left >= _HALF else 1)
                out = y0 + 4 * (pixel * channels + block * CHANNELS)
                step = channels
                if not full:
                    out = scratch.ctypes.data
                    step = CHANNELS
                at = x0 + 4 * pixel * x_pixel
                if count == PIXELS:
                    _wide_tile(at, w0, out, rows, x_row, depth, x_pixel, step)
                elif count == _HALF:
                    _half_tile(at, w0, out, rows, x_row, depth, x_pixel, step)
                else:
                    _narrow_tile(at, w0, out, rows, x_row, depth, x_pixel, step)
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
