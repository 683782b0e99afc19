"""Files in: what is accepted, and one clear sentence for what is not."""

from __future__ import annotations

import gzip
import struct

import h5py
import numpy as np
import pytest

from lenetgpu.errors import LenetError
from lenetgpu.files.convert import convert_data
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights


def idx(path, images, labels=None, magic=2051, zipped=False):
    n, h, w = images.shape
    opener = gzip.open if zipped else open
    with opener(path, "wb") as file:
        file.write(struct.pack(">4I", magic, n, h, w) + images.tobytes())
    if labels is not None:
        beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
        with opener(beside, "wb") as file:
            file.write(struct.pack(">2I", 2049, len(labels)) + labels.tobytes())


@pytest.fixture
def digits(rng):
    return (
        rng.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        rng.integers(0, 10, 6, dtype=np.uint8),
    )


def h5(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file[name] = data
    return path


def held(path):
    """What h5py reads of a file's datasets."""
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file}


def test_packed_images_find_plain_labels(tmp_path, digits):
    images, labels = digits
    idx(tmp_path / "a-images-idx3-ubyte", images, labels)
    packed = tmp_path / "a-images-idx3-ubyte.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a-images-idx3-ubyte").read_bytes()))
    np.testing.assert_array_equal(load_dataset(packed).labels, labels)


@pytest.mark.parametrize("form", ["one-hot", "column", "float"])
def test_label_forms(tmp_path, digits, form):
    images, labels = digits
    held = {
        "one-hot": np.eye(10)[labels],
        "column": labels.reshape(-1, 1),
        "float": labels.astype(np.float64),
    }[form]
    np.testing.assert_array_equal(
        load_dataset(h5(tmp_path / "d.h5", x=images, y=held)).labels, labels
    )


@pytest.mark.parametrize("dtype", ["<f2", ">f8"])
def test_weights_of_any_float_type_and_byte_order(tmp_path, weight_file, dtype):
    written = {name: values.astype(dtype) for name, values in held(weight_file).items()}
    found = load_weights(h5(tmp_path / "o.h5", **written)).tensors
    assert found.keys() == written.keys()
    for name, tensor in found.items():
        assert tensor.dtype == np.float32
        assert tensor.dtype.isnative
        np.testing.assert_array_equal(tensor, written[name].astype(np.float32))


def weights_with(weight_file, tmp_path, name, data):
    tensors = dict(load_weights(weight_file).tensors)
    if data is None:
        del tensors[name]
    else:
        tensors[name] = data
    return h5(tmp_path / "bad.h5", **tensors)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("conv2", None, r"expected dataset /conv2 .*found no such dataset \(the file holds /conv1"),
        ("conv1", np.zeros((5, 5, 32)), r"shape \(5, 5, 1, 32\), found shape \(5, 5, 32\)"),
        ("fc1", np.full((1024, 128), np.nan), r"/fc1 to hold finite.*found 131072 that are NaN"),
        ("fc2", np.full((128, 10), 1e300), r"/fc2 to hold finite.*found 1280"),
        ("fc2", np.zeros((128, 10), np.int32), r"/fc2 to be floats.*found type int32"),
    ],
)
def test_bad_weights(weight_file, tmp_path, name, data, message):
    path = weights_with(weight_file, tmp_path, name, data)
    with pytest.raises(LenetError, match=message) as caught:
        load_weights(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({}, r"/x to be .*found no such dataset \(the file holds nothing\)"),
        ({"x": np.zeros((0, 28, 28), "u1")}, r"N at least 1, found shape \(0, 28, 28\)"),
        ({"x": np.zeros((3, 32, 32), "u1")}, r"found shape \(3, 32, 32\)"),
        ({"x": np.zeros((3, 28, 28, 3), "f4")}, r"found shape \(3, 28, 28, 3\)"),
        ({"x": np.zeros((3, 28, 28), "i8")}, r"found type int64"),
        ({"x": np.zeros((3, 28, 28), "u2")}, r"found type uint16"),
        ({"x": np.full((3, 28, 28), np.nan, "f4")}, "/x to be finite"),
        ({"x": np.full((3, 28, 28), 255.0, "f4")}, "floats in 0..1 .*found 255 to 255"),
        ({"x": np.full((3, 28, 28), -1.0, "f4")}, "floats in 0..1 .*found -1 to -1"),
        ({"x": np.zeros((3, 28, 28), "u1"), "y": np.zeros(4)}, r"labels of shape \(3,\).*\(4,\)"),
        ({"x": np.zeros((3, 28, 28), "u1"), "y": np.array([1, 2, 10])}, "found 1 to 10"),
        ({"x": np.zeros((3, 28, 28), "u1"), "y": np.ones((3, 10))}, "one-hot"),
        ({"x": np.zeros((2, 28, 28), "u1"), "y": np.eye(10)[:2] + 0.5 * np.eye(10)[2]}, "one-hot"),
        ({"x": np.zeros((3, 28, 28), "u1"), "y": np.array([1, 2, 2.5])}, "class numbers"),
    ],
)
def test_bad_images(tmp_path, datasets, message):
    path = h5(tmp_path / "bad.h5", **datasets)
    with pytest.raises(LenetError, match=message) as caught:
        load_dataset(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected images in HDF5, IDX or .npy form, found an empty file"),
        (b"not a data file at all", "HDF5, IDX or .npy form, found 22 bytes of another form"),
        (struct.pack(">4I", 0xD03, 1, 28, 28) + bytes(784), "IDX or .npy form, found 800 bytes"),
        (b"PK\3\4" + bytes(60), "expected images in HDF5, IDX or .npy form, found 64 bytes"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "expected an HDF5 file, found 68 bytes that HDF5"),
        (struct.pack(">4I", 2051, 2, 28, 28) + bytes(784), "expected 1,568 bytes .*found 784"),
        (struct.pack(">4I", 2051, 1, 28, 28) + bytes(785), "found more"),
        (struct.pack(">4I", 2051, 1, 32, 32) + bytes(1024), "of 28x28, found 32x32"),
        (struct.pack(">4I", 2051, 0, 28, 28), "found zero of them"),
        (struct.pack(">2I", 2049, 3) + b"\1\2\3", "expected an IDX file of images"),
        (
            struct.pack(">4I", 2051, 0xFFFFFFFF, 28, 28),
            "expected 3,367,254,359,280 bytes .*found 0",
        ),
        (gzip.compress(struct.pack(">4I", 2051, 0xFFFFFFFF, 28, 28), mtime=0), "can hold, found "),
        (b"\0\0\x08", "found only 3 bytes"),
        (gzip.compress(b"\0\0\x08\3" + bytes(100), mtime=0)[:-9], "expected an IDX file"),
        (b"\x1f\x8b" + bytes(30), "found a damaged file"),
    ],
)
def test_bad_idx(tmp_path, content, message):
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(LenetError, match=message) as caught:
        load_dataset(path)
    assert str(path) in str(caught.value)


def test_labels_beside_must_match(tmp_path, digits):
    images, labels = digits
    path = tmp_path / "x-images-idx3-ubyte"
    idx(path, images, labels[:4])
    with pytest.raises(LenetError, match="expected 6 labels for .*found 4"):
        load_dataset(path)


@pytest.mark.parametrize("load", [load_dataset, load_weights])
def test_a_name_that_is_too_long(tmp_path, load):
    with pytest.raises(LenetError, match="xxx: expected .*, found File name too long") as found:
        load(tmp_path / ("x" * 256))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("load", [load_dataset, load_weights])
def test_missing_and_folder(tmp_path, load):
    with pytest.raises(LenetError, match="found no such file"):
        load(tmp_path / "none.h5")
    with pytest.raises(LenetError, match="found a folder"):
        load(tmp_path)


def test_converted_data_reads_the_same(tmp_path, digits):
    images, labels = digits
    source = tmp_path / "x-images-idx3-ubyte"
    idx(source, images, labels)
    assert convert_data(source, tmp_path / "out.h5") == 6
    again = load_dataset(tmp_path / "out.h5")
    np.testing.assert_array_equal(again.images[..., 0], images)
    np.testing.assert_array_equal(again.labels, labels)
    np.testing.assert_array_equal(held(tmp_path / "out.h5")["x"].reshape(6, 28, 28), images)


def test_a_packed_file_is_refused_by_its_name_and_what_to_do(tmp_path):
    path = tmp_path / "packed.h5"
    with h5py.File(path, "w") as file:
        file.attrs["packed_images"] = 1
        file["records"] = np.zeros(8, np.uint8)
    with pytest.raises(LenetError, match="no longer reads; use the file that it was packed from"):
        load_dataset(path)
