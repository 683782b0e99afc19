"""Weights for the fp16 wgmma kernels, in the order they are read; NumPy on the host."""

from collections.abc import Sequence

from lenetgpu.arrays import Array, np
from lenetgpu.network import CLASSES, FEATURE_COUNT
from lenetgpu.stages.fused import split
from lenetgpu.stages.rounding import to_half

VECS = 8  # 16-byte feature vectors the classifier multiplies before moving their sums to registers
_BYTE_PIXEL_EXPONENT = -8  # conv1.cuh reads byte / 256
_MEAN = 0.25


def pack(tensors: Sequence[Array]) -> split.Packed:
    """Pack the network's four float32 tensors, conv1 first, as split fp16; fc2 stays float32.

    `conv1` (2, 2, 2, 64, 8) [part][K step][half][column][8] as `arrange_conv1`, `conv2` (25, 2,
    4, 64, 8) [filter element][part][channel/8][map][8], `fc1` (16, 2, 8, 128, 8)
    [chunk][part][k/8][output][8], `fc2` (128, 12) float32, zeros after class 9.

    Features are stored in 16-byte vectors, each written by one thread: in vector 32*warp + 4*g
    + px, element 2*py + h is channel 16*warp + 8*h + g of pooled position (py, px).
    """
    conv1, k1 = split.parts(tensors[0])
    conv2, k2 = split.parts(tensors[1].reshape(25, 4, 8, 64), axis=1)
    # py, px, warp, h, g, output -> warp, g, px, py, h, output
    vecs = tensors[2].reshape(4, 4, 4, 2, 8, 128).transpose(2, 4, 1, 0, 3, 5)
    fc1, k3 = split.parts(vecs.reshape(-1, VECS, 8, 128), axis=1)
    fc2 = np.zeros((128, -(-CLASSES // 4) * 4), np.float32)
    fc2[:, :CLASSES] = tensors[3]
    a1, a2, _ = split.activation_exponents(tensors)
    pixels = (_BYTE_PIXEL_EXPONENT, split.FLOAT_PIXEL_EXPONENT)
    return split.Packed(
        np.ascontiguousarray([arrange_conv1(part) for part in conv1]),
        np.ascontiguousarray(conv2.transpose(0, 1, 2, 4, 3)),
        np.ascontiguousarray(fc1.transpose(0, 1, 2, 4, 3)),
        fc2,
        split.factors(_MEAN, pixels, (k1, k2, k3, 0), (a1, a2, 0)),
    )


HIDDEN = 128


def feature_order() -> Array:
    """Return (1024,): each feature's index in (4, 4, 64) order, in the order threads write."""
    thread, row, half = np.meshgrid(np.arange(128), np.arange(4), np.arange(2), indexing="ij")
    warp, lane = thread // 32, thread % 32
    channel = 16 * warp + lane // 4 + 8 * half
    order: Array = ((row * 4 + lane % 4) * 64 + channel).reshape(-1)
    return order


def conv1_matrix(conv1: Array) -> Array:
    """Arrange (5, 5, 1, 32) filters as (32, 64): 5 rows of 6 pixels, two zeros; columns.

    Column 16a + 8dx + b is channel 8a + b shifted right by dx.
    """
    shifted = np.zeros((32, 4, 2, 8), conv1.dtype)
    for dx in range(2):
        shifted[:30].reshape(5, 6, 4, 2, 8)[:, dx : dx + 5, :, dx] = conv1.reshape(5, 5, 4, 8)
    return shifted.reshape(32, 64)


def arrange_conv1(conv1: Array) -> Array:
    """Arrange `conv1_matrix` as (2, 2, 64, 8): K step, half of the step, column, K."""
    return conv1_matrix(conv1).reshape(2, 2, 8, 64).transpose(0, 1, 3, 2)


def in_pair_order(conv1: Array, order: Sequence[int] | Array) -> Array:
    """Reorder K's 16 pairs of `arrange_conv1`'s (2, 2, 2, 64, 8) by `order`."""
    pairs = conv1.transpose(0, 1, 2, 4, 3).reshape(2, 16, 2, 64)[:, np.asarray(order)]
    return np.ascontiguousarray(pairs.reshape(2, 2, 2, 8, 64).transpose(0, 1, 2, 4, 3))


def pack_conv1(conv1: Array) -> Array:
    """Arrange (5, 5, 1, 32) filters as (2, 2, 2, 64, 8) fp16: scale, then as `arrange_conv1`.

    Scales: pixels in 0..1, bytes / 256; both include the mean's 1/4.
    """
    scales = (0.25, 0.25 * 256 / 255)
    packed = [arrange_conv1(to_half(np.float32(scale) * conv1)) for scale in scales]
    return np.ascontiguousarray(np.stack(packed))


def pack_conv2(conv2: Array) -> Array:
    """Arrange (5, 5, 32, 64) filters as (50 element and half, 2 channel/8, 64 output, 8) fp16."""
    vectors = conv2.reshape(50, 2, 8, 64).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(vectors, dtype=np.float16)


def pack_fc1(fc1: Array) -> Array:
    """Arrange (1024, 128) weights as (2, 64, 2, 64, 8) fp16, rows in the features kernel's order.

    Axes: half of the outputs, K step, half of the step, output, feature.
    """
    rows = fc1[feature_order()].reshape(FEATURE_COUNT // 16, 2, 8, 2, HIDDEN // 2)
    return np.ascontiguousarray(rows.transpose(3, 0, 1, 4, 2), dtype=np.float16)


def pack_fc2(fc2: Array) -> Array:
    """Arrange (128, 10) weights as (8, 32, 8) fp16: K step, lane, mma's A; zeros after class 9."""
    padded = np.zeros((HIDDEN, 16), np.float16)
    padded[:, :CLASSES] = fc2
    band, lane, item = np.indices((HIDDEN // 16, 32, 8))
    k = 16 * band + 2 * (lane % 4) + item % 2 + 8 * (item // 4)
    packed: Array = padded[k, lane // 4 + 8 * (item // 2 % 2)]
    return packed
