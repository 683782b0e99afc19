"""Packed images on a GPU: the kernel's pixels, and the labels of every plan."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ROOT
from packed_records import all_shown, wild_cases
from test_gpu_variants import PLANS, needs

from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.packed.records import pack
from lenetgpu.files.packed.write import pack_data
from lenetgpu.files.source import open_source
from lenetgpu.net.streaming.schedule import MOST_CHUNK
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve
from lenetgpu.stages.support.unpack import Records, unpack

pytestmark = pytest.mark.gpu
DIGITS = ROOT / "data" / "digits-10k.h5"


def unpacked(held, begin, size, offsets, base=0):
    """What the kernel makes of `size` bytes of `held`; every pixel is written, none beside."""
    import cupy

    held, offsets = cupy.asarray(held), cupy.asarray(offsets.astype(np.uint32))
    n, found = len(offsets) - 1, []
    for poison in (0, 255):
        out = cupy.full((n + 2, 28, 28, 1), poison, cupy.uint8)
        unpack(Records(held[begin : begin + size], offsets, base), out[1:-1])
        found.append(out[1:-1].get())
        assert (out[[0, -1]] == poison).all()
    np.testing.assert_array_equal(*found)
    return found[0]


def spots(rng, n):
    held = rng.random((n, 28, 28)) < rng.random((n, 1, 1)) ** 3
    return held * rng.integers(1, 256, (n, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("n", [1, 3, 8, 133, 10_000])
def test_images_are_unpacked(n, rng):
    images = np.concatenate(
        [load_dataset(DIGITS).images[: n // 2, :, :, 0], spots(rng, n - n // 2)]
    )
    images[rng.integers(0, n)] = rng.integers(0, 2) * 255
    payload, lengths = pack(images)
    offsets = np.append(0, lengths.cumsum(dtype=np.int64))
    np.testing.assert_array_equal(unpacked(payload, 0, len(payload), offsets)[..., 0], images)
    lo = n // 3
    part = payload[offsets[lo] :]
    found = unpacked(part, 0, len(part), offsets[lo:], int(offsets[lo]))
    np.testing.assert_array_equal(found[..., 0], images[lo:])


def test_unpacking_reads_nothing_beside_whatever_it_is_given(rng):
    payload, lengths = pack(spots(rng, 400))
    offsets = np.append(0, lengths.cumsum(dtype=np.int64))
    for records, places, base in wild_cases(payload, offsets, rng):
        held = np.full((1 << 16) + len(records), 77, np.uint8)
        held[1 << 15 : (1 << 15) + len(records)] = records
        found = unpacked(held, 1 << 15, len(records), places, base)
        np.testing.assert_array_equal(found, all_shown(records, places, base))


@pytest.fixture(scope="module")
def packed_digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "digits.h5"
    pack_data(DIGITS, path)
    return path


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_every_plan_labels_packed_images_as_others(name, zero_copy, shipped_weights, packed_digits):
    """Of page-locked memory, launched and replayed; of memory that is not; of a file."""
    from lenetgpu.net.streaming import Streamer, host_results, packed_images, pinned_copy

    plan = resolve(name, "cuda")
    for slot in plan.slots:
        needs(slot.variant)
    images = load_dataset(DIGITS).images[:3_000]

    def make(size):
        return Pipeline(plan, shipped_weights, size)

    expected, _ = host_results(len(images), with_scores=False)
    Streamer(make, 777, 2).run(pinned_copy(images), expected)
    streamer = Streamer(make, 777, 2, zero_copy=zero_copy)
    payload, lengths = pack(images)
    offsets = np.append(0, lengths.cumsum(dtype=np.int64)).astype(np.uint32)
    locked = packed_images(pinned_copy(payload), pinned_copy(offsets))
    labels, _ = host_results(len(images), with_scores=False)
    for packed in (locked, locked, locked, packed_images(payload, offsets)):
        labels[...] = -1
        streamer.run(packed, labels)
        np.testing.assert_array_equal(labels, expected)
    found = []
    with open_source(packed_digits, 0, 3_000) as source:
        streamer.run_source(source, lambda part, scores: found.extend(part.tolist()))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["fp16", "int8", "int8_sparse"])
def test_kernels_that_read_records_give_what_they_give_of_their_pixels(name, shipped_weights, rng):
    """To the bit, of any number of images and whatever the records hold; nothing else is read."""
    import cupy

    plan = resolve(name, "cuda")
    for slot in plan.slots:
        needs(slot.variant)
    pipeline = Pipeline(plan, shipped_weights, MOST_CHUNK)
    assert pipeline.takes_packed

    def same(records, images):
        n, found = len(images), []
        for given in (records, cupy.asarray(images)):
            pipeline.poison()
            labels = pipeline.run(given).get()
            found.append((labels, pipeline.scores(n)))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])

    digits = np.resize(load_dataset(DIGITS).images, (MOST_CHUNK, 28, 28, 1))
    payload, lengths = pack(digits)
    offsets = np.append(0, lengths.cumsum(dtype=np.int64)).astype(np.uint32)
    held = cupy.asarray(payload)
    for n in (1, 2, 3, 79, 81, 1_001, 10_000, 11_881, 23_761, MOST_CHUNK):
        same(Records(held, cupy.asarray(offsets[: n + 1])), digits[:n])
    part = held[int(offsets[77]) :]
    same(Records(part, cupy.asarray(offsets[77:500]), int(offsets[77])), digits[77:499])
    payload, lengths = pack(spots(rng, 700))
    offsets = np.append(0, lengths.cumsum(dtype=np.int64))
    for records, places, base in wild_cases(payload, offsets, rng):
        held = np.full((1 << 16) + len(records), 77, np.uint8)
        held[1 << 15 : (1 << 15) + len(records)] = records
        inside = cupy.asarray(held)[1 << 15 : (1 << 15) + len(records)]
        packed = Records(inside, cupy.asarray(places.astype(np.uint32)), base)
        same(packed, all_shown(records, places, base))


def test_infer_takes_a_packed_file(packed_digits, tmp_path):
    from click.testing import CliRunner

    from lenetgpu.cli import main

    found = []
    for path in (DIGITS, packed_digits):
        target = tmp_path / f"{path.stem}.npy"
        options = ["infer", str(path), "--device", "cuda", "--output", str(target)]
        result = CliRunner().invoke(main, options)
        assert result.exit_code == 0, result.output
        found.append(np.load(target))
    np.testing.assert_array_equal(*found)
