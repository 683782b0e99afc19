"""Packed images of damaged files: nothing silent, whatever became of them."""

from __future__ import annotations

import struct
import zlib

import h5py
import numpy as np
import pytest
from test_packed import number, spots

from lenetgpu.errors import LenetError
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.packed import source as form
from lenetgpu.files.packed.records import check_records, pack, unpack
from lenetgpu.files.source import open_source


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
    for index, lo in enumerate(range(0, n, block)):
        hi = min(lo + block, n)
        parts = struct.pack("<QQQ", n, index, "y" in held), held["lengths"][lo:hi].tobytes()
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
     (2, 2, "packed_images to be 1, found 2"), (2, "one", "found text of variable length"),
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
        assert f"found an external link at /{name}" in refused(path)


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


def test_it_is_recognised_by_its_attribute_alone(few, tmp_path):
    path, _, _ = few
    assert form.ATTRIBUTE == "packed_images"
    with h5py.File(path, "a") as file:
        del file.attrs["packed_images"]
    assert "/x" in refused(path)
