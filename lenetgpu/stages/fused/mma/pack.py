"""Weights for the mma.sync kernels: in the order lanes read them, as fp16 or as fp16 hi + lo.

With two parts every operand is scaled by a power of two, chosen from the weights so that no
activation of images within +-`PIXEL_BOUND` overflows fp16; with one part scales are 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lenetgpu.network import PIXEL_SCALE

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PIXEL_BOUND = 4.0
FLOAT_PIXEL_EXPONENT = 8
_HALF_EXPONENT = 15


@dataclass(frozen=True)
class Packed:
    """Operands of one or two parts, fp16, on the host, and the factors that undo their scales.

    The convolutions' factors hold the mean's 1/4, halved, since the kernels' ReLUs are doubled.

    `conv1` [part][channel/8][lane][dx][K step][4], `conv2`
    [tap][half of the outputs, with two parts][K step][part][output/16][lane][8], `fc1`
    [slice][part][K step][output/16][lane][8], `fc2` [part][K step][lane][8].
    """

    conv1: Array
    conv2: Array
    fc1: Array
    fc2: Array
    scale_bytes: float
    scale_floats: float
    scale_conv2: float
    scale_fc1: float
    scale_fc2: float


def fragments(matrix: Array) -> Array:
    """(..., K, N) as mma's B: (..., K/16, N/16, 32 lanes, 8), two tiles of 8 columns a lane."""
    *outer, depth, width = matrix.shape
    split = matrix.reshape(*outer, depth // 16, 2, 4, 2, width // 16, 2, 8)
    # step, half, quad, pair, columns/16, tile, column -> step, columns/16, lane, tile, half, pair
    at = len(outer)
    order = (0, 4, 6, 2, 5, 1, 3)
    moved = split.transpose(*range(at), *(at + axis for axis in order))
    return moved.reshape(*outer, depth // 16, width // 16, 32, 8)


def feature_order() -> Array:
    """(1024,) where feature i, as the kernel writes it, lies in (4, 4, 64) order."""
    import numpy as np

    rows, half, lane, item = np.indices((2, 2, 32, 8))
    window = lane // 4
    place = (2 * rows + window // 4) * 4 + window % 4
    channel = 32 * half + 8 * (item // 2) + 2 * (lane % 4) + item % 2
    order: Array = (place * 64 + channel).reshape(-1)
    return order


def _exponent(bound: float) -> int:
    """Smallest e with bound <= 2**e; 0 for a bound of zero."""
    return math.ceil(math.log2(bound)) if bound > 0 else 0


def _parts(w: Array, parts: int) -> tuple[Array, int]:
    """`w` times 2**k as fp16 (hi, and lo where there are two), stacked in front, and k."""
    import numpy as np

    if parts == 1:
        return w.astype(np.float16)[None], 0
    k = _HALF_EXPONENT - 1 - _exponent(float(np.abs(w).max()))
    scaled = np.ldexp(w.astype(np.float64), k)
    high = scaled.astype(np.float16)
    return np.stack([high, (scaled - high).astype(np.float16)]), k


def _conv1_matrix(conv1: Array) -> Array:
    """(5, 5, 1, 32) filters as (32, 64): 5 rows of 6 pixels and two zeros by channel/8, dx, 8."""
    import numpy as np

    taps = np.zeros((5, 6, 4, 2, 8), np.float32)
    for dx in range(2):
        taps[:, dx : dx + 5, :, dx] = conv1.reshape(5, 5, 4, 8)
    matrix = np.zeros((32, 64), np.float32)
    matrix[:30] = taps.reshape(30, 64)
    return matrix


def pack(tensors: Sequence[Array], parts: int) -> Packed:
    """The network's four float32 tensors, conv1 first, as `parts` fp16 parts."""
    import numpy as np

    conv1, conv2, fc1, fc2 = tensors
    filters1, k1 = _parts(_conv1_matrix(conv1), parts)
    first = fragments(filters1).reshape(parts, 2, 4, 32, 2, 4).transpose(0, 2, 3, 4, 1, 5)
    filters2, k2 = _parts(conv2.reshape(25, 32, 64), parts)
    second = fragments(filters2).reshape(parts, 25, 2, parts, 4 // parts, 32, 8)
    second = second.transpose(1, 3, 2, 0, 4, 5, 6)
    weights1, k3 = _parts(fc1[feature_order()], parts)
    third = fragments(weights1).reshape(parts, 16 * parts, 4 // parts, 8, 32, 8)
    padded = np.zeros((128, 16), np.float32)
    padded[:, : fc2.shape[1]] = fc2
    weights2, k4 = _parts(padded, parts)
    a1 = a2 = a3 = floats = 0
    if parts == 2:
        reach = PIXEL_BOUND * np.abs(conv1.astype(np.float64)).sum((0, 1, 2))
        a1 = _HALF_EXPONENT - _exponent(float(reach.max()))
        reach = np.einsum("rscm,c->m", np.abs(conv2.astype(np.float64)), reach)
        a2 = _HALF_EXPONENT - _exponent(float(reach.max()))
        reach = np.abs(fc1.astype(np.float64)).reshape(16, 64, 128).sum(0).T @ reach
        a3 = _HALF_EXPONENT - _exponent(float(reach.max()))
        floats = FLOAT_PIXEL_EXPONENT
    return Packed(
        np.ascontiguousarray(first),
        np.ascontiguousarray(second),
        np.ascontiguousarray(third.transpose(1, 0, 2, 3, 4, 5)),
        np.ascontiguousarray(fragments(weights2)),
        scale_bytes=math.ldexp(0.125, a1 - k1) / PIXEL_SCALE,
        scale_floats=math.ldexp(0.125, a1 - k1 - floats),
        scale_conv2=math.ldexp(0.125, a2 - k2 - a1),
        scale_fc1=math.ldexp(1.0, a3 - k3 - a2),
        scale_fc2=math.ldexp(1.0, -a3 - k4),
    )
