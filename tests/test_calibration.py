"""What int8 kernels need to know of a network: its largest pooled activation."""

from __future__ import annotations

import importlib.util

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.check.truth import reference_stages
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.calibration import largest_pooled
from lenetgpu.files.convert import convert_data, convert_weights
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import ATTRIBUTE, load_weights
from lenetgpu.stages.fused.wgmma.int8_features import quantize


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


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan, 1e-300, 1e300, "wide", [1.0, 2.0]])
def test_a_range_that_bytes_cannot_hold_is_refused(weight_file, bad):
    with h5py.File(weight_file, "r+") as file:
        file["conv1"].attrs[ATTRIBUTE] = bad
    with pytest.raises(LenetError, match="largest_pooled of /conv1 to be a number from 0.01 to"):
        load_weights(weight_file)


def test_quantised_filters_are_within_half_a_step(rng):
    conv2 = rng.standard_normal((5, 5, 32, 64)).astype(np.float32)
    conv2[..., 7] = 0
    whole, scales = quantize(conv2, 2.0)
    assert whole.dtype == np.int8
    assert not whole[..., 7].any()
    used = np.arange(64) != 7
    widest = np.abs(conv2[..., used]).max((0, 1, 2)).astype(np.float64)
    step = widest / 127  # the widest filter of an output is the widest byte, a sign apart
    assert (np.abs(whole[..., used]).max((0, 1, 2)) == 127).all()
    assert (np.abs(whole[..., used] * step - conv2[..., used]).max((0, 1, 2)) <= 0.501 * step).all()
    # four sums of byte products are their mean times a filter's step and an activation's, 2 / 255
    np.testing.assert_allclose(scales[used], step * (2.0 / 255) / 4, rtol=1e-6)


def calibrate():
    path = ROOT / "scripts" / "calibrate.py"
    spec = importlib.util.spec_from_file_location("calibrate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_calibrating_writes_the_range_and_converting_keeps_it(weight_file, tmp_path):
    images = tmp_path / "some.h5"
    convert_data(assets.default_digits(), images)
    done = CliRunner().invoke(calibrate().main, [str(weight_file), str(images), "--limit", "100"])
    assert done.exit_code == 0, done.output
    found = load_weights(weight_file).largest_pooled
    assert found == pytest.approx(largest_pooled(
        load_weights(weight_file)["conv1"], load_dataset(images).images[:100]
    ))  # fmt: skip
    converted = tmp_path / "converted.h5"
    convert_weights(weight_file, converted)
    assert load_weights(converted).largest_pooled == found


def test_a_calibration_that_fails_leaves_the_file_as_it_was(weight_file):
    with h5py.File(weight_file, "r+") as file:
        file["conv1"][...] = -1.0
    before = weight_file.read_bytes()
    done = CliRunner().invoke(calibrate().main, [str(weight_file)])
    assert done.exit_code == 2
    assert "calibrate: error:" in done.output
    assert weight_file.read_bytes() == before
    refused = CliRunner().invoke(calibrate().main, [str(weight_file), "--limit", "0"])
    assert refused.exit_code == 2
