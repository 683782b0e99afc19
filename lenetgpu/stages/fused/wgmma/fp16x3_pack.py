"""Weights for the fp16x3 kernels on wgmma: split into fp16 hi + lo, in the order they are read."""

from __future__ import annotations

from collections.abc import Sequence

from lenetgpu.arrays import Array, np
from lenetgpu.network import CLASSES
from lenetgpu.stages.fused import split
from lenetgpu.stages.fused.wgmma.fp16_pack import arrange_conv1

CELLS = 8
"""Cells of 8 features that the classifier multiplies before it moves their sums to registers."""
_BYTE_PIXEL_EXPONENT = -8  # conv1.cuh takes byte / 256
_MEAN = 0.25


def _pack_conv1(conv1: Array) -> tuple[Array, int]:
    """(5, 5, 1, 32) filters as the kernel reads them, and their exponent."""
    parts, k = split.halves(conv1)
    return np.ascontiguousarray(np.stack([arrange_conv1(part) for part in parts])), k


def _pack_conv2(conv2: Array) -> tuple[Array, int]:
    """(5, 5, 32, 64) filters as the kernel reads them, and their exponent."""
    parts, k = split.halves(conv2.reshape(25, 4, 8, 64), axis=1)
    return np.ascontiguousarray(parts.transpose(0, 1, 2, 4, 3)), k


def _pack_fc1(fc1: Array) -> tuple[Array, int]:
    """(1024, 128) weights in the features' order, and their exponent.

    Features lie as cells of one thread: cell 32*warp + 4*g + px, element 2*py + h is channel
    16*warp + 8*h + g of pooled position (py, px).
    """
    # py, px, warp, h, g, output -> warp, g, px, py, h, output
    cells = fc1.reshape(4, 4, 4, 2, 8, 128).transpose(2, 4, 1, 0, 3, 5)
    parts, k = split.halves(cells.reshape(-1, CELLS, 8, 128), axis=1)
    return np.ascontiguousarray(parts.transpose(0, 1, 2, 4, 3)), k


def pack(tensors: Sequence[Array]) -> split.Packed:
    """The network's four float32 tensors, conv1 first, as fp16 hi and lo, but for fc2.

    `conv1` (2, 2, 2, 64, 8) [part][K step][half][column][8] as `arrange_conv1`, `conv2`
    (25, 2, 4, 64, 8) [tap][part][channel/8][map][8], `fc1` (16, 2, 8, 128, 8)
    [chunk][part][k/8][output][8], `fc2` (128, 12) float32, zeros past class 9.
    """
    conv1, k1 = _pack_conv1(tensors[0])
    conv2, k2 = _pack_conv2(tensors[1])
    fc1, k3 = _pack_fc1(tensors[2])
    fc2 = np.zeros((128, -(-CLASSES // 4) * 4), np.float32)
    fc2[:, :CLASSES] = tensors[3]
    a1, a2, _ = split.activation_exponents(tensors)
    return split.Packed(
        conv1,
        conv2,
        fc1,
        fc2,
        split.factors(
            _MEAN, (_BYTE_PIXEL_EXPONENT, split.FLOAT_PIXEL_EXPONENT), (k1, k2, k3, 0), (a1, a2, 0)
        ),
    )
