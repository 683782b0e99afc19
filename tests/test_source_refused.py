"""Files that are not what they say: refused in a sentence, or read for what they hold."""

from __future__ import annotations

import gzip
import os

import h5py
import numpy as np
import pytest
from stored import COUNT, MAKERS, as_read, h5, idx_file, npy, parts

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5, hdf5_source, regular
from lenetgpu.files.hdf5 import fletcher32
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import load_weights


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.setattr(hdf5_source, "core_count", lambda: 3)


@pytest.fixture
def digits(rng):
    return rng.integers(0, 256, (COUNT, 28, 28), dtype=np.uint8)


def refusals(path, skip=0):
    with open_source(path, skip) as source, pytest.raises(LenetError) as caught:
        parts(source, [4])
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("make", ["contiguous", "chunked"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "to be finite, found NaN or infinity in image 37 "),
        (1.5, "to hold floats in 0..1 (or uint8 pixels), found 0 to 1.5 in image 37 "),
        (-0.5, "to hold floats in 0..1 (or uint8 pixels), found -0.5 to 0 in image 37 "),
    ],
)
def test_a_wrong_float_is_said_with_its_image(tmp_path, make, value, message):
    images = np.zeros((COUNT, 28, 28), "f8" if value < 0 else "f4")
    images[37, 27, 27] = value
    images[40:] = np.nan
    path = MAKERS[make](tmp_path, images, None)
    assert message in refusals(path, skip=6)
    with open_source(path, 0, 37) as source:
        assert not source.whole().images.any()


@pytest.mark.parametrize("make", MAKERS)
def test_a_file_that_shrinks_while_it_is_read(tmp_path, rng, make):
    images = rng.integers(0, 256, (4_000, 28, 28), dtype=np.uint8)
    path = MAKERS[make](tmp_path, images, None)
    out = np.empty((1_000, 28, 28, 1), np.uint8)
    with open_source(path) as source:
        source.read(0, out)
        os.truncate(path, path.stat().st_size * 5 // 8)
        if make not in ("chunked", "idx.gz"):  # after HDF5 only the file's size is believed
            source.read(1_000, out)
            np.testing.assert_array_equal(out, as_read(images)[1_000:2_000])
        with pytest.raises(LenetError) as caught:
            source.read(2_000, out)
            source.read(3_000, out)
    message = str(caught.value)
    assert message.startswith(f"{path}: expected ") and "\n" not in message
    if make == "idx.gz":
        assert "found a damaged" in message
    else:
        assert ("bytes from byte" in message) == (make != "chunked")
        assert message.endswith(": the file became shorter while it was read")


def test_labels_and_weights_that_shrink_are_not_zeros(tmp_path, weight_file, monkeypatch):
    """HDF5 fills with zeros what lies past a file's end."""
    path = tmp_path / "x.h5"
    h5(path, np.ones((9, 28, 28), np.uint8), np.full(9, 3))
    find = hdf5.find

    def shrink(file, name, *arguments):
        item = find(file, name, *arguments)
        if name in ("y", "fc2"):
            os.truncate(file.path, os.path.getsize(file.path) - 40)
        return item

    monkeypatch.setattr(hdf5, "find", shrink)
    for load, target in ((open_source, path), (load_weights, weight_file)):
        with pytest.raises(LenetError, match="the file became shorter while it was read"):
            load(target)


def test_what_the_disk_will_not_read_is_one_sentence(tmp_path, monkeypatch, digits):
    def fail(*_):
        raise OSError(5, "Input/output error")

    path = npy(tmp_path / "x.npy", digits)
    with open_source(path) as source:
        monkeypatch.setattr(regular.os, "preadv", fail)
        with pytest.raises(LenetError, match=r"expected 47,824 readable bytes from byte 128 on, "):
            source.whole()


@pytest.mark.parametrize(("length", "value"), [(200_001, None), (783, 0), (784, 255)])
def test_fletchers_checksum_is_hdf5s(tmp_path, rng, length, value):
    data = rng.bytes(length) if value is None else bytes([value]) * length
    with h5py.File(tmp_path / "x.h5", "w") as file:
        options = {"chunks": (length,), "fletcher32": True}
        item = file.create_dataset("x", data=np.frombuffer(data, np.uint8), **options)
        _, raw = item.id.read_direct_chunk((0,))
    assert fletcher32(np.frombuffer(data, np.uint8)) == int.from_bytes(raw[length:], "little")


def test_images_that_were_never_written_are_not_zeros(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        options = {"chunks": (7, 28, 28), "compression": "gzip"}
        item = file.create_dataset("x", (COUNT, 28, 28), "u1", **options)
        item[:14] = 3
    with open_source(path, 0, 14) as source:
        assert (source.whole().images == 3).all()
    assert "a chunk stored at image 14, found one that cannot be read" in refusals(path)


def test_bad_npy_files(tmp_path, digits):
    path = npy(tmp_path / "x.npy", np.asfortranarray(digits))
    with pytest.raises(LenetError, match="in C order, found Fortran order"):
        open_source(path)
    whole = npy(path, digits).read_bytes()
    for data, message in (
        (whole[:-1], "expected 47,824 bytes after the header for 61 images, found 47,823"),
        (whole + b"!", "found 47,825"),
        (whole[:50], "found a damaged header"),
        (whole[:6], "found a damaged header"),
        (whole[:6] + b"\7" + whole[7:], "found a damaged header .version 7.0"),
        (whole.replace(b"'|u1'", b"oops("), "found a damaged header"),
    ):
        path.write_bytes(data)
        with pytest.raises(LenetError, match=message) as caught:
            open_source(path)
        assert "\n" not in str(caught.value)


def test_a_packed_file_with_a_wrong_end(tmp_path, digits):
    path = idx_file(tmp_path / "x-images.gz", digits)
    whole, plain = path.read_bytes(), gzip.decompress(path.read_bytes())
    for data, message in (
        (whole[:-5], "found a damaged file"),
        (whole[:-8] + bytes(8), "found a damaged file"),
        (gzip.compress(plain + b"!", mtime=0), "found more"),
        (gzip.compress(plain[:-1], mtime=0), "found 47,823"),
    ):
        path.write_bytes(data)
        assert message in refusals(path)
