"""Packed images: nothing lost, whatever they show; nothing silent, whatever became of the file."""

from __future__ import annotations

import os
import struct
import zlib

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.hdf5 import open_file
from lenetgpu.files.packed import source as form
from lenetgpu.files.packed.records import LONGEST, SHORTEST, check_records, pack, unpack
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


@pytest.fixture
def few(tmp_path):
    """A packed file of three images in two blocks, and its datasets."""
    images = np.zeros((3, 28, 28), np.uint8)
    images[0, 3, 5:8] = 7
    images[2, 0, 27], images[2, 27, 0] = 1, 255
    payload, lengths = pack(images)
    starts = np.array([0, lengths[:2].sum(), lengths.sum()], "<u8")
    held = {"records": payload, "lengths": lengths.astype("<u2"), "starts": starts,
            "y": np.array([4, 0, 9], np.uint8)}  # fmt: skip
    path = tmp_path / "few.h5"
    written(path, held)
    found = load_dataset(path)
    np.testing.assert_array_equal(found.images[..., 0], images)
    assert found.labels.tolist() == [4, 0, 9]
    return path, held, images


def written(path, held, block=2, version=1, **options):
    """A packed file of these datasets, with checksums made here by the page."""
    n = len(held["lengths"])
    edges = np.append(0, held["lengths"].astype(int).cumsum())
    sums = []
    for number, lo in enumerate(range(0, n, block)):
        hi = min(lo + block, n)
        parts = struct.pack("<QQQ", n, number, "y" in held), held["lengths"][lo:hi].tobytes()
        labels = held["y"][lo:hi].tobytes() if "y" in held else b""
        whole = b"".join((*parts, labels, held["records"][edges[lo] : edges[hi]].tobytes()))
        sums.append(zlib.crc32(whole))
    with h5py.File(path, "w") as file:
        file.attrs["packed_images"], file.attrs["images_a_block"] = version, block
        for name, values in ({"sums": np.array(sums, "<u4")} | held).items():
            file.create_dataset(name, data=values, **options)
    return path


def refused(path):
    with pytest.raises(LenetError) as caught:
        load_dataset(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert "expected" in str(caught.value) and "found" in str(caught.value)
    return str(caught.value)


def flipped(path, at, bit):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_every_flipped_bit_of_every_dataset_is_a_sentence(few):
    path, held, _ = few
    whole = path.read_bytes()
    with h5py.File(path) as file:
        places = {n: (file[n].id.get_offset(), file[n].nbytes) for n in (*held, "sums")}
    for name, (begin, size) in places.items():
        for at in range(begin, begin + size):
            for bit in range(8):
                flipped(path, at, bit)
                said = refused(path)
                if name in ("records", "sums"):
                    assert "block 0 " in said or "block 1 " in said, (name, at, bit)
                path.write_bytes(whole)
    assert load_dataset(path).labels is not None


def test_flipped_bits_anywhere_give_the_same_images_or_a_sentence(few, rng):
    path, _, images = few
    whole = path.read_bytes()
    for place in rng.choice(8 * len(whole), 300, replace=False).tolist():
        flipped(path, place // 8, place % 8)
        try:
            found = load_dataset(path)
        except LenetError as error:
            assert "\n" not in str(error)
        else:
            np.testing.assert_array_equal(found.images[..., 0], images)
            assert found.labels.tolist() == [4, 0, 9]
        path.write_bytes(whole)


def test_blocks_that_changed_places_are_noticed(tmp_path, rng):
    image = spots(rng, 1)[0]
    payload, lengths = pack(np.stack([image, np.roll(image, 1)]))
    starts = np.array([0, lengths[0], lengths.sum()], "<u8")
    held = {"records": payload, "lengths": lengths.astype("<u2"), "starts": starts}
    path = written(tmp_path / "two.h5", held, block=1)
    assert len(load_dataset(path)) == 2
    with h5py.File(path, "a") as file:
        first, second = payload[: lengths[0]], payload[lengths[0] :]
        file["records"][...] = np.concatenate([second, first])
        file["lengths"][...] = lengths[::-1].copy()
        file["starts"][1] = lengths[1]
        file["sums"][...] = file["sums"][...][::-1].copy()
    assert "block 0 " in refused(path)


def test_labels_that_went_are_noticed(few):
    path, _, _ = few
    with h5py.File(path, "a") as file:
        del file["y"]
    assert "block 0 " in refused(path)


def changed(held, **parts):
    return held | {name: np.asarray(v, held[name].dtype) for name, v in parts.items()}


def record(mask, spans, pixels):
    """A record of a mask, spans as numbers of 10 bits, and pixels."""
    bits = number(bit for span in spans for bit in [span >> k & 1 for k in range(10)])
    header = struct.pack("<I", mask) + bits.to_bytes(-(-10 * len(spans) // 8), "little")
    return np.frombuffer(header + bytes(pixels), np.uint8)


ONE = 1 | 0 << 5  # column 1, one pixel
BAD_RECORDS = {
    "have 28 rows": record(1 << 28, [ONE], [1]),
    "have spans inside 28 columns, found 29": record(1, [27 | 1 << 5], [1, 2]),
    "end its spans with zero bits": record(1, [ONE, 1], [1])[[0, 1, 2, 3, 4, 5, 7]],
    "be as long as its spans say, found 8": record(1, [ONE], [1, 2]),
    "be as long as its spans say, found 6": record(1, [ONE], []),
    "be as long as its spans say, found 5": record(1, [ONE], [])[:5],
    "have 4 to 823 bytes, found 3": record(1, [ONE], [])[:3],
    "have 4 to 823 bytes, found 824": record(0, [], [0] * 820),
}


@pytest.mark.parametrize("said", BAD_RECORDS)
def test_records_with_right_checksums_are_not_believed(said, tmp_path):
    """The second of three, the other two right; and it is named."""
    bad, good = BAD_RECORDS[said], record(1, [ONE], [1])
    payload = np.concatenate([good, bad, good])
    lengths = np.array([len(good), len(bad), len(good)], "<u2")
    starts = np.array([0, len(payload)], "<u8")
    held = {"records": payload, "lengths": lengths, "starts": starts}
    path = written(tmp_path / "bad.h5", held, block=3)
    assert f"expected packed image 1 to {said}" in refused(path)
    with open_source(path) as source, pytest.raises(LenetError, match="packed image 1 to"):
        source.packed(1, 3)


def test_a_bad_record_far_behind_is_named():
    payload, lengths = pack(np.zeros((9000, 28, 28), np.uint8))
    payload[4 * 8765 + 3] = 128
    out = np.empty((9000, 28, 28, 1), np.uint8)
    said = "^here: expected packed image 8,765 to have 28 rows"
    with pytest.raises(LenetError, match=said):
        check_records(payload, lengths, "here")
    with pytest.raises(LenetError, match=said):
        unpack(payload, lengths, out, "here")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"starts": [1, 13, 22]}, "/starts to rise from 0 to"),
        ({"starts": [0, 13, 21]}, "/starts to rise from 0 to"),
        ({"starts": [0, 1 << 63, 22]}, "/starts to rise from 0 to"),
        ({"starts": [0, 19, 22]}, "4 to 823 bytes an image, found 3 for the 1 images of block 1"),
        ({"starts": [0, 7, 22]}, "4 to 823 bytes an image, found 7 for the 2 images of block 0"),
        ({"starts": [0, 12, 22]}, "other lengths"),
        ({"starts": [0, 13, 2000], "records": np.zeros(2000)}, "found 1,987 for the 1 images"),
        ({"starts": [0, 22]}, "/starts to have 3 items for 3 packed images, found 2"),
        ({"sums": [1]}, "/sums to have 2 items"),
        ({"sums": [1, 2]}, "block 0 .*checksum 00000001"),
        ({"y": [1, 2]}, "/y to have 3 items"),
        ({"y": [1, 2, 10]}, "/y to hold class numbers"),
        ({"lengths": [9, 4, 9, 4]}, "/y to have 4 items for 4 packed images, found 3"),
        ({"lengths": [9, 4]}, "/starts to have 2 items for 2 packed images, found 3"),
        ({"lengths": [4, 9, 9]}, "packed image 0 to be as long as its spans say, found 4"),
        ({"records": np.zeros(21)}, "/starts to rise from 0 to 21, found 0 to 22"),
    ],
)
def test_datasets_that_do_not_fit(few, parts, said):
    import re

    path, held, _ = few
    assert held["lengths"].tolist() == [9, 4, 9] and held["starts"].tolist() == [0, 13, 22]
    held["sums"] = np.zeros(2, "<u4")
    right = {name: v for name, v in held.items() if name != "sums" or "sums" in parts}
    fitted = changed(right, **parts)
    written(path, fitted)
    assert re.search(said, refused(path)), refused(path)


@pytest.mark.parametrize(
    ("block", "version", "said"),
    [(0, 1, "images_a_block to be 1 to 32768, found 0"), (1 << 17, 1, "images_a_block"),
     (2, 2, "packed_images to be 1, found 2"), (2, "one", "packed_images to be 1, found one"),
     (2.0, 1, "images_a_block"), (3, 1, "/starts to have 2 items")],
)  # fmt: skip
def test_attributes_that_are_wrong(few, block, version, said):
    path, _, _ = few
    with h5py.File(path, "a") as file:
        file.attrs["packed_images"], file.attrs["images_a_block"] = version, block
    assert said in refused(path)


@pytest.mark.parametrize("name", ["records", "lengths", "starts", "sums", "y"])
def test_datasets_of_another_form(few, name):
    path, _, _ = few
    with h5py.File(path, "a") as file:
        values = file[name][...]
        makers = {
            "found chunks": lambda: file.create_dataset(name, data=values, chunks=(2,)),
            "found type float64": lambda: file.create_dataset(name, data=values.astype("f8")),
            "found type >": lambda: file.create_dataset(name, data=values.astype(">u4")),
            "found shape": lambda: file.create_dataset(name, data=values[None]),
            "found a group": lambda: file.create_group(name),
            "found nothing written": lambda: file.create_dataset(name, (3,), values.dtype),
        }
        for said, make in makers.items():
            del file[name]
            make()
            file.flush()
            assert said in refused(path)
        del file[name]
        file.flush()
        assert name == "y" or "no such dataset" in refused(path)
        file[name] = h5py.ExternalLink("other.h5", "/x")
        file.flush()
        assert "another file" in refused(path)


def test_a_dataset_that_ends_beyond_the_file(many):
    """Of a file that became shorter when HDF5 had looked at it, which looks too."""
    path, _, _ = many
    with open_file(path) as file:
        with path.open("r+b") as shorter:
            shorter.truncate(path.stat().st_size - 1)
        with pytest.raises(LenetError, match="/records .* items, which end beyond the file"):
            form.PackedSource(path, file, 0, None)


def test_more_blocks_than_memory_is_taken_for_are_refused(tmp_path):
    """Of a sparse file, which is small on its disk."""
    path = tmp_path / "vast.h5"
    with h5py.File(path, "w") as file:
        file.attrs["packed_images"], file.attrs["images_a_block"] = 1, 1
        for name, dtype in {"records": "u1", "lengths": "u2", "starts": "u8", "sums": "u4"}.items():
            count = (1 << 33) + (name == "starts")
            made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            made.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            kind = h5py.h5t.py_create(np.dtype(dtype))
            h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((count,)), made)
    assert "1 to 67,108,864 blocks of packed images, found 8,589,934,592" in refused(path)


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


def test_it_is_recognised_by_its_attribute_alone(few, tmp_path):
    path, _, _ = few
    assert form.ATTRIBUTE == "packed_images"
    with h5py.File(path, "a") as file:
        del file.attrs["packed_images"]
    assert "/x" in refused(path)
