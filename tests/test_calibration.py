"""What int8 kernels need to know of a network: its largest pooled activation."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from lenetgpu import assets
from lenetgpu.calibration import largest_pooled
from lenetgpu.dataset import load_dataset
from lenetgpu.errors import LenetError
from lenetgpu.lab.check import reference_stages
from lenetgpu.stages.fused.int8_features import quantize
from lenetgpu.weights import ATTRIBUTE, load_weights


def test_the_shipped_weights_hold_a_range_that_the_digits_hardly_leave(shipped_weights):
    images = load_dataset(assets.default_digits()).images[:64]
    pooled = reference_stages(images, shipped_weights)["pool1"]
    assert shipped_weights.largest_pooled is not None
    assert pooled.max() <= 1.1 * shipped_weights.largest_pooled


def test_the_range_is_that_of_float64(shipped_weights):
    images = load_dataset(assets.default_digits()).images[:300]
    expected = reference_stages(images, shipped_weights)["pool1"].max()
    for taken in (images, images.astype(np.float32) / 255):
        assert largest_pooled(shipped_weights["conv1"], taken) == pytest.approx(expected, rel=1e-5)


def test_weights_without_a_range_are_calibrated_on_the_digits(weight_file):
    weights = load_weights(weight_file)
    assert weights.largest_pooled is None
    assert largest_pooled(weights["conv1"]) > 0


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan, "wide", [1.0, 2.0]])
def test_a_range_that_is_no_positive_number_is_refused(weight_file, bad):
    with h5py.File(weight_file, "r+") as file:
        file["conv1"].attrs[ATTRIBUTE] = bad
    with pytest.raises(LenetError, match=r"largest_pooled of /conv1 to be a number above zero"):
        load_weights(weight_file)


def test_quantised_filters_are_within_half_a_step(rng):
    conv2 = rng.standard_normal((5, 5, 32, 64)).astype(np.float32)
    conv2[..., 7] = 0
    whole, scales = quantize(conv2, 2.0)
    step = scales.astype(np.float64) * 4 * 255 / 2.0
    assert np.abs(whole * step - conv2).max() <= 0.501 * step.max()
    assert not whole[..., 7].any()
