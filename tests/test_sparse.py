"""2:4 sparse filters: pruning and refit."""

import numpy as np
import pytest
from conftest import plan_here

from lenetgpu.check.reference import reference_scores
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.pipeline import Pipeline
from lenetgpu.stages.fused.wgmma import int8_pack
from lenetgpu.stages.fused.wgmma_sparse import pack, prune


def of_fours(filters):
    """Return the number of nonzeros in each four of K of (K, M) filters."""
    return (filters.reshape(-1, 4, filters.shape[-1]) != 0).sum(1)


def test_dense_filters_are_refused():
    with pytest.raises(LenetError, match="two of every four channels at most, found more"):
        pack.pack_conv2(np.ones((5, 5, 32, 64), np.int8))


def loss(exact, found, moments):
    off = exact - found
    return np.einsum("km,kl,lm->m", off, moments, off)


def of_largest(exact):
    fours = exact.reshape(-1, 4, exact.shape[1])
    order = np.abs(fours).argsort(1).argsort(1)
    return np.where(order >= 2, fours, 0).reshape(exact.shape)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_degenerate_moments_are_accepted(scale, rng):
    """Inputs that are always zero, all alike, or missing."""
    exact = rng.standard_normal((8, 3))
    alike = np.ones((8, 8))
    alike[2] = alike[:, 2] = 0
    for moments in (alike, np.zeros((8, 8))):
        made = prune.prune(exact * scale, moments) / scale
        assert np.isfinite(made).all() and (of_fours(made) == 2).all()
        assert np.abs(made).max() < 10 * np.abs(exact).max()
    np.testing.assert_allclose(made, of_largest(exact))
    assert not prune.prune(0 * exact, alike).any()


def test_second_moments_of_windows_are_exact(rng):
    maps = rng.integers(0, 256, (37, 12, 12, 32)).astype(np.float64)
    found = prune.second_moments(maps)
    np.testing.assert_array_equal(found, prune.second_moments(maps[::-1]))
    for (r, s, c), (v, w, d) in (((0, 0, 0), (0, 0, 0)), ((4, 1, 31), (2, 3, 5))):
        a = maps[:, r : r + 8, s : s + 8, c]
        b = maps[:, v : v + 8, w : w + 8, d]
        assert found[(5 * r + s) * 32 + c, (5 * v + w) * 32 + d] == (a * b).sum()


def test_shipped_sparse_filters_keep_their_features(shipped_weights):
    """Compare features on digits outside the calibration set; magnitude pruning is far worse."""
    held = shipped_weights.balanced
    conv1, conv2 = held["conv1"], held["conv2"]
    found = prune.pruned(conv1, conv2)
    assert (of_fours(found.reshape(800, 64)) == 2).all() and not found.flags.writeable
    assert prune.pruned(conv1.copy(), conv2) is found
    whole, _ = int8_pack.quantize(found, int8_pack.ranges(conv1))
    assert (of_fours(whole.reshape(800, 64)) <= 2).all()
    images = load_dataset(assets.default_digits()).images[1:40]
    maps = prune.maps_of(images, conv1) * (int8_pack.ranges(conv1) / 255)
    moments = prune.second_moments(maps)
    exact = conv2.reshape(800, 64).astype(np.float64)
    lost = loss(exact, found.reshape(800, 64), moments).sum()
    assert lost < 0.25 * loss(exact, of_largest(exact), moments).sum()
    assert lost < 0.02 * loss(exact, 0 * exact, moments).sum()


@pytest.mark.parametrize("dead", ["one channel", "all"])
def test_inactive_channels_do_not_break_pruning(dead, shipped_weights, monkeypatch):
    few = prune.calibration()[::16]
    monkeypatch.setattr(prune, "calibration", lambda: few)
    monkeypatch.setattr(prune, "_pruned", prune._pruned.__wrapped__)  # bypass the cache
    conv1 = shipped_weights.balanced["conv1"].copy()
    conv1[..., 3 if dead == "one channel" else slice(None)] = -1
    found = prune.pruned(conv1, shipped_weights.balanced["conv2"])
    whole, scales = int8_pack.quantize(found, int8_pack.ranges(conv1))
    assert np.isfinite(found).all() and np.isfinite(scales).all()
    assert not whole[:, :, 3].any() and whole.any() == (dead == "one channel")
    pack.pack_conv2(whole)


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["shipped", "course"])
@pytest.mark.parametrize(("plan", "most"), [("int8", 5), ("int8_sparse", 8)])
def test_int8_plans_lose_few_labels_in_10000(plan, model, most, request, mnist, cupy):
    path = assets.default_weights()
    if model == "course":
        path = request.getfixturevalue("course") / "model.hdf5"
    weights = load_weights(path)
    digits = load_dataset(mnist / "t10k-images-idx3-ubyte.gz")
    pipeline = Pipeline(plan_here(plan), weights, len(digits.images))
    found = pipeline.run(cupy.asarray(digits.images)).get()
    exact = (reference_scores(digits.images, weights)[1] == digits.labels).sum()
    assert (found == digits.labels).sum() >= exact - most
