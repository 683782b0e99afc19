"""Filters for the fp16 Winograd kernel, in the order they are read; NumPy on the host."""

import math
from collections.abc import Sequence
from dataclasses import replace

from lenetgpu.arrays import Array, np
from lenetgpu.stages.fused import split
from lenetgpu.stages.fused.cuda_cores.tuning import POINTS, filter_transform
from lenetgpu.stages.fused.wgmma import fp16_pack
from lenetgpu.stages.rounding import to_half

# Exponent by which pool1's scale is lowered: eight neighbours in 0..m sum to up to 8.5m at a point.
# Scales leave maps up to 2**15; 8.5 / 8 times that is still below fp16's largest.
GROWTH = 3
_MEAN = 0.25


def pack(tensors: Sequence[Array]) -> split.Packed:
    """Pack as for fp16x3, with this kernel's convolutions: pool1's scale is lower by `GROWTH`.

    `conv2` (8, 2, 5, 2, 2, 64, 8) [point][part][row][channel/16][/8][output][8]; all points
    share one scale, so that their products can be added.
    """
    direct = fp16_pack.pack(tensors)
    parts, k2 = split.parts(at_points(tensors[1]).reshape(POINTS, 5, 2, 2, 8, 64), axis=1)
    conv2 = np.ascontiguousarray(parts.transpose(0, 1, 2, 3, 4, 6, 5))
    a1, a2, _ = split.activation_exponents(tensors)
    factors = replace(
        direct.factors,
        bytes=math.ldexp(direct.factors.bytes, -GROWTH),
        floats=math.ldexp(direct.factors.floats, -GROWTH),
        conv2=math.ldexp(_MEAN, a2 - k2 - (a1 - GROWTH)),
    )
    conv1 = fp16_pack.in_pair_order(direct.conv1, PAIR_ORDER)
    return replace(direct, conv1=conv1, conv2=conv2, factors=factors)


# Points in the order they are multiplied, by their number in `filter_transform`: 0, infinity,
# pairs.
ORDER = (0, 7, 1, 2, 3, 4, 5, 6)


# fp16's pixel pairs (3 * row + pair) in the order of K's pairs 4 * m + q. Lane q of four takes the
# three pairs of row q and one of row 4, so that pairs it holds serve the next columns too; pair 15
# has no weight.
PAIR_ORDER = (0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, 12, 13, 14, 15)


def pack_conv1(conv1: Array) -> Array:
    """Arrange (5, 5, 1, 32) filters as (2, 2, 2, 64, 8) fp16: fp16's, with K in `PAIR_ORDER`."""
    return fp16_pack.in_pair_order(fp16_pack.pack_conv1(conv1), PAIR_ORDER)


def at_points(conv2: Array) -> Array:
    """Transform each row of (5, 5, 32, 64) filters to eight points: (8, 5, 32, 64) float64."""
    transform = filter_transform()[list(ORDER)]
    return np.asarray(np.einsum("pk,rkco->prco", transform, conv2.astype(np.float64)))


def in_fp16(conv2: Array) -> Array:
    """Transform (5, 5, 32, 64) filters along rows to the points of `ORDER`: (8, 5, 32, 64) fp16.

    Rounding preserves the sum of each point's five rows: upright strokes are alike in all five.
    """
    return np.stack([to_half(rows[:, None])[:, 0] for rows in at_points(conv2)])


def pack_conv2(conv2: Array) -> Array:
    """Arrange filters as (8 point, 5 row, 2 channel/16, 2 channel/8, 64 output, 8) fp16."""
    vectors = in_fp16(conv2).reshape(POINTS, 5, 2, 2, 8, 64).transpose(0, 1, 2, 3, 5, 4)
    return np.ascontiguousarray(vectors)
