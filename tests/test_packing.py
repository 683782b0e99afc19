"""Launch arguments of the fused kernels: packed weights, their scales, tilings by device.

Packed weights are unpacked here by the documented layout, element by element, except those with
which test_kernels_on_tensor_cores.py runs the features kernels on a CPU.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from lenetgpu.files.scaling import most_pooled
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.occupancy import PROCESSORS
from lenetgpu.network import weight_shapes
from lenetgpu.stages.fused import split
from lenetgpu.stages.fused.cuda_cores import classifier, conv1, conv2, tuning
from lenetgpu.stages.fused.mma import features as tilings
from lenetgpu.stages.fused.mma import pack as mma
from lenetgpu.stages.fused.wgmma import fp16_pack, int8_pack

HALF = 2.0**-11  # relative rounding error of fp16
TINY = 2.0**-25  # absolute rounding error of fp16 subnormals
SPLIT = 2.0**-22


@pytest.fixture
def tensors(rng):
    return [
        (size * rng.standard_normal(shape)).astype(np.float32)
        for size, shape in zip((0.3, 0.05, 0.04, 0.1), weight_shapes().values(), strict=True)
    ]


def assert_half(packed, w):
    assert packed.dtype == np.float16 and packed.flags.c_contiguous
    assert (np.abs(packed - w) <= HALF * np.abs(w) + TINY).all()


def assert_split(parts, w):
    """Check that fp16 high and low along the first axis are `w` times one power of two."""
    assert parts.dtype == np.float16
    high, low = parts.astype(np.float64)
    k = round(np.log2(np.abs(high).max() / np.abs(w).max()))
    scaled = np.ldexp(w.astype(np.float64), k)
    assert np.abs(high + low - scaled).max() <= SPLIT * np.abs(scaled).max()
    assert np.abs(high - scaled).max() <= HALF * np.abs(scaled).max()
    return k


def conv1_by_columns(packed):
    """Unpack [K step][half][column][8] to (5, 5, 32); compare the shifted copy with the first."""
    found = np.full((2, 5, 6, 32), np.nan)
    for step, half, column, item in product(range(2), range(2), range(64), range(8)):
        k = 16 * step + 8 * half + item
        value = packed[step, half, column, item]
        if k >= 30:
            assert value == 0
            continue
        found[column // 8 % 2, k // 6, k % 6, column // 16 * 8 + column % 8] = value
    assert not found[0, :, 5].any() and not found[1, :, 0].any()
    np.testing.assert_array_equal(found[0, :, :5], found[1, :, 1:])
    return found[0, :, :5]


def mma_index(i):
    """Return the position of feature i of the mma.sync kernel: (row, column, channel).

    The kernel's order is [row of windows][half of 32 channels][lane][8].
    """
    rows, half, lane, item = i // 512, i // 256 % 2, i // 8 % 32, i % 8
    window = lane // 4
    return (2 * rows + window // 4, window % 4, 32 * half + item // 2 * 8 + lane % 4 * 2 + item % 2)


def test_fp16_fc2_is_packed_as_mma_operand_a(tensors):
    packed = fp16_pack.pack_fc2(tensors[3])
    assert packed.shape == (8, 32, 8)
    found = np.full((128, 16), np.nan, np.float16)
    for band, lane, item in product(range(8), range(32), range(8)):
        row = lane // 4 + (8 if item in (2, 3, 6, 7) else 0)
        k = 16 * band + 2 * (lane % 4) + item % 2 + (8 if item >= 4 else 0)
        found[k, row] = packed[band, lane, item]
    assert_half(np.ascontiguousarray(found[:, :10]), tensors[3])
    assert not found[:, 10:].any()


def test_int8_filters_use_127_steps_each_way(rng):
    conv2 = rng.standard_normal((5, 5, 32, 64)).astype(np.float32)
    conv2[..., 7] = 0
    largest = rng.uniform(1, 2, 32)
    whole, scales = int8_pack.quantize(conv2, largest)
    assert whole.dtype == np.int8 and scales.dtype == np.float32
    exact = conv2 * largest[:, None] / 255
    widest = np.abs(exact).max((0, 1, 2))
    step = np.where(widest > 0, widest, 1) / 127
    assert (np.abs(whole.astype(int)).max((0, 1, 2)) == np.where(widest > 0, 127, 0)).all()
    assert (np.abs(whole * step - exact) <= 1.0001 * step).all()
    assert (np.abs((whole * step - exact).sum((0, 1))) <= 0.5001 * step).mean() > 0.999
    np.testing.assert_allclose(scales, 0.25 * step, rtol=1e-6)


def test_int8_ranges_bound_every_image(rng):
    """Each channel's 255 is its largest output or up to an eighth more; white is a whole step."""
    conv1 = rng.standard_normal((5, 5, 1, 32))
    conv1[..., 3], conv1[..., 4], conv1[..., 5] = 0, -1, np.abs(conv1[..., 5])
    most, ranges = most_pooled(conv1), int8_pack.ranges(conv1)
    assert (ranges >= most * (1 - 1e-9)).all() and (ranges <= most * 1.126).all()
    assert most[3] == most[4] == ranges[3] == ranges[4] == 0
    assert ranges[5] == pytest.approx(
        conv1[..., 5].sum()
    )  # white gives its largest output: all elements are positive
    white = np.maximum(conv1.sum((0, 1, 2)), 0)
    steps = 255 * white[ranges > 0] / ranges[ranges > 0]
    large = steps >= 8
    assert large.any() and np.abs(steps - np.rint(steps))[large].max() < 1e-9


def test_int8_filters_stay_finite_for_tiny_ranges(rng):
    conv1 = -np.abs(rng.standard_normal((5, 5, 1, 32))).astype(np.float32)
    conv1[2, 2] = 1e-9
    ranges = int8_pack.ranges(conv1)
    assert np.isfinite(int8_pack.pack_conv1(conv1, ranges)).all()
    assert (ranges >= most_pooled(conv1)).all() and (ranges > 0).all()


def test_fp16x3_operands_are_split_with_one_scale(tensors):
    packed = fp16_pack.pack(tensors)
    assert packed.conv1.shape == (2, 2, 2, 64, 8) and packed.conv1.flags.c_contiguous
    k1 = assert_split(
        np.stack([conv1_by_columns(part) for part in packed.conv1]).astype(np.float16),
        tensors[0][:, :, 0],
    )
    assert packed.conv2.shape == (25, 2, 4, 64, 8)
    found = np.empty((2, 5, 5, 32, 64), np.float16)
    for element, part, channel in product(range(25), range(2), range(32)):
        found[part, element // 5, element % 5, channel] = packed.conv2[
            element, part, channel // 8, :, channel % 8
        ]
    k2 = assert_split(found, tensors[1])
    assert packed.fc1.shape == (16, 2, 8, 128, 8)
    found, fc1 = np.empty((2, 4, 4, 64, 128), np.float16), tensors[2].reshape(4, 4, 64, 128)
    for chunk, part, vec, item in product(range(16), range(2), range(8), range(8)):
        number = 8 * chunk + vec  # 32 * warp + 4 * g + column
        channel = 16 * (number // 32) + 8 * (item % 2) + number // 4 % 8
        found[part, item // 2, number % 4, channel] = packed.fc1[chunk, part, vec, :, item]
    k3 = assert_split(found, fc1)
    np.testing.assert_array_equal(packed.fc2[:, :10], tensors[3])
    assert packed.fc2.shape == (128, 12) and not packed.fc2[:, 10:].any()
    f = packed.factors
    assert f.floats / f.bytes == pytest.approx(255 * 2.0 ** (-8 - 8), rel=1e-12)
    # all scales cancel across the stages except those of the features, which are powers of two
    a1, a2 = (np.log2(4 * f.floats) + k1 + 8), (np.log2(4 * f.conv2) + k2)
    assert a1 == round(a1)
    assert np.log2(f.fc1) == -k3 - (a1 + a2)


def fragment(step, column, lane, item):
    """Return (k, n) of a lane's item of mma's B: two tiles of 8 columns, 2 x 2 of K each."""
    tile, half, pair = item // 4, item // 2 % 2, item % 2
    return 16 * step + 8 * half + 2 * (lane % 4) + pair, 16 * column + 8 * tile + lane // 4


def unpacked(fragments):
    """Unpack [K step][columns/16][lane][8] to a matrix."""
    steps, columns = fragments.shape[:2]
    matrix = np.full((16 * steps, 16 * columns), np.nan, np.float16)
    for at in product(range(steps), range(columns), range(32), range(8)):
        matrix[fragment(*at)] = fragments[at]
    return matrix


def assert_parts(parts, w):
    """Check that one part is `w` rounded, or two parts are `w` times 2**k; return k (0 for one)."""
    if len(parts) == 2:
        return assert_split(parts, w)
    assert_half(np.ascontiguousarray(parts[0]), w)
    return 0


@pytest.mark.parametrize("parts", [1, 2])
def test_mma_operands_are_packed_as_operand_b(tensors, parts):
    packed = mma.pack(tensors, parts)
    assert packed.conv1.shape == (parts, 4, 32, 2, 2, 4)
    columns = [
        unpacked(part.transpose(3, 0, 1, 2, 4).reshape(2, 4, 32, 8)) for part in packed.conv1
    ]  # [channel/8][lane][dx][K step][4] -> [K step][channel/8][lane][dx, 4]
    found = np.zeros((parts, 5, 5, 32), np.float16)
    for part, (r, s, channel) in product(range(parts), np.ndindex(5, 5, 32)):
        at = 16 * (channel // 8) + channel % 8
        found[part, r, s, channel] = columns[part][6 * r + s, at]
        assert columns[part][6 * r + s + 1, at + 8] == found[part, r, s, channel]
    assert all(np.count_nonzero(matrix) <= 2 * 25 * 32 for matrix in columns)
    k1 = 0 if parts == 1 else assert_parts(found, tensors[0][:, :, 0])

    assert packed.conv2.shape == (25, parts, 2, parts, 4 // parts, 32, 8)
    filters = packed.conv2.transpose(3, 0, 2, 1, 4, 5, 6).reshape(parts, 25, 2, 4, 32, 8)
    found = np.stack([np.stack([unpacked(element) for element in part]) for part in filters])
    k2 = assert_parts(found, tensors[1].reshape(25, 32, 64))

    assert packed.fc1.shape == (16 * parts, parts, 4 // parts, 8, 32, 8)
    steps = packed.fc1.transpose(1, 0, 2, 3, 4, 5).reshape(parts, 64, 8, 32, 8)
    fc1 = tensors[2].reshape(4, 4, 64, 128)
    ordered = np.stack([fc1[mma_index(i)] for i in range(1024)])
    k3 = assert_parts(np.stack([unpacked(part) for part in steps]), ordered)

    matrices = np.stack([unpacked(part.reshape(8, 1, 32, 8)) for part in packed.fc2])
    assert not matrices[:, :, 10:].any()
    k4 = assert_parts(np.ascontiguousarray(matrices[:, :, :10]), tensors[3])

    f = packed.factors
    scales = np.log2([8 * f.floats, 8 * f.conv2, f.fc1, f.fc2])
    if parts == 1:
        assert scales.tolist() == [0, 0, 0, 0]
    # every stage divides by its input's and weights' scales; the last output is unscaled
    first = scales[0] + k1 + (8 if parts == 2 else 0)
    assert first + (scales[1] + k2) + (scales[2] + k3) + (scales[3] + k4) == 0
    assert f.bytes * 255 == pytest.approx(f.floats * (256 if parts == 2 else 1), rel=1e-12)


# F(4,5) at 0, 1, -1, 2, -2, 1/2, -1/2 and infinity: Vandermonde matrices on both sides
POINTS = (0, 1, -1, 2, -2, 0.5, -0.5)


def values_at_points(filters):
    """Return the filters' values (8, ...) at the points; at infinity that is the last element."""
    rows = [[point**k for k in range(5)] for point in POINTS] + [[0, 0, 0, 0, 1]]
    return np.tensordot(np.array(rows, np.float64), filters, axes=(1, 0))


def norms():
    """Return the divisors of G's rows: products of a point's distances to the others."""
    found = [np.prod([p - q for q in POINTS if q != p]) for p in POINTS]
    return np.array([*found, 1.0])


def test_fp32_filters_are_transformed_and_include_the_mean(tensors):
    filters = tensors[0][:, :, 0].astype(np.float64)
    rows = values_at_points(filters.transpose(1, 0, 2)) / norms()[:, None, None]
    for dtype, scale in (("uint8", 1 / 255), ("float32", 1.0)):
        packed = conv1.pack(tensors[0])[dtype]
        assert packed.dtype == np.float32 and packed.shape == (5, 8, 32)
        expected = scale * rows.transpose(1, 0, 2)
        np.testing.assert_allclose(packed, expected, rtol=1e-6, atol=1e-9)
    both = values_at_points(values_at_points(tensors[1]).transpose(1, 0, 2, 3))
    both /= np.outer(norms(), norms())[:, :, None, None]  # [x][y][channel][map]
    packed = conv2.pack(tensors[1])
    assert packed.dtype == np.float32 and packed.shape == (8, 8, 32, 64)
    np.testing.assert_allclose(packed, both / 4, rtol=1e-5, atol=1e-8)
    fc1, fc2 = classifier.pack(tensors[2], tensors[3])
    np.testing.assert_array_equal(fc1, tensors[2] / 4)
    np.testing.assert_array_equal(fc2, tensors[3].T)
    assert fc1.flags.c_contiguous and fc2.flags.c_contiguous


def test_activation_scales_neither_overflow_nor_waste_bits(tensors):
    conv1, conv2, fc1 = (np.abs(w.astype(np.float64)) for w in tensors[:3])
    pool1 = split.PIXEL_BOUND * conv1.sum((0, 1, 2))
    pool2 = (conv2.sum((0, 1)) * pool1[:, None]).sum(0)
    hidden = fc1.T @ np.tile(pool2, 16)
    for reach, k in zip((pool1, pool2, hidden), split.activation_exponents(tensors), strict=True):
        assert 2.0**14 < np.ldexp(reach.max(), k) <= 2.0**15


@pytest.mark.parametrize(
    ("uint8", "parts", "capability", "expected"),
    [
        (True, 1, 80, (4, 1, 2)),
        (False, 1, 120, (8, 1, 1)),
        (True, 2, 89, (8, 2, 1)),
        (False, 2, 100, (4, 2, 2)),
        (False, 2, 86, (6, 2, 1)),
    ],
)
def test_mma_uses_the_first_tiling_that_fits(uint8, parts, capability, expected):
    assert tilings.tiling(uint8, parts, PROCESSORS[capability]) == tilings.Tiling(*expected)


def test_listed_mma_kernels_are_those_that_gpus_use():
    for parts in (1, 2):
        used = {
            tilings.kernel(uint8, parts, tilings.tiling(uint8, parts, limits))
            for uint8 in (True, False)
            for capability, limits in PROCESSORS.items()
            if capability >= 80
        }
        assert used <= set(tilings.kernels(parts))
    assert (len(tilings.kernels(1)), len(tilings.kernels(2))) == (4, 5)


@pytest.mark.parametrize(
    ("kib", "expected", "held"),
    [(64, tuning.SMALL, 63_488), (99, tuning.MIDDLE, 88_064), (163, tuning.MIDDLE, 88_064),
     (227, tuning.LARGE, 201_728)],
)  # fmt: skip
def test_fp32_uses_the_largest_block_that_fits(monkeypatch, kib, expected, held):
    monkeypatch.setattr(tuning, "current", lambda: replace(H200, block_bytes=kib << 10))
    assert tuning.tuning() == expected
    assert expected.conv2_bytes == held <= kib << 10
