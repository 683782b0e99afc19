"""Weights of any scale: exact balancing, and packed operands of every plan within range.

Tensor-core plans are computed here from their packed operands (emulated.py), so that range errors
show without a GPU.
"""

import numpy as np
import pytest
from conftest import module_of
from emulated import PLANS, scores

from lenetgpu.check.fit import groups, judge_groups
from lenetgpu.check.reference import reference_scores, reference_stages
from lenetgpu.files import assets
from lenetgpu.files.scaling import LEVELS, most_pooled
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.network import weight_shapes
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve
from lenetgpu.stages.rounding import to_half, to_whole

SHIPPED = load_weights(assets.default_weights()).tensors
SETS = {name: Weights(held, name) for name, held in module_of("any_weights").sets(SHIPPED)}
FP16_MOST = 65504
HELD = [name for name in SETS if "float32's" not in name]


@pytest.fixture(scope="module")
def given():
    """Images, their groups, and a function for float64 scores by weight set, which are cached."""
    images, parts = groups(load_dataset(assets.default_digits()).images[:32], 4)
    reference = {}

    def scores_of(name):
        if name not in reference:
            reference[name] = reference_scores(images, SETS[name])[0]
        return reference[name]

    return images, parts, scores_of


def assert_within(verdicts):
    assert {name: str(v) for name, v in verdicts.items() if not v.passed} == {}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", HELD)
def test_packed_operands_work_for_any_weights(name, plan, given):
    images, parts, reference = given
    found = scores(plan, images, SETS[name])
    assert_within(judge_groups(parts, found, found.argmax(1), reference(name), PLANS[plan][0]))


@pytest.mark.parametrize("plan", PLANS)
def test_packed_operands_work_for_float_images(plan, given):
    images, parts, reference = given
    found = scores(plan, images.astype(np.float32) / np.float32(255), SETS["as they ship"])
    precision = PLANS[plan][0]
    expected = reference("as they ship")
    assert_within(judge_groups(parts, found, found.argmax(1), expected, precision))


@pytest.mark.parametrize("plan", ["unrolled", "tiled"])
@pytest.mark.parametrize("name", HELD)
def test_cpu_plans_work_for_any_weights(name, plan, given):
    images, parts, reference = given
    pipeline = Pipeline(resolve(plan, "cpu"), SETS[name], len(images))
    pipeline.poison()
    labels = pipeline.run(images)
    found = pipeline.scores(len(images))
    assert_within(judge_groups(parts, found, labels, reference(name), "fp32"))


@pytest.mark.parametrize("name", HELD)
def test_balanced_weights_give_the_same_network(name, given):
    images, _, reference = given
    held = SETS[name].balanced
    again, _ = reference_scores(images[::7], held)
    expected = reference(name)[::7]
    error = np.abs(np.ldexp(again, held.exponent) - expected).max()
    assert error <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("name", HELD)
def test_activations_stay_within_their_bound(name, given):
    """The bound holds for every image in 0..1; tests use those that activate a channel most."""
    held = SETS[name].balanced
    summed = held["conv1"][:, :, 0].transpose(2, 0, 1) > 0
    most = np.tile(summed, (1, 6, 6))[:, :28, :28, None].astype(np.float32)
    images = np.concatenate([given[0].astype(np.float32) / 255, most])
    found = reference_stages(images, held)
    assert 2.0 ** max(LEVELS) < FP16_MOST
    for stage, level in zip(("pool1", "pool2", "fc1"), LEVELS, strict=True):
        assert found[stage].max() <= 2.0**level
    for tensor in held.tensors.values():
        assert np.abs(tensor).max(initial=0) < FP16_MOST
        assert np.isfinite(tensor).all() and tensor.dtype == np.float32


def test_largest_pooled_output_is_a_tight_bound(rng):
    conv1 = rng.standard_normal((5, 5, 1, 32))
    most = most_pooled(conv1)
    reached = np.zeros(32)
    for subset in range(1, 16):
        summed = np.zeros((32, 6, 6))
        for window in range(4):
            if subset >> window & 1:
                y, x = divmod(window, 2)
                summed[:, y : y + 5, x : x + 5] += conv1[:, :, 0].transpose(2, 0, 1)
        images = np.zeros((32, 28, 28, 1))
        images[:, :6, :6, 0] = summed > 0
        weights = {n: np.zeros(s) for n, s in weight_shapes().items()} | {"conv1": conv1}
        pooled = reference_stages(images, Weights(weights, ""))["pool1"][:, 0, 0]
        reached = np.maximum(reached, np.diagonal(pooled))
        assert (pooled <= most * (1 + 1e-12)).all()
    np.testing.assert_allclose(reached, most, rtol=1e-12)


def test_rounded_filters_keep_their_sums(rng):
    filters = rng.uniform(-100, 100, (5, 5, 3, 400))
    whole = to_whole(filters)
    assert (whole == np.rint(whole)).all() and (np.abs(whole - filters) <= 1).all()
    assert (np.abs((whole - filters).sum((0, 1))) <= 0.5 + 1e-9).all()
    half = to_half(filters.astype(np.float32))
    assert half.dtype == np.float16 and half.shape == filters.shape
    exact = filters.astype(np.float32).astype(np.float64)
    wrong = np.abs((half - exact).sum((0, 1)))
    nearest = np.abs((exact.astype(np.float16) - exact).sum((0, 1)))
    assert wrong.mean() < 0.05 * nearest.mean()
