"""Images read by parts: identical for every storage form and read order, or refused."""

import gzip
import os
import re
import signal
import time
import zlib

import h5py
import numpy as np
import pytest
from conftest import ROOT
from stored import COUNT, DEFLATE, MAKERS, as_read, direct, h5, idx_file, in_any_order, npy, parts
from terminal import python

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5, hdf5_source, idx, reading, regular
from lenetgpu.files.hdf5 import fletcher32
from lenetgpu.files.hdf5_source import ChunkedSource
from lenetgpu.files.reading import RawSource
from lenetgpu.files.source import load_dataset, open_source
from lenetgpu.files.weights import load_weights


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.setattr(hdf5_source, "core_count", lambda: 3)


@pytest.fixture
def digits(rng):
    return rng.integers(0, 256, (COUNT, 28, 28), dtype=np.uint8)


@pytest.fixture
def labels(rng):
    return rng.integers(0, 10, COUNT, dtype=np.uint8)


CHUNKS = [(7, 28, 28), (COUNT, 28, 28), (9, 13, 5)]
FILTERS = {
    "plain": {},
    "deflate": DEFLATE,
    "shuffle": {"shuffle": True},
    "checked": {"fletcher32": True},
    "all": {**DEFLATE, "shuffle": True, "fletcher32": True},
}


FORMS = [(None, "plain", dtype) for dtype in ("u1", "<f2", ">f8")]
FORMS += [(chunks, "all", "u1") for chunks in CHUNKS]
FORMS += [((9, 13, 5), name, ">f4") for name in FILTERS]


@pytest.mark.parametrize(("chunks", "filters", "dtype"), FORMS)
def test_hdf5_storage_forms_are_read_directly(
    tmp_path, monkeypatch, digits, chunks, filters, dtype
):
    images = digits if dtype == "u1" else (digits / 255).astype(dtype)
    path = h5(tmp_path / "x.h5", images, chunks=chunks, **FILTERS[filters])
    monkeypatch.setattr(h5py.Dataset, "__getitem__", None)
    with open_source(path) as source:
        assert isinstance(source, RawSource if chunks is None else ChunkedSource)
        np.testing.assert_array_equal(parts(source, [5, 16, 1]), as_read(images))
        np.testing.assert_array_equal(in_any_order(source, 8), as_read(images))
        np.testing.assert_array_equal(source.whole().images, as_read(images))


def test_compact_dataset_and_user_block_are_read(tmp_path, digits):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(digits.shape)
        item = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, plist)
        item.write(h5py.h5s.ALL, h5py.h5s.ALL, digits)
    np.testing.assert_array_equal(load_dataset(path).images, as_read(digits))
    for cut in (None, (7, 28, 28)):
        with h5py.File(path, "w", userblock_size=1024) as file:
            file.create_dataset("x", data=digits, chunks=cut)
        np.testing.assert_array_equal(load_dataset(path).images, as_read(digits))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((COUNT, 28, 28), "u1"), ((COUNT, 28, 28, 1), "<f4"), ((COUNT, 1, 28, 28), ">f8")],
)
def test_npy_files_are_read(tmp_path, digits, shape, dtype):
    images = (digits if dtype == "u1" else (digits / 255).astype(dtype)).reshape(shape)
    path = npy(tmp_path / "named-otherwise.npy", images).rename(tmp_path / "x-images.h5")
    with open_source(path) as source:
        assert source.labels is None
        np.testing.assert_array_equal(in_any_order(source, 8), as_read(images))


@pytest.mark.parametrize("make", MAKERS)
def test_skip_and_limit(tmp_path, digits, labels, make):
    skip, limit, until = 5, 20, 25
    path = MAKERS[make](tmp_path, digits, labels)
    with open_source(path, skip, limit) as source:
        assert (source.source, source.dtype) == (str(path), "uint8")
        np.testing.assert_array_equal(parts(source, [3, 10]), as_read(digits)[skip:until])
        if make != "npy":
            np.testing.assert_array_equal(source.labels, labels[skip:until])
            assert source.labels.dtype == np.int64
        whole = source.whole()
    np.testing.assert_array_equal(whole.images, as_read(digits)[skip:until])
    assert len(whole) == len(source) == len(digits[skip:until])


@pytest.mark.parametrize(
    ("skip", "limit", "message"),
    [
        (61, None, "expected more images than the 61 to skip, found 61"),
        (-1, None, "found skip -1 and limit None"),
        (0, 0, "found skip 0 and limit 0"),
    ],
)
def test_empty_selection_is_refused(tmp_path, digits, skip, limit, message):
    path = npy(tmp_path / "x.npy", digits)
    with pytest.raises(LenetError, match=message):
        open_source(path, skip, limit)


# --- bytes that are read ---


@pytest.fixture
def bytes_read(monkeypatch):
    counted = []
    preadv = os.preadv

    def count(handle, buffers, at):
        counted.append(preadv(handle, buffers, at))
        return counted[-1]

    monkeypatch.setattr(regular.os, "preadv", count)
    return counted


HUGE = 130_000_000  # images, 102 GB


def sparse_h5(path, count, dtype="u1"):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (count, 28, 28), dtype)[-1] = 1
    return path


def sparse_npy(path, count):
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 28, 28)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + count * 784)
    return path


@pytest.mark.parametrize("make", [sparse_h5, sparse_npy])
def test_only_requested_part_of_a_huge_file_is_read(tmp_path, bytes_read, make, monkeypatch):
    path = make(tmp_path / "x", HUGE)
    assert path.stat().st_size > 100e9 and path.stat().st_blocks * 512 < 1e6
    with open_source(path, HUGE - 3, 2) as source:
        assert sum(bytes_read) < 100e6 and (make is sparse_h5 or bytes_read == [])
        bytes_read.clear()
        assert source.whole().images.shape == (2, 28, 28, 1)
    assert sum(bytes_read) == 2 * 784
    monkeypatch.setattr(reading, "free_bytes", lambda: 1 << 36)
    with open_source(path) as source, pytest.raises(LenetError, match="68,719,476,736 bytes of fr"):
        source.whole()


def test_requested_chunks_are_read_once(tmp_path, monkeypatch, digits):
    asked, raw = [], hdf5._raw
    monkeypatch.setattr(hdf5, "_raw", lambda item, at: asked.append(at) or raw(item, at))
    path = h5(tmp_path / "x.h5", digits, chunks=(7, 28, 28))
    with open_source(path, 8, 20) as source:  # 8..28
        parts(source, [3])
    assert sorted(asked) == [(7, 0, 0), (14, 0, 0), (21, 0, 0)]


MEASURED = """
import resource, sys
from pathlib import Path
import numpy as np
from lenetgpu.files.source import open_source
out = np.empty((20_000, 28, 28, 1), np.uint8)
with open_source(Path(sys.argv[1]), limit=len(out)) as source:
    source.read(0, out)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open_source(Path(sys.argv[1])) as source:
    for lo in range(0, len(source), len(out)):
        source.read(lo, out[: min(len(out), len(source) - lo)])
    print(len(source), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    """A file of a few megabytes inflates to 390 MB."""
    path, count = tmp_path / "x", 500_000
    with h5py.File(path, "w") as file:
        item = file.create_dataset("x", (count, 28, 28), "u1", chunks=(3_000, 28, 28), **DEFLATE)
        packed = zlib.compress(bytes(3_000 * 784))
        for lo in range(0, count, 3_000):
            item.id.write_direct_chunk((lo, 0, 0), packed)
    done = python("-c", MEASURED, path)
    assert done.stderr == ""
    found, grown = map(int, done.stdout.split())
    assert found == count
    assert grown < 60_000  # KiB; all images are 390 MB


def test_example_in_the_docs_runs(tmp_path, monkeypatch, digits):
    monkeypatch.chdir(tmp_path)
    h5(tmp_path / "digits.h5", digits)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "files.md").read_text(), re.S)
    names = {}
    exec(example, names)
    np.testing.assert_array_equal(names["part"], as_read(digits)[2:5])


# --- packed IDX files ---


@pytest.mark.parametrize(("cached", "size"), [(256 << 20, 1), (20 * 784, 7), (0, 30)])
def test_gzip_files_are_read_in_any_order(tmp_path, monkeypatch, digits, cached, size):
    monkeypatch.setattr(idx, "CACHE_BYTES", cached)
    monkeypatch.setattr(idx, "_STEP", 5 * 784)
    opened, plain = [], idx.unpacking
    monkeypatch.setattr(idx, "unpacking", lambda file: opened.append(file) or plain(file))
    path = idx_file(tmp_path / "x-images.gz", digits)
    with open_source(path, 4) as source:
        for seed in range(3):
            found = in_any_order(source, size, seed=seed)
            np.testing.assert_array_equal(found, as_read(digits)[4:])
            assert seed or size > 1 or len(opened) == 2  # for the header, and for every block


def test_isal_is_used_if_installed(tmp_path, digits, labels):
    """Other tests inflate with zlib if ISA-L is not installed."""
    isal = pytest.importorskip("isal.isal_zlib", reason="the extra isal is not installed")
    assert regular._modules()[0] is isal
    path = idx_file(tmp_path / "x-images.gz", digits, labels)
    chunked = h5(tmp_path / "x.h5", digits, labels, chunks=(7, 28, 28), **DEFLATE)
    for whole in (path, chunked):
        np.testing.assert_array_equal(load_dataset(whole).images, as_read(digits))
    path.write_bytes(path.read_bytes()[:-3])
    for bad in (path, direct(tmp_path / "bad.h5", b"\x78\x9cnot deflated", **DEFLATE)):
        with pytest.raises(LenetError, match="found a damaged"):
            load_dataset(bad)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_reads_chunks(tmp_path, monkeypatch, digits):
    monkeypatch.setattr(hdf5_source, "core_count", lambda: 1)
    with open_source(h5(tmp_path / "x.h5", digits, chunks=(7, 28, 28))) as source:
        images = source.whole().images
        time.sleep(0.2)  # the pool thread is idle now
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                os._exit(0 if (source.whole().images == images).all() else 3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- refused files ---


def refusals(path, skip=0):
    with open_source(path, skip) as source, pytest.raises(LenetError) as caught:
        parts(source, [4])
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("make", ["contiguous", "chunked"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "to be finite, found NaN or infinity in image 37 "),
        (1.1, "to hold floats in 0..1 (or uint8 pixels), found 0 to 1.1 in image 37 "),
        (-0.0011, "to hold floats in 0..1 (or uint8 pixels), found -0.0011 to 0 in image 37 "),
    ],
)
def test_invalid_float_is_reported_with_its_image(tmp_path, make, value, message):
    images = np.zeros((COUNT, 28, 28), "f8" if value < 0 else "f4")
    images[37, 27, 27] = value
    images[40:] = np.nan
    path = MAKERS[make](tmp_path, images, None)
    assert message in refusals(path, skip=6)
    with open_source(path, 0, 37) as source:
        assert not source.whole().images.any()


@pytest.mark.parametrize("make", MAKERS)
def test_file_that_shrinks_while_read_is_refused(tmp_path, rng, make):
    images = rng.integers(0, 256, (4_000, 28, 28), dtype=np.uint8)
    path = MAKERS[make](tmp_path, images, None)
    out = np.empty((1_000, 28, 28, 1), np.uint8)
    with open_source(path) as source:
        source.read(0, out)
        os.truncate(path, path.stat().st_size * 5 // 8)
        # chunked HDF5 checks the file's size on every read, because it reads zeros past the end
        if make not in ("chunked", "idx.gz"):
            source.read(1_000, out)
            np.testing.assert_array_equal(out, as_read(images)[1_000:2_000])
        with pytest.raises(LenetError) as caught:
            source.read(2_000, out)
            source.read(3_000, out)
    message = str(caught.value)
    assert message.startswith(f"{path}: expected ") and "\n" not in message
    assert ("found a damaged" if make == "idx.gz" else "the file became shorter") in message


def test_shrinking_labels_and_weights_are_refused(tmp_path, weight_file, monkeypatch):
    """HDF5 reads zeros past a file's end."""
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


def test_disk_read_errors_are_one_sentence(tmp_path, monkeypatch, digits):
    def fail(*_):
        raise OSError(5, "Input/output error")

    path = npy(tmp_path / "x.npy", digits)
    with open_source(path) as source:
        monkeypatch.setattr(regular.os, "preadv", fail)
        with pytest.raises(LenetError, match=r"cannot read 47,824 bytes from byte 128 on: "):
            source.whole()


@pytest.mark.parametrize(("length", "value"), [(200_001, None), (783, 0), (784, 255)])
def test_fletcher32_matches_hdf5(tmp_path, rng, length, value):
    data = rng.bytes(length) if value is None else bytes([value]) * length
    with h5py.File(tmp_path / "x.h5", "w") as file:
        options = {"chunks": (length,), "fletcher32": True}
        item = file.create_dataset("x", data=np.frombuffer(data, np.uint8), **options)
        _, raw = item.id.read_direct_chunk((0,))
    assert fletcher32(np.frombuffer(data, np.uint8)) == int.from_bytes(raw[length:], "little")


def test_unwritten_images_are_refused(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        options = {"chunks": (7, 28, 28), "compression": "gzip"}
        item = file.create_dataset("x", (COUNT, 28, 28), "u1", **options)
        item[:14] = 3
    with open_source(path, 0, 14) as source:
        assert (source.whole().images == 3).all()
    assert "at image 14, found one that cannot be read" in refusals(path)


def test_invalid_npy_files_are_refused(tmp_path, digits):
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
        with pytest.raises(LenetError, match=message):
            open_source(path)


def test_gzip_file_with_wrong_trailer_is_refused(tmp_path, digits):
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
