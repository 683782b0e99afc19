"""Filters for the fp16x3 kernel with Winograd, split, in the order they are read; on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lenetgpu.arrays import Array, np
from lenetgpu.stages.fused import split
from lenetgpu.stages.fused.cuda_cores.winograd import POINTS
from lenetgpu.stages.fused.wgmma import fp16x3_pack
from lenetgpu.stages.fused.wgmma_winograd.fp16_pack import at_points, in_pair_order

GROWTH = 3
"""Exponent that pool1's scale is lowered by: eight neighbours in 0..m are up to 8.5m at a point.

Scales leave maps up to 2**15; 8.5 / 8 times that is still below fp16's largest.
"""
_MEAN = 0.25


def pack_conv2(conv2: Array) -> tuple[Array, int]:
    """(5, 5, 32, 64) filters as (8, 2, 5, 2, 2, 64, 8) fp16, and their exponent.

    The order is point, part, row, channel/16, /8, output, 8; all points have one scale, so that
    their products can be added.
    """
    rows = at_points(conv2).reshape(POINTS, 5, 2, 2, 8, 64)
    parts, k = split.halves(rows, axis=1)
    return np.ascontiguousarray(parts.transpose(0, 1, 2, 3, 4, 6, 5)), k


def pack(tensors: Sequence[Array]) -> split.Packed:
    """As fp16x3's packing, the convolutions for this kernel: pool1 at a scale lower by `GROWTH`."""
    direct = fp16x3_pack.pack(tensors)
    conv2, k2 = pack_conv2(tensors[1])
    a1, a2, _ = split.activation_exponents(tensors)
    factors = replace(
        direct.factors,
        bytes=math.ldexp(direct.factors.bytes, -GROWTH),
        floats=math.ldexp(direct.factors.floats, -GROWTH),
        conv2=math.ldexp(_MEAN, a2 - k2 - (a1 - GROWTH)),
    )
    return replace(direct, conv1=in_pair_order(direct.conv1), conv2=conv2, factors=factors)
