"""2:4 sparse filters: what is dropped, what is made up for, and how the kernel gets them."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest
from emulated import whole_of_sparse

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.gpu.nvrtc import INCLUDE_ROOT
from lenetgpu.stages.fused.wgmma import int8_pack
from lenetgpu.stages.fused.wgmma_sparse import pack, prune


def of_fours(filters):
    """(K, M) as how many of each four of K are not zero."""
    return (filters.reshape(-1, 4, filters.shape[-1]) != 0).sum(1)


def drawn(rng, shape=(5, 5, 32, 64)):
    """Bytes with 0, 1 or 2 of every four channels kept, anywhere."""
    whole = rng.integers(-127, 128, shape).astype(np.int8)
    order = rng.random((25 * 8, 4, 64)).argsort(1).reshape(shape)
    some = np.repeat(rng.integers(0, 3, (25 * 8, 64)), 4, axis=0).reshape(shape)
    return np.where(order < some, whole, 0).astype(np.int8)


def test_what_is_packed_means_the_filters(rng):
    whole = drawn(rng)
    counts = of_fours(whole.reshape(800, 64))
    assert {0, 1, 2} == set(np.unique(counts))
    packed = pack.pack_conv2(whole)
    assert packed.dtype == np.uint8 and packed.shape == (pack.FILTER_BYTES,)
    np.testing.assert_array_equal(whole_of_sparse(packed), whole)


def test_a_steps_cells_lie_at_one_stride_and_every_tap_is_in_one(rng):
    """Plane, row and column of a step's four cells of the maps: their addresses are in line."""
    whole = np.zeros((5, 5, 32, 64), np.int16)
    r, s, c = np.indices((5, 5, 32))
    whole[...] = (1 + 1_000 * (c // 16) + 100 * r + 10 * s)[..., None]
    steps = pack.steps_of(whole).reshape(pack.STEPS, 64, 4, 16)
    assert (steps == steps[:, :1, :, :1]).all()
    cells = steps[:, 0, :, 0].astype(int) - 1
    planes, rows, columns = cells // 1000, cells // 100 % 10, cells // 10 % 10
    at = 292 * planes + 24 * rows + columns  # of two images' maps, rows of 12 beside each other
    assert (np.diff(at[:-1], 2) == 0).all() and (np.diff(at[:-1]) > 0).all()
    assert cells[-1].tolist() == [440, 1440, -1, -1]
    found = sorted(cells[cells >= 0])
    assert found == sorted(1000 * p + 100 * r + 10 * s for p in (0, 1) for r, s in np.ndindex(5, 5))


def banks_of(pairs):
    """The most words of one bank that a warp's load of four pairs asks for."""
    quad, position = np.indices((4, 8))
    row, column = np.divmod(np.asarray(pairs)[quad], 3)
    words = np.unique((2 * (position // 4) + row) * 14 + position % 4 + column)
    return np.bincount(words % 32).max()


def test_pixel_pairs_are_loaded_without_conflicts_and_all_are_there(rng):
    assert sorted(pack.PAIR_ORDER) == list(range(16))
    held = [*pack.PAIR_ORDER[:15], pack.PAIR_ORDER[14]]  # what has no weight is read once more
    assert [banks_of(held[at : at + 4]) for at in (0, 4, 8, 12)] == [1] * 4
    assert [banks_of(range(at, at + 4)) for at in (0, 4, 8)] == [2] * 3
    source = (INCLUDE_ROOT / "stages/fused/wgmma/conv1.cuh").read_text()
    said = int(re.search(r"PAIRS_APART = (0x\w+);", source)[1], 16)
    assert [said >> 4 * at & 15 for at in range(16)] == held


def test_conv1_is_packed_with_its_pairs_in_that_order(shipped_weights):
    held = shipped_weights.balanced["conv1"]
    found, _, _ = pack.pack(held, np.zeros((5, 5, 32, 64), np.float32))
    plain = int8_pack.pack_conv1(held, int8_pack.ranges(held))
    for at, pair in enumerate(pack.PAIR_ORDER):
        for item in range(2):
            (to, of) = ((k // 16, k // 8 % 2, k % 8) for k in (2 * at + item, 2 * pair + item))
            np.testing.assert_array_equal(
                found[:, to[0], to[1], :, to[2]], plain[:, of[0], of[1], :, of[2]]
            )


def test_places_ascend_and_differ_where_nothing_is_kept(rng):
    kept, places = pack.halved(drawn(rng).reshape(800, 64).T)
    assert kept.shape == (64, 400) and places.shape == (64, 200, 2)
    assert (places[..., 0] < places[..., 1]).all() and places.max() == 3
    kept, places = pack.halved(np.zeros((3, 8), np.int8))
    assert not kept.any() and (places == [0, 1]).all()
    _, places = pack.halved(np.array([[0, 0, 0, 5]], np.int8))
    assert places.tolist() == [[[0, 3]]]


def test_what_is_not_sparse_is_refused(rng):
    whole = drawn(rng)
    whole[3, 2, 8:11, 7] = 1
    with pytest.raises(LenetError, match="two of every four channels at most, found more"):
        pack.pack_conv2(whole)


def test_each_places_have_one_thread_and_four_bits(rng):
    base = np.broadcast_to([0, 1], (64, 16, 2))
    at = set()
    for row, four in np.ndindex(64, 16):
        places = base.copy()
        places[row, four] = [2, 3]
        changed = pack.by_thread(places) ^ pack.by_thread(base)
        (thread,) = np.flatnonzero(changed)
        bits = int(changed[thread])
        shift = (bits & -bits).bit_length() // 4 * 4
        assert bits >> shift == 0b0100 ^ 0b1110
        assert thread // 32 == row // 16 and shift == 4 * (four % 8)
        at.add((int(thread), shift))
    assert len(at) == 64 * 16


def loss(exact, found, moments):
    off = exact - found
    return np.einsum("km,kl,lm->m", off, moments, off)


def cases(rng, count, inputs=8, outputs=5):
    for _ in range(count):
        met = rng.standard_normal((40, inputs)) @ rng.standard_normal((inputs, inputs))
        met = np.maximum(met, 0)
        yield rng.standard_normal((inputs, outputs)), met.T @ met


def best_of_all(exact, moments):
    """The least loss of every output, over all ways to keep two of each four."""
    pairs = list(combinations(range(4), 2))
    found = np.full(exact.shape[1], np.inf)
    for first in pairs:
        for second in pairs:
            held = [*first, *(4 + k for k in second)]
            fitted = np.zeros_like(exact)
            inner = moments[np.ix_(held, held)]
            fitted[held] = np.linalg.solve(inner, moments[held] @ exact)
            found = np.minimum(found, loss(exact, fitted, moments))
    return found


def of_largest(exact):
    fours = exact.reshape(-1, 4, exact.shape[1])
    order = np.abs(fours).argsort(1).argsort(1)
    return np.where(order >= 2, fours, 0).reshape(exact.shape)


def test_pruning_loses_little_more_than_the_best_of_all_ways(rng):
    """Half as much again over many cases at most; the largest alone, not fitted, lose much more."""
    least = plain = found = 0.0
    for exact, moments in cases(rng, 60):
        made = prune.prune(exact, moments)
        assert (of_fours(made) <= 2).all()
        best, own = best_of_all(exact, moments), loss(exact, made, moments)
        assert (own >= 0.999 * best).all()
        least, found = least + best.sum(), found + own.sum()
        plain += loss(exact, of_largest(exact), moments).sum()
    assert found < 1.6 * least and found < 0.75 * plain


def plainly(exact, moments):
    """What is kept, an inverse a row: what a dropped filter did goes to those behind it."""
    met = moments + 1e-3 * np.trace(moments) / len(exact) * np.eye(len(exact))
    left, kept = exact.copy(), np.zeros(exact.shape, bool)
    inverse = [np.linalg.inv(met[row:, row:])[0] for row in range(len(exact))]
    for row, own in enumerate(inverse):
        if row % 4 == 0:
            loss = [left[k] ** 2 / inverse[k][0] for k in range(row, row + 4)]
            kept[row : row + 4] = np.argsort(np.argsort(loss, axis=0), axis=0) >= 2
        left[row:] -= np.outer(own / own[0], np.where(kept[row], 0, left[row]))
    return kept


def test_what_is_dropped_is_made_up_for_before_the_next_is_looked_at(rng):
    """Of 100 inputs, so that it goes from one block of rows to another."""
    ((exact, moments),) = cases(rng, 1, inputs=100, outputs=7)
    np.testing.assert_array_equal(prune.prune(exact, moments) != 0, plainly(exact, moments))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_moments_of_any_kind_are_taken(scale, rng):
    """Inputs that never wake or are all alike; nothing there at all."""
    exact = rng.standard_normal((8, 3))
    alike = np.ones((8, 8))
    alike[2] = alike[:, 2] = 0
    for moments in (alike, np.zeros((8, 8))):
        made = prune.prune(exact * scale, moments) / scale
        assert np.isfinite(made).all() and (of_fours(made) == 2).all()
        assert np.abs(made).max() < 10 * np.abs(exact).max()
    np.testing.assert_allclose(made, of_largest(exact))
    assert not prune.prune(0 * exact, alike).any()


def test_second_moments_are_of_windows_and_exact(rng):
    maps = rng.integers(0, 256, (37, 12, 12, 32)).astype(np.float64)
    found = prune.second_moments(maps)
    np.testing.assert_array_equal(found, prune.second_moments(maps[::-1]))
    for (r, s, c), (v, w, d) in (((0, 0, 0), (0, 0, 0)), ((4, 1, 31), (2, 3, 5))):
        a = maps[:, r : r + 8, s : s + 8, c]
        b = maps[:, v : v + 8, w : w + 8, d]
        assert found[(5 * r + s) * 32 + c, (5 * v + w) * 32 + d] == (a * b).sum()


def test_the_shipped_filters_are_sparse_and_do_what_they_did(shipped_weights):
    """On digits that they were not fitted to, by features; dropping the smallest is far worse."""
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


def test_white_and_noise_are_among_what_filters_are_fitted_to():
    images = prune.calibration()
    assert images.dtype == np.uint8 and images.shape[1:] == (28, 28, 1)
    assert 200 < len(images) < 500
    bright = images.reshape(len(images), -1).mean(1)
    assert (bright == 255).sum() == 3 and (bright > 120).sum() == 19


@pytest.mark.parametrize("dead", ["one channel", "all"])
def test_filters_behind_channels_that_never_wake_are_no_obstacle(
    dead, shipped_weights, monkeypatch
):
    few = prune.calibration()[::16]
    monkeypatch.setattr(prune, "calibration", lambda: few)
    monkeypatch.setattr(prune, "_pruned", prune._pruned.__wrapped__)  # others' are kept
    conv1 = shipped_weights.balanced["conv1"].copy()
    conv1[..., 3 if dead == "one channel" else slice(None)] = -1
    found = prune.pruned(conv1, shipped_weights.balanced["conv2"])
    whole, scales = int8_pack.quantize(found, int8_pack.ranges(conv1))
    assert np.isfinite(found).all() and np.isfinite(scales).all()
    assert not whole[:, :, 3].any() and whole.any() == (dead == "one channel")
    pack.pack_conv2(whole)
