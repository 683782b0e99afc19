"""Packed images: nothing lost, whatever they show; the command, slices, files cut short."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files.checksums import stated
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.hdf5 import open_file
from lenetgpu.files.packed import source as form
from lenetgpu.files.packed.records import LONGEST, SHORTEST, pack, unpack
from lenetgpu.files.packed.write import pack_data
from lenetgpu.files.source import open_source

DIGITS = ROOT / "data" / "digits-10k.h5"


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def bits_of(record):
    return [byte >> bit & 1 for byte in record for bit in range(8)]


def number(bits):
    return sum(bit << place for place, bit in enumerate(bits))


def by_the_page(record):
    """One image of its record, bit by bit as docs/packed.md says; all of the record is used."""
    bits = bits_of(record.tolist())
    image = np.zeros((28, 28), np.uint8)
    rows = [row for row in range(32) if bits[row]]
    spans = []
    for k, row in enumerate(rows):
        at = 32 + 10 * k
        spans.append((row, number(bits[at : at + 5]), number(bits[at + 5 : at + 10]) + 1))
    at = 4 + -(-10 * len(rows) // 8)
    assert not any(bits[32 + 10 * len(rows) : 8 * at])
    for row, first, count in spans:
        assert first + count <= 28
        image[row, first : first + count] = record[at : at + count]
        at += count
    assert at == len(record)
    return image


def spots(rng, n):
    """From nearly blank to nearly full, of random values."""
    held = rng.random((n, 28, 28)) < rng.random((n, 1, 1)) ** 3
    return held * rng.integers(1, 256, (n, 28, 28), dtype=np.uint8)


def one_pixel():
    images = np.zeros((784, 784), np.uint8)
    images[np.arange(784), np.arange(784)] = np.arange(784) % 255 + 1
    return images.reshape(-1, 28, 28)


def one_span():
    """A span of every first column and count."""
    at = [(first, count) for first in range(28) for count in range(1, 29 - first)]
    images = np.zeros((len(at), 28, 28), np.uint8)
    for image, (first, count) in zip(images, at, strict=True):
        image[first, first : first + count] = 1
    return images


KINDS = {
    "digits": lambda rng: load_dataset(DIGITS).images[:5000, :, :, 0],
    "noise": lambda rng: rng.integers(0, 256, (40, 28, 28), dtype=np.uint8),
    "blank": lambda rng: np.zeros((3, 28, 28), np.uint8),
    "white": lambda rng: np.full((3, 28, 28), 255, np.uint8),
    "one pixel": lambda rng: one_pixel(),
    "one span": lambda rng: one_span(),
    "spots": lambda rng: spots(rng, 4500),
}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost(kind, rng):
    images = KINDS[kind](rng)
    payload, lengths = pack(images)
    assert lengths.dtype == np.uint16 and lengths.sum() == len(payload)
    assert SHORTEST <= lengths.min() <= lengths.max() <= LONGEST == 823
    out = np.full((len(images), 28, 28, 1), 7, np.uint8)
    unpack(payload, lengths, out, "here")
    np.testing.assert_array_equal(out[..., 0], images)
    edges = lengths.cumsum()
    for i in rng.integers(0, len(images), 30).tolist():
        record = payload[edges[i] - lengths[i] : edges[i]]
        np.testing.assert_array_equal(by_the_page(record), images[i])


def test_the_pages_examples():
    images = np.zeros((2, 28, 28), np.uint8)
    images[1, 1, 2] = 9
    payload, lengths = pack(images)
    assert lengths.tolist() == [4, 7]
    assert payload.tobytes() == bytes(4) + b"\2\0\0\0\2\0\x09"
    page = (ROOT / "docs" / "packed.md").read_text()
    assert f"`{payload[:4].tobytes().hex(' ')}`" in page
    assert f"`{payload[4:].tobytes().hex(' ')}`" in page


def test_floats_are_refused(tmp_path):
    path = tmp_path / "floats.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((2, 28, 28), np.float32)
    with pytest.raises(LenetError, match="expected uint8 pixels, which .*found float32"):
        pack_data(path, tmp_path / "out.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["floats.h5"]
    with pytest.raises(LenetError, match="expected uint8 pixels"):
        pack(np.zeros((2, 28, 28), np.float32))


def plain(path, images, labels=None):
    with h5py.File(path, "w") as file:
        file["x"] = images
        if labels is not None:
            file["y"] = labels
    return path


@pytest.fixture
def many(tmp_path, rng):
    """Packed images of several blocks, the last one short, and what they are."""
    images, labels = spots(rng, 4700), rng.integers(0, 10, 4700, dtype=np.uint8)
    path = tmp_path / "packed.h5"
    told = []
    packed = pack_data(plain(tmp_path / "x.h5", images, labels), path, lambda *t: told.append(t))
    assert packed.images == 4700 and packed.bytes == path.stat().st_size
    assert told[-1] == (4700, 4700) and len(told) == 2
    return path, images[..., None], labels


def test_a_file_holds_what_was_packed(many):
    path, images, labels = many
    found = load_dataset(path)
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.labels.dtype == np.int64 and found.source == str(path)


def test_any_slice_alone(many, rng):
    path, images, labels = many
    for skip, limit in ((0, 1), (255, 2), (256, 256), (4600, None), (4699, 9), (1000, 3000)):
        with open_source(path, skip, limit) as source:
            chosen = slice(skip, None if limit is None else skip + limit)
            np.testing.assert_array_equal(source.labels, labels[chosen])
            assert len(source) == len(images[chosen]) and source.dtype == "uint8"
            lo, hi = sorted(rng.integers(0, len(source) + 1, 2).tolist())
            out = np.full((hi - lo, 28, 28, 1), 9, np.uint8)
            source.read(lo, out)
            np.testing.assert_array_equal(out, images[chosen][lo:hi])
            if lo < hi:
                assert_packed(source, lo, hi, images[chosen][lo:hi])
    with pytest.raises(LenetError, match="to skip, found 4,700"):
        open_source(path, 4700)


def assert_packed(source, lo, hi, images):
    room = np.zeros(source.room(lo, hi) + 5, np.uint8)
    for into in (None, room):
        payload, offsets = source.packed(lo, hi, into)
        assert payload.dtype == np.uint8 and payload.flags.c_contiguous
        assert offsets.dtype == np.uint32 and offsets.shape == (hi - lo + 1,)
        assert offsets[0] == 0 and offsets[-1] == len(payload)
        assert np.shares_memory(payload, room) == (into is not None)
        out = np.zeros(images.shape, np.uint8)
        unpack(payload, np.diff(offsets), out, "here")
        np.testing.assert_array_equal(out, images)


def test_a_slice_reads_the_blocks_that_it_lies_in_only(many, monkeypatch):
    path, images, _ = many
    read = []
    with open_source(path, 600, 300) as source:  # blocks 2 and 3
        plainly = source._file.read_into
        monkeypatch.setattr(
            source._file, "read_into", lambda out, at: (read.append(len(out)), plainly(out, at))
        )
        out = np.empty((300, 28, 28, 1), np.uint8)
        source.read(0, out)
        np.testing.assert_array_equal(out, images[600:900])
    with h5py.File(path) as file:
        lengths = file["lengths"][512:1024]
    assert sum(read) == lengths.nbytes + len(lengths) + lengths.sum()  # a label each


def test_files_are_as_small_as_the_page_says(mnist, tmp_path):
    page = (ROOT / "docs" / "packed.md").read_text()
    for path, bytes_an_image in ((mnist / "t10k-images-idx3-ubyte.gz", 204), (DIGITS, 217)):
        assert f" {bytes_an_image}" in page
        target = tmp_path / "packed.h5"
        packed = pack_data(path, target)
        with open_source(target) as source:
            assert round(source.bytes_an_image) == bytes_an_image
        assert packed.bytes < (bytes_an_image + 4.5) * packed.images
        assert np.array_equal(load_dataset(target).images, load_dataset(path).images)


def test_the_command(many, tmp_path):
    path, _, _ = many
    again = tmp_path / "again.h5"
    result = run("data", "pack", path, again)
    assert result.exit_code == 0, result.output
    assert f"{again}: 4,700 images" in result.output and "of 784" in result.output
    assert again.read_bytes() == path.read_bytes()
    (tmp_path / "plain").touch()
    assert again.stat().st_mode == (tmp_path / "plain").stat().st_mode
    with open_source(again) as source:
        said = f"packed        {source.bytes_an_image:.1f} bytes each of 784"
    assert said in run("data", "info", again).output
    assert "packed" not in run("data", "info", DIGITS).output


def test_every_plan_of_a_cpu_reads_packed_images(tmp_path):
    packed = tmp_path / "packed.h5"
    assert run("data", "pack", DIGITS, packed).exit_code == 0
    for plan in ("serial", "tiled"):
        found = []
        for path in (DIGITS, packed):
            target = tmp_path / f"{path.stem}.npy"
            options = ("--limit", 70, "--device", "cpu", "--plan", plan, "--output", target)
            result = run("infer", path, *options)
            assert result.exit_code == 0, result.output
            found.append(np.load(target))
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("target", "found"), [("none/x.h5", "found none"), ("x", "a folder"), ("pipe", "a device")]
)
def test_targets_that_cannot_be(tmp_path, target, found):
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "pipe")
    result = run("data", "pack", DIGITS, tmp_path / target)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert found in result.stderr
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["pipe", "x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_what_is_stopped_leaves_the_target_as_it_was(tmp_path, monkeypatch, error):
    target = tmp_path / "packed.h5"
    target.write_bytes(b"before")

    def stop(done, total):
        raise error

    with pytest.raises((LenetError, KeyboardInterrupt)) as caught:
        pack_data(DIGITS, target, stop)
    assert error is KeyboardInterrupt or "found: No space left" in str(caught.value)
    assert target.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["packed.h5"]


def test_a_dataset_that_ends_beyond_the_file(many):
    """Of a file that became shorter when HDF5 had looked at it, which looks too."""
    path, _, _ = many
    with h5py.File(path) as file:
        end = file["records"].id.get_offset() + len(file["records"])
    with open_file(path) as file:
        sums = stated(file)
        with path.open("r+b") as shorter:
            shorter.truncate(end - 1)
        with pytest.raises(LenetError, match="/records .* items, which end beyond the file"):
            form.PackedSource(path, file, 0, None, sums)


def test_a_file_that_shrinks_while_it_is_read_is_a_sentence(many):
    path, _, _ = many
    with open_source(path) as source:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(LenetError, match="became shorter"):
            source.read(0, np.empty((4700, 28, 28, 1), np.uint8))


def test_threads_may_read_at_once(many):
    from concurrent.futures import ThreadPoolExecutor

    path, images, _ = many
    with open_source(path) as source, ThreadPoolExecutor(8) as pool:

        def part(lo):
            out = np.empty((90, 28, 28, 1), np.uint8)
            source.read(lo, out)
            return np.array_equal(out, images[lo : lo + 90])

        assert all(pool.map(part, range(0, 4600, 45)))
