"""What the fused kernels are launched with: split operands, their scales, tilings by device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.occupancy import PROCESSORS
from lenetgpu.network import weight_shapes
from lenetgpu.stages.fused import split
from lenetgpu.stages.fused.cuda_cores import tuning
from lenetgpu.stages.fused.mma import features as mma


@pytest.fixture
def tensors(rng):
    sizes = (0.3, 0.02, 4.0, 1e-4)
    return [
        (size * rng.standard_normal(shape)).astype(np.float32)
        for size, shape in zip(sizes, weight_shapes().values(), strict=True)
    ]


def test_hi_and_lo_hold_22_bits_of_an_operand(tensors):
    for w in tensors:
        (high, low), k = split.halves(w)
        assert high.dtype == low.dtype == np.float16
        assert 2.0**13 < np.abs(high).max() <= 2.0**14
        lost = np.abs(high.astype(np.float64) + low - np.ldexp(w.astype(np.float64), k))
        assert lost.max() <= 2.0**14 * 2.0**-22
    along = split.halves(tensors[0], axis=2)[0]
    assert along.shape == (5, 5, 2, 1, 32)


def test_no_activation_overflows_and_none_wastes_a_bit(tensors):
    conv1, conv2, fc1 = (np.abs(w.astype(np.float64)) for w in tensors[:3])
    pool1 = split.PIXEL_BOUND * conv1.sum((0, 1, 2))
    pool2 = (conv2.sum((0, 1)) * pool1[:, None]).sum(0)
    hidden = fc1.T @ np.tile(pool2, 16)
    for reach, k in zip((pool1, pool2, hidden), split.activation_exponents(tensors), strict=True):
        assert 2.0**14 < np.ldexp(reach.max(), k) <= 2.0**15


def test_the_factors_undo_every_scale(tensors):
    weights, outputs = (3, -2, 7, 11), (5, 1, -4)
    found = split.factors(0.25, (-8, 8), weights, outputs)
    scale = np.ldexp(1.0, -8)  # of a pixel; a sum's scale times its factor is the next one
    for factor, k, after, mean in (
        (found.bytes * 255, weights[0], outputs[0], 0.25),
        (found.conv2, weights[1], outputs[1], 0.25),
        (found.fc1, weights[2], outputs[2], 1.0),
        (found.fc2, weights[3], 0, 1.0),
    ):
        assert scale * 2.0**k * factor == mean * 2.0**after
        scale = 2.0**after
    assert found.floats * 2.0 ** (8 + weights[0]) == 0.25 * 2.0 ** outputs[0]


@pytest.mark.parametrize(
    ("uint8", "parts", "capability", "expected"),
    [
        (True, 1, 80, (4, 1, 2)),
        (True, 1, 86, (8, 1, 1)),
        (False, 1, 90, (4, 1, 2)),
        (False, 1, 120, (8, 1, 1)),
        (True, 2, 80, (4, 2, 2)),
        (True, 2, 89, (8, 2, 1)),
        (False, 2, 100, (4, 2, 2)),
        (False, 2, 86, (6, 2, 1)),
    ],
)
def test_mma_takes_the_first_tiling_that_a_multiprocessor_holds(uint8, parts, capability, expected):
    assert mma.tiling(uint8, parts, PROCESSORS[capability]) == mma.Tiling(*expected)


def test_every_listed_mma_kernel_is_some_gpus_and_every_gpus_is_listed():
    for parts in (1, 2):
        taken = {
            mma.kernel(uint8, parts, mma.tiling(uint8, parts, limits))
            for uint8 in (True, False)
            for capability, limits in PROCESSORS.items()
            if capability >= 80
        }
        assert taken <= set(mma.kernels(parts))
    assert len(mma.kernels(1)) == 4
    assert len(mma.kernels(2)) == 5


@pytest.mark.parametrize(
    ("kib", "expected", "held"),
    [(64, tuning.SMALL, 63_488), (99, tuning.MIDDLE, 88_064), (163, tuning.MIDDLE, 88_064),
     (227, tuning.LARGE, 201_728)],
)  # fmt: skip
def test_fp32_takes_the_largest_sizes_that_a_block_may_have(monkeypatch, kib, expected, held):
    monkeypatch.setattr(tuning, "current", lambda: replace(H200, block_bytes=kib << 10))
    assert tuning.tuning() == expected
    assert expected.conv2_bytes == held <= kib << 10
