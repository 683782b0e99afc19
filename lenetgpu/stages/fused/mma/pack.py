"""Weights for the mma.sync kernels in the order lanes read them: fp16, or scaled split fp16."""

from collections.abc import Sequence

from lenetgpu.arrays import Array, np
from lenetgpu.stages.fused import split
from lenetgpu.stages.fused.wgmma.fp16_pack import conv1_matrix
from lenetgpu.stages.rounding import to_half

# The mean's 1/4, halved because the kernels' ReLU returns twice its value.
_MEAN = 0.125


def fragments(matrix: Array) -> Array:
    """Arrange (..., K, N) as mma's B: (..., K/16, N/16, 32 lanes, 8), two tiles of 8 columns."""
    *outer, k, width = matrix.shape
    cut = matrix.reshape(*outer, k // 16, 2, 4, 2, width // 16, 2, 8)
    # step, half, quad, pair, columns/16, tile, column -> step, columns/16, lane, tile, half, pair
    at = len(outer)
    order = (0, 4, 6, 2, 5, 1, 3)
    moved = cut.transpose(*range(at), *(at + axis for axis in order))
    return moved.reshape(*outer, k // 16, width // 16, 32, 8)


def feature_order() -> Array:
    """Return (1024,): each feature's index in (4, 4, 64) order, in the order the kernel writes."""
    rows, half, lane, item = np.indices((2, 2, 32, 8))
    window = lane // 4
    pooled = (2 * rows + window // 4) * 4 + window % 4
    channel = 32 * half + 8 * (item // 2) + 2 * (lane % 4) + item % 2
    order: Array = (pooled * 64 + channel).reshape(-1)
    return order


def _parts(w: Array, parts: int) -> tuple[Array, int]:
    """Return `w` times 2**k as fp16 parts (high, or high and low) along a new first axis, and k."""
    return split.parts(w) if parts == 2 else (w.astype(np.float16)[None], 0)


def pack(tensors: Sequence[Array], parts: int) -> split.Packed:
    """Pack the network's four float32 tensors, conv1 first, as `parts` fp16 parts.

    `conv1` [part][channel/8][lane][dx][K step][4], `conv2` [element][half of the outputs, with two
    parts][K step][part][output/16][lane][8], `fc1` [slice][part][K step][output/16][lane][8],
    `fc2` [part][K step][lane][8].
    """
    conv1, conv2, fc1, fc2 = tensors
    filters1, k1 = _parts(conv1_matrix(conv1 if parts == 2 else to_half(conv1)), parts)
    first = fragments(filters1).reshape(parts, 2, 4, 32, 2, 4).transpose(0, 2, 3, 4, 1, 5)
    filters2, k2 = _parts(conv2.reshape(25, 32, 64), parts)
    second = fragments(filters2).reshape(parts, 25, 2, parts, 4 // parts, 32, 8)
    second = second.transpose(1, 3, 2, 0, 4, 5, 6)
    weights1, k3 = _parts(fc1[feature_order()], parts)
    third = fragments(weights1).reshape(parts, 16 * parts, 4 // parts, 8, 32, 8)
    padded = np.zeros((128, 16), np.float32)
    padded[:, : fc2.shape[1]] = fc2
    weights2, k4 = _parts(padded, parts)
    outputs = split.activation_exponents(tensors) if parts == 2 else (0, 0, 0)
    floats = split.FLOAT_PIXEL_EXPONENT if parts == 2 else 0
    operands = (first, second, third.transpose(1, 0, 2, 3, 4, 5), fragments(weights2))
    factors = split.factors(_MEAN, (0, floats), (k1, k2, k3, k4), outputs)
    conv1, conv2, fc1, fc2 = map(np.ascontiguousarray, operands)
    return split.Packed(conv1, conv2, fc1, fc2, factors)
