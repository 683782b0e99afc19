"""Filters for the fp16 kernel with Winograd on mma.sync, in the order lanes read them; NumPy."""

from __future__ import annotations

from lenetgpu.arrays import Array, np
from lenetgpu.stages.fused.cuda_cores.winograd import POINTS
from lenetgpu.stages.fused.mma.pack import fragments
from lenetgpu.stages.fused.wgmma_winograd import fp16_pack

WARPS = 8
"""Warps of a block, 8 of conv2's outputs each."""


def channel_order() -> Array:
    """(32,) which channel conv2's K has where: a cell is a pair of each plane of 8 channels."""
    cell, item = np.divmod(np.arange(32), 8)
    order: Array = 8 * (item // 2) + 2 * cell + item % 2
    return order


def output_order() -> Array:
    """(64,) conv2's outputs, warp after warp: a warp's are one cell of the features."""
    warp, column = np.divmod(np.arange(64), 8)
    order: Array = 32 * (warp // 4) + 8 * (column // 2) + 2 * (warp % 4) + column % 2
    return order


def pack_conv1(conv1: Array) -> Array:
    """(5, 5, 1, 32) filters as (2, 4, 32, 2, 2, 4) fp16: scale, channel/8, lane, dx, K step, 4.

    The scales and K are those of the kernels on wgmma.
    """
    columns = fp16_pack.pack_conv1(conv1).transpose(0, 1, 2, 4, 3).reshape(2, 32, 64)
    packed = fragments(columns).reshape(2, 2, 4, 32, 2, 4).transpose(0, 2, 3, 4, 1, 5)
    return np.ascontiguousarray(packed)


def pack_conv2(conv2: Array) -> Array:
    """(5, 5, 32, 64) filters as (8, 5, 8, 32, 2, 4) fp16: point, row, warp, lane, K step, 4.

    Infinity is the first point, 0 the second; the others are as `fp16_pack.ORDER` has them.
    """
    points = fp16_pack.in_halves(conv2)[[1, 0, *range(2, POINTS)]]
    matrix = points[:, :, channel_order()][:, :, :, output_order()]
    packed = fragments(matrix).reshape(POINTS, 5, 2, WARPS // 2, 32, 2, 4)
    packed = packed.transpose(0, 1, 3, 5, 4, 2, 6).reshape(POINTS, 5, WARPS, 32, 2, 4)
    return np.ascontiguousarray(packed)
