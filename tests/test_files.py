"""Input files: accepted forms, and one clear message for each refused file."""

import gzip
import struct

import h5py
import numpy as np
import pytest
from stored import hdf5, idx_file

from lenetgpu.errors import LenetError
from lenetgpu.files.convert import convert_data
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights


@pytest.fixture
def digits(rng):
    return (
        rng.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        rng.integers(0, 10, 6, dtype=np.uint8),
    )


def held(path):
    """Return a file's datasets as h5py reads them."""
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file}


def test_gzipped_images_find_uncompressed_labels(tmp_path, digits):
    images, labels = digits
    plain = idx_file(tmp_path / "a-images-idx3-ubyte", images, labels)
    packed = tmp_path / "a-images-idx3-ubyte.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    np.testing.assert_array_equal(load_dataset(packed).labels, labels)


@pytest.mark.parametrize("form", ["one-hot", "column", "float"])
def test_label_encodings(tmp_path, digits, form):
    images, labels = digits
    held = {
        "one-hot": np.eye(10)[labels],
        "column": labels.reshape(-1, 1),
        "float": labels.astype(np.float64),
    }[form]
    np.testing.assert_array_equal(
        load_dataset(hdf5(tmp_path / "d.h5", x=images, y=held)).labels, labels
    )


def weights_with(weight_file, tmp_path, name, data):
    tensors = dict(load_weights(weight_file).tensors)
    if data is None:
        del tensors[name]
    else:
        tensors[name] = data
    return hdf5(tmp_path / "bad.h5", **tensors)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("conv2", None, "expected weights also for conv2 64x32x5x5, found only conv1, fc1, fc2"),
        ("conv1", np.zeros((5, 5, 32)), "conv1 to have shape 5x5x1x32 .*found 5x5x32: another"),
        ("fc1", np.full((1024, 128), np.nan), r"fc1 to hold finite.*found 131072 that are NaN"),
        ("fc2", np.full((128, 10), 1e300), r"fc2 to hold finite.*found 1280"),
        ("fc2", np.zeros((128, 10), np.int32), r"/fc2 to be floats.*found type int32"),
    ],
)
def test_invalid_weights_are_refused(weight_file, tmp_path, name, data, message):
    path = weights_with(weight_file, tmp_path, name, data)
    with pytest.raises(LenetError, match=message) as caught:
        load_weights(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({}, r"/x to be .*found no such dataset \(the file holds nothing\)"),
        ({"x": np.zeros((0, 28, 28), "u1")}, r"N at least 1, found shape \(0, 28, 28\)"),
        ({"x": np.zeros((3, 32, 32), "u1")}, r"found shape \(3, 32, 32\)"),
        ({"x": np.zeros((3, 28, 28), "i8")}, r"found type int64"),
        ({"x": np.full((3, 28, 28), 255.0, "f4")}, "floats in 0..1 .*found 255 to 255"),
        ({"x": np.full((3, 28, 28), -1.0, "f4")}, "floats in 0..1 .*found -1 to -1"),
        ({"x": np.zeros((3, 28, 28), "u1"), "y": np.zeros(4)}, r"labels of shape \(3,\).*\(4,\)"),
        ({"x": np.zeros((3, 28, 28), "u1"), "y": np.array([1, 2, 10])}, "found 1 to 10"),
        ({"x": np.zeros((3, 28, 28), "u1"), "y": np.ones((3, 10))}, "one-hot"),
        ({"x": np.zeros((3, 28, 28), "u1"), "y": np.array([1, 2, 2.5])}, "class numbers"),
    ],
)
def test_invalid_images_are_refused(tmp_path, datasets, message):
    path = hdf5(tmp_path / "bad.h5", **datasets)
    with pytest.raises(LenetError, match=message) as caught:
        load_dataset(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected images in HDF5, IDX or .npy format, found an empty file"),
        (b"not a data file at all", "HDF5, IDX or .npy format, found 22 bytes in no known format"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "expected an HDF5 file, found 68 bytes that HDF5"),
        (struct.pack(">4I", 2051, 2, 28, 28) + bytes(784), "expected 1,568 bytes .*found 784"),
        (struct.pack(">4I", 2051, 1, 28, 28) + bytes(785), "found more"),
        (struct.pack(">4I", 2051, 1, 32, 32) + bytes(1024), "of 28x28, found 32x32"),
        (struct.pack(">4I", 2051, 0, 28, 28), "found none"),
        (gzip.compress(struct.pack(">4I", 2051, 0xFFFFFFFF, 28, 28), mtime=0), "can hold, found "),
        (b"\0\0\x08", "found only 3 bytes"),
        (b"\x1f\x8b" + bytes(30), "found a damaged file"),
    ],
)
def test_invalid_idx_files_are_refused(tmp_path, content, message):
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(LenetError, match=message) as caught:
        load_dataset(path)
    assert str(path) in str(caught.value)


def test_labels_must_match_number_of_images(tmp_path, digits):
    images, labels = digits
    path = idx_file(tmp_path / "x-images", images, labels[:4])
    with pytest.raises(LenetError, match="expected 6 labels for .*found 4"):
        load_dataset(path)


def test_converted_data_reads_the_same(tmp_path, digits):
    images, labels = digits
    source = idx_file(tmp_path / "x-images", images, labels)
    assert convert_data(source, tmp_path / "out.h5") == 6
    again = load_dataset(tmp_path / "out.h5")
    np.testing.assert_array_equal(again.images[..., 0], images)
    np.testing.assert_array_equal(again.labels, labels)
    np.testing.assert_array_equal(held(tmp_path / "out.h5")["x"].reshape(6, 28, 28), images)
