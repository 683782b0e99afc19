"""Images by parts: the same however they are stored and read, and no more than is asked for."""

from __future__ import annotations

import gzip
import os
import re
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from conftest import ROOT

from lenetgpu.errors import LenetError
from lenetgpu.files import chunks, disk, hdf5_source, idx, reading
from lenetgpu.files.chunks import Chunks, fletcher32
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.disk import RawSource
from lenetgpu.files.hdf5_source import ChunkedSource
from lenetgpu.files.source import MemorySource, open_source
from lenetgpu.files.weights import load_weights

COUNT = 61
DEFLATE = {"compression": "gzip", "compression_opts": 1}


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.setattr(hdf5_source, "core_count", lambda: 3)


@pytest.fixture
def digits(rng):
    return rng.integers(0, 256, (COUNT, 28, 28), dtype=np.uint8)


@pytest.fixture
def labels(rng):
    return rng.integers(0, 10, COUNT, dtype=np.uint8)


def h5(path, images, labels=None, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=images, **options)
        if labels is not None:
            file["y"] = labels
    return path


def idx_file(path, images, labels=None):
    pack = gzip.compress if path.suffix == ".gz" else bytes
    path.write_bytes(pack(struct.pack(">4I", 2051, *images.shape) + images.tobytes()))
    if labels is not None:
        beside = path.with_name(path.name.replace("images", "labels"))
        beside.write_bytes(pack(struct.pack(">2I", 2049, len(labels)) + labels.tobytes()))
    return path


def npy(path, images):
    np.save(path, images)
    return path


def as_read(images):
    """What a source gives of stored images."""
    kind = np.uint8 if images.dtype == np.uint8 else np.float32
    return images.astype(kind).reshape(-1, 28, 28, 1)


def parts(source, sizes):
    """All of a source's images, read in parts of these sizes, round and round."""
    found = np.full((len(source), 28, 28, 1), 7, source.dtype)
    lo = turn = 0
    while lo < len(source):
        hi = min(len(source), lo + sizes[turn % len(sizes)])
        source.read(lo, found[lo:hi])
        lo, turn = hi, turn + 1
    return found


def in_any_order(source, size, threads=4, seed=0):
    """All of a source's images, read by several threads in a shuffled order."""
    found = np.full((len(source), 28, 28, 1), 7, source.dtype)
    order = np.random.default_rng(seed).permutation(range(0, len(source), size))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda lo: source.read(lo, found[lo : lo + size]), order))
    return found


CHUNKS = [(7, 28, 28), (1, 28, 28), (COUNT, 28, 28), (10, 7, 14), (9, 13, 5)]
FILTERS = {
    "plain": {},
    "deflate": DEFLATE,
    "shuffle": {"shuffle": True},
    "checked": {"fletcher32": True},
    "all": {**DEFLATE, "shuffle": True, "fletcher32": True},
}


@pytest.mark.parametrize("dtype", ["u1", "<f4", ">f4", "<f8"])
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("chunks", [None, *CHUNKS], ids=str)
def test_every_form_of_hdf5_is_read_without_hdf5(
    tmp_path, monkeypatch, digits, chunks, filters, dtype
):
    if chunks is None and filters != "plain":
        pytest.skip("contiguous data have no filters")
    images = digits if dtype == "u1" else (digits / 255).astype(dtype)
    path = h5(tmp_path / "x.h5", images, chunks=chunks, **FILTERS[filters])
    monkeypatch.setattr(h5py.Dataset, "__getitem__", None)
    with open_source(path) as source:
        assert isinstance(source, RawSource if chunks is None else ChunkedSource)
        np.testing.assert_array_equal(parts(source, [5, 16, 1]), as_read(images))
        np.testing.assert_array_equal(in_any_order(source, 8), as_read(images))
        np.testing.assert_array_equal(source.whole().images, as_read(images))


@pytest.mark.parametrize("options", [{"compression": "lzf"}, {"scaleoffset": 0}], ids=str)
def test_other_filters_go_through_hdf5(tmp_path, digits, options):
    path = h5(tmp_path / "x.h5", digits, chunks=(7, 28, 28), **options)
    with open_source(path, 3) as source:
        assert not isinstance(source, (RawSource, ChunkedSource))
        np.testing.assert_array_equal(in_any_order(source, 8), as_read(digits)[3:])


def test_a_float_that_numpy_has_not_goes_through_hdf5(tmp_path, digits):
    """Three bytes wide: its bytes are none of any dtype's."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(23, 15, 8, 0, 15)
    kind.set_size(3)
    kind.set_precision(24)
    kind.set_ebias(127)
    images = np.float32(digits > 127)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple(images.shape)
        item = h5py.h5d.create(file.id, b"x", kind, space)
        item.write(h5py.h5s.ALL, h5py.h5s.ALL, images)
    with open_source(tmp_path / "x.h5") as source:
        assert not isinstance(source, RawSource)
        np.testing.assert_array_equal(source.whole().images, as_read(images))


def test_a_small_dataset_in_the_header_and_one_behind_a_user_block(tmp_path, digits):
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


@pytest.mark.parametrize("shape", [(COUNT, 28, 28), (COUNT, 28, 28, 1), (COUNT, 1, 28, 28)])
@pytest.mark.parametrize("dtype", ["u1", "<f4", ">f8"])
def test_npy(tmp_path, digits, shape, dtype):
    images = (digits if dtype == "u1" else (digits / 255).astype(dtype)).reshape(shape)
    path = npy(tmp_path / "named-otherwise.npy", images).rename(tmp_path / "x-images.h5")
    with open_source(path) as source:
        assert source.labels is None
        np.testing.assert_array_equal(in_any_order(source, 8), as_read(images))


MAKERS = {
    "contiguous": lambda folder, x, y: h5(folder / "x.h5", x, y),
    "chunked": lambda folder, x, y: h5(folder / "x.h5", x, y, chunks=(7, 28, 28), **DEFLATE),
    "slow": lambda folder, x, y: h5(folder / "x.h5", x, y, chunks=(7, 28, 28), compression="lzf"),
    "idx": lambda folder, x, y: idx_file(folder / "x-images", x, y),
    "idx.gz": lambda folder, x, y: idx_file(folder / "x-images.gz", x, y),
    "npy": lambda folder, x, y: npy(folder / "x.npy", x),
}


@pytest.mark.parametrize(
    ("skip", "limit"), [(0, None), (0, 1), (5, 20), (60, None), (14, 7), (50, 99)]
)
@pytest.mark.parametrize("make", MAKERS)
def test_skip_and_limit(tmp_path, digits, labels, make, skip, limit):
    path = MAKERS[make](tmp_path, digits, labels)
    until = None if limit is None else skip + limit
    with open_source(path, skip, limit) as source:
        assert (source.source, source.dtype) == (str(path), "uint8")
        np.testing.assert_array_equal(parts(source, [3, 10]), as_read(digits)[skip:until])
        if make != "npy":
            np.testing.assert_array_equal(source.labels, labels[skip:until])
            assert source.labels.dtype == np.int64
        whole = source.whole()
    np.testing.assert_array_equal(whole.images, as_read(digits)[skip:until])
    assert len(whole) == len(source) == len(digits[skip:until])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("skip", "limit", "message"),
    [
        (61, None, "expected more images than the 61 to skip, found 61"),
        (-1, None, "found skip -1 and limit None"),
        (0, 0, "found skip 0 and limit 0"),
    ],
)
def test_no_images_left(tmp_path, digits, labels, make, skip, limit, message):
    path = MAKERS[make](tmp_path, digits, labels)
    with pytest.raises(LenetError, match=message):
        open_source(path, skip, limit)


def test_a_read_must_fit(tmp_path, digits):
    with open_source(npy(tmp_path / "x.npy", digits), limit=4) as source:
        for lo, shape in ((1, (4, 28, 28, 1)), (-1, (1, 28, 28, 1)), (0, (2, 28, 28))):
            with pytest.raises(ValueError, match="expected"):
                source.read(lo, np.empty(shape, np.uint8))
        with pytest.raises(ValueError, match="expected"):
            source.read(0, np.empty((1, 28, 28, 1), np.float32))
        with pytest.raises(ValueError, match="expected"):
            source.read(0, np.empty((4, 28, 28, 1), np.uint8)[::2])
        source.read(4, np.empty((0, 28, 28, 1), np.uint8))


def test_memory_is_a_source_too(digits, labels):
    images = as_read(digits)
    source = MemorySource(images, labels, "an array")
    np.testing.assert_array_equal(in_any_order(source, 9), images)
    assert source.whole().images is images
    assert (source.source, source.labels is labels, len(source)) == ("an array", True, COUNT)
    with pytest.raises(ValueError, match="an array: expected"):
        MemorySource(digits, None, "an array")


# --- what is read ---


@pytest.fixture
def bytes_read(monkeypatch):
    counted = []
    preadv = os.preadv

    def count(handle, buffers, at):
        counted.append(preadv(handle, buffers, at))
        return counted[-1]

    monkeypatch.setattr(disk.os, "preadv", count)
    return counted


HUGE = 130_000_000
"""Images of 102 GB."""


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


def sparse_idx(path, count):
    path.write_bytes(struct.pack(">4I", 2051, count, 28, 28))
    os.truncate(path, 16 + count * 784)
    return path


@pytest.mark.parametrize("make", [sparse_h5, sparse_npy, sparse_idx])
def test_of_a_huge_file_only_what_is_asked_for_is_read(tmp_path, bytes_read, make):
    path = make(tmp_path / "x", HUGE)
    assert path.stat().st_size > 100e9 and path.stat().st_blocks * 512 < 1e6
    with open_source(path, HUGE - 3, 2) as source:
        assert bytes_read == []
        assert source.whole().images.shape == (2, 28, 28, 1)
    assert sum(bytes_read) == 2 * 784
    with open_source(path) as source, pytest.raises(LenetError, match="at most 68,719,476,736 b"):
        source.whole()


def test_of_chunks_only_those_that_are_wanted_are_read_and_each_once(tmp_path, monkeypatch, digits):
    asked, stored = [], Chunks._stored
    monkeypatch.setattr(Chunks, "_stored", lambda self, at: asked.append(at) or stored(self, at))
    path = h5(tmp_path / "x.h5", digits, chunks=(7, 28, 28))
    with open_source(path, 8, 20) as source:  # 8..28
        parts(source, [3])
    assert sorted(asked) == [(7, 0, 0), (14, 0, 0), (21, 0, 0)]


def test_chunks_are_found_in_less_time_than_all_before_them_take(tmp_path):
    """HDF5 has a call that walks every chunk up to the one asked for: 20,000 take it seconds."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        item = file.create_dataset("x", (20_000, 28, 28), "u1", chunks=(1, 28, 28))
        item[...] = 1
    start = time.process_time()
    assert load_dataset(path).images.all()
    assert time.process_time() - start < 3


def test_labels_are_read_for_the_images_asked_for(tmp_path):
    """Those of others may be anything; in parts of whole chunks."""
    count, wrong = 3 << 17, np.full(3 << 17, 3, np.int64)
    wrong[0], wrong[-1] = 99, 99
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (count, 28, 28), "u1")[0] = 1
        file.create_dataset("y", data=wrong, chunks=(100_000,))
    with open_source(tmp_path / "x.h5", 1, count - 2) as source:
        assert source.labels.shape == (count - 2,) and (source.labels == 3).all()
    for skip, limit in ((0, 5), (1, None)):
        with pytest.raises(LenetError, match=r"/y to hold class numbers 0\.\.9, found 3 to 99"):
            open_source(tmp_path / "x.h5", skip, limit)


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


@pytest.mark.parametrize("form", ["contiguous", "deflate", "idx.gz"])
def test_memory_is_bounded(tmp_path, form):
    """Gigabytes of zeros that lie nowhere, and what a few megabytes inflate to."""
    path = tmp_path / "x"
    if form == "contiguous":
        count = 2_000_000
        sparse_h5(path, count)
    elif form == "deflate":
        count = 500_000
        with h5py.File(path, "w") as file:
            chunks = (3_000, 28, 28)
            item = file.create_dataset("x", (count, 28, 28), "u1", chunks=chunks, **DEFLATE)
            packed = zlib.compress(bytes(3_000 * 784))
            for lo in range(0, count, 3_000):
                item.id.write_direct_chunk((lo, 0, 0), packed)
    else:
        count = 500_000
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(struct.pack(">4I", 2051, count, 28, 28))
            for _ in range(50):
                file.write(bytes(count // 50 * 784))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert done.stderr == ""
    found, grown = map(int, done.stdout.split())
    assert found == count
    assert grown < 60_000  # kilobytes; the smallest file is 390 MB


def test_the_example_in_the_docs(tmp_path, monkeypatch, digits):
    monkeypatch.chdir(tmp_path)
    h5(tmp_path / "digits.h5", digits)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "files.md").read_text(), re.S)
    names = {}
    exec(example, names)
    np.testing.assert_array_equal(names["part"], as_read(digits)[2:5])


# --- what is refused ---


def refusals(path, skip=0):
    with open_source(path, skip) as source, pytest.raises(LenetError) as caught:
        parts(source, [4])
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("make", ["contiguous", "chunked", "slow", "npy"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "to be finite, found NaN or infinity in image 37 "),
        (-np.inf, "to be finite, found NaN or infinity in image 37 "),
        (1.5, "to hold floats in 0..1 (or uint8 pixels), found 0 to 1.5 in image 37 "),
        (-0.5, "to hold floats in 0..1 (or uint8 pixels), found -0.5 to 0 in image 37 "),
    ],
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_wrong_float_is_said_with_its_image(tmp_path, make, value, message, dtype):
    images = np.zeros((COUNT, 28, 28), dtype)
    images[37, 27, 27] = value
    images[40:] = np.nan
    path = MAKERS[make](tmp_path, images, None)
    assert message in refusals(path, skip=6)
    with open_source(path, 0, 37) as source:
        assert not source.whole().images.any()


def test_a_wrong_float_is_found_in_any_block(tmp_path):
    images = np.zeros((2 * reading.BLOCK + 9, 28, 28), np.float32)
    for number in (reading.BLOCK - 1, reading.BLOCK, len(images) - 1):
        images[...] = 0
        images[number, 3, 3] = 2
        with pytest.raises(LenetError, match=f"found 0 to 2 in image {number:,} "):
            load_dataset(npy(tmp_path / "x.npy", images))


@pytest.mark.parametrize("make", MAKERS)
def test_a_file_that_shrinks_while_it_is_read(tmp_path, rng, make):
    images = rng.integers(0, 256, (4_000, 28, 28), dtype=np.uint8)
    path = MAKERS[make](tmp_path, images, None)
    out = np.empty((1_000, 28, 28, 1), np.uint8)
    with open_source(path) as source:
        source.read(0, out)
        os.truncate(path, path.stat().st_size * 5 // 8)
        if make not in ("slow", "chunked"):  # after HDF5 only the file's size is believed
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
        assert ("bytes from byte" in message) == (make not in ("slow", "chunked"))
        assert message.endswith(": the file became shorter while it was read")


def test_labels_and_weights_that_shrink_are_not_zeros(tmp_path, weight_file, monkeypatch):
    """HDF5 fills with zeros what lies past a file's end."""
    path = tmp_path / "x.h5"
    h5(path, np.ones((9, 28, 28), np.uint8), np.full(9, 3))
    find = hdf5_source.hdf5.find

    def shrink(file, name, *arguments):
        item = find(file, name, *arguments)
        if name in ("y", "fc2"):
            os.truncate(file.filename, os.path.getsize(file.filename) - 40)
        return item

    monkeypatch.setattr(hdf5_source.hdf5, "find", shrink)
    for load, target in ((open_source, path), (load_weights, weight_file)):
        with pytest.raises(LenetError, match="the file became shorter while it was read"):
            load(target)


def test_what_the_disk_will_not_read_is_one_sentence(tmp_path, monkeypatch, digits):
    def fail(*_):
        raise OSError(5, "Input/output error")

    path = npy(tmp_path / "x.npy", digits)
    with open_source(path) as source:
        monkeypatch.setattr(disk.os, "preadv", fail)
        with pytest.raises(LenetError, match=r"expected 47,824 readable bytes from byte 128 on, "):
            source.whole()


def test_reads_come_in_pieces_and_without_preadv(tmp_path, monkeypatch, digits):
    path = npy(tmp_path / "x.npy", digits)
    preadv = os.preadv
    monkeypatch.setattr(disk.os, "preadv", lambda h, b, at: preadv(h, [b[0][:1_000]], at))
    np.testing.assert_array_equal(load_dataset(path).images, as_read(digits))
    monkeypatch.delattr(disk.os, "preadv")
    with open_source(path) as source:
        np.testing.assert_array_equal(in_any_order(source, 5), as_read(digits))


def direct(path, data, mask=0, **options):
    """A file whose only chunk's bytes are `data`."""
    with h5py.File(path, "w") as file:
        item = file.create_dataset("x", (7, 28, 28), "u1", chunks=(7, 28, 28), **options)
        item.id.write_direct_chunk((0, 0, 0), data, mask)
    return path


LENGTH = 7 * 784
EXPECTED = "to have a chunk that inflates to 5,488 bytes at image 0, found "


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (zlib.compress(bytes(LENGTH - 1)), EXPECTED + "5,487"),
        (zlib.compress(bytes(LENGTH + 1)), EXPECTED + "more"),
        (zlib.compress(bytes(500 * LENGTH)), EXPECTED + "more"),
        (zlib.compress(b""), EXPECTED + "0"),
        (zlib.compress(bytes(range(256)) * 22)[:-9], EXPECTED),
        (zlib.compress(bytes(LENGTH))[:-4], EXPECTED + "no end after them"),
        (zlib.compress(bytes(LENGTH))[:-1] + b"!", "found a damaged one"),
        (b"not deflated", "found a damaged one"),
        (
            bytes(2 * LENGTH),
            "to have a chunk of at most 9,927 bytes in the file at image 0, found m",
        ),
    ],
)
def test_a_chunk_that_is_not_what_it_is_declared_to_be(tmp_path, data, message):
    assert message in refusals(direct(tmp_path / "x.h5", data, **DEFLATE))


def test_a_chunk_is_not_inflated_beyond_its_size(tmp_path):
    path = direct(tmp_path / "x.h5", zlib.compress(bytes(5_000_000)), **DEFLATE)
    with open_source(path) as source:
        tracemalloc.start()
        with pytest.raises(LenetError, match="that inflates to 5,488 bytes at image 0, found more"):
            source.whole()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("length", [LENGTH - 1, LENGTH + 1])
def test_a_stored_chunk_of_another_length(tmp_path, length):
    """Where there are filters: without any, HDF5 knows no length but the declared one."""
    path = direct(tmp_path / "x.h5", bytes(length), shuffle=True)
    assert f"a chunk of 5,488 bytes at image 0, found {length:,}" in refusals(path)


def test_a_chunk_without_its_filters(tmp_path, digits):
    """A bit for each filter that was left out for this chunk."""
    path = direct(tmp_path / "x.h5", digits[:7].tobytes(), mask=3, shuffle=True, **DEFLATE)
    np.testing.assert_array_equal(load_dataset(path).images, as_read(digits[:7]))
    packed = zlib.compress(digits[:7].tobytes())
    direct(path, packed, mask=4, shuffle=True, fletcher32=True, **DEFLATE)
    np.testing.assert_array_equal(load_dataset(path).images, as_read(digits[:7]))


def test_filters_in_another_order(tmp_path, digits):
    """A checksum that is deflated with its data."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((7, 28, 28))
        plist.set_fletcher32()
        plist.set_deflate(1)
        space = h5py.h5s.create_simple(digits.shape)
        item = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, plist)
        item.write(h5py.h5s.ALL, h5py.h5s.ALL, digits)
    with open_source(tmp_path / "x.h5") as source:
        assert isinstance(source, ChunkedSource)
        np.testing.assert_array_equal(source.whole().images, as_read(digits))


@pytest.mark.parametrize(
    ("filters", "here"),
    [
        ([(2, (4,)), (1, (6,)), (3, ())], True),
        ([(2, (2,)), (1, (6,))], False),
        ([(2, ()), (1, (6,))], False),
        ([(1, (6,)), (1, (6,))], False),
        ([(32000, ()), (1, (6,))], False),
    ],
)
def test_which_filters_are_decoded_here(tmp_path, monkeypatch, digits, filters, here):
    """Not a shuffle by another width than an element's, as a damaged header may say."""
    monkeypatch.setattr(chunks, "_filters", lambda item: filters)
    path = h5(tmp_path / "x.h5", np.float32(digits > 9), chunks=(7, 28, 28))
    with h5py.File(path) as file:
        assert chunks.decoded_here(file["x"]) == here


def test_a_chunk_with_a_wrong_checksum(tmp_path, digits):
    path = h5(tmp_path / "x.h5", digits[:7], chunks=(7, 28, 28), fletcher32=True)
    data = bytearray(path.read_bytes())
    at = data.index(digits[3].tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert "to have a chunk whose checksum is " in refusals(path)
    assert "found none" in refusals(direct(path, b"abc", fletcher32=True))


@pytest.mark.parametrize("length", [1, 2, 3, 783, (1 << 15) + 1, 200_001])
@pytest.mark.parametrize("value", [None, 0, 255])
def test_fletchers_checksum_is_hdf5s(tmp_path, rng, length, value):
    data = rng.bytes(length) if value is None else bytes([value]) * length
    with h5py.File(tmp_path / "x.h5", "w") as file:
        options = {"chunks": (length,), "fletcher32": True}
        item = file.create_dataset("x", data=np.frombuffer(data, np.uint8), **options)
        _, stored = item.id.read_direct_chunk((0,))
    assert fletcher32(np.frombuffer(data, np.uint8)) == int.from_bytes(stored[length:], "little")


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_images_that_were_never_written_are_not_zeros(tmp_path, compression):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        options = {"chunks": (7, 28, 28), "compression": compression}
        item = file.create_dataset("x", (COUNT, 28, 28), "u1", **options)
        item[:14] = 3
    if compression == "lzf":
        with pytest.raises(LenetError, match="found 7 of 9 parts not written"):
            open_source(path)
        return
    with open_source(path, 0, 14) as source:
        assert (source.whole().images == 3).all()
    assert "a chunk stored at image 14, found one that cannot be read" in refusals(path)


def test_contiguous_images_and_labels_that_were_never_written(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (COUNT, 28, 28), "u1")
    with pytest.raises(LenetError, match="/x to be .*found 1 of 1 parts not written"):
        open_source(path)
    with h5py.File(path, "a") as file:
        file["x"][0] = 1
        file.create_dataset("y", (COUNT,), "u1", chunks=(10,))[10:30] = 2
    with pytest.raises(LenetError, match="/y to be .*found 5 of 7 parts not written"):
        open_source(path)


def test_data_past_the_end_of_the_file(tmp_path, monkeypatch, digits):
    """As a damaged header might say; HDF5 itself sees that of whole files only."""
    path = h5(tmp_path / "x.h5", digits)

    class Short(disk.OpenFile):
        def __init__(self, path, file=None):
            super().__init__(path, file)
            self.size -= 1

    monkeypatch.setattr(hdf5_source, "OpenFile", Short)
    with pytest.raises(LenetError, match="/x to lie within the file, found that it ends at byte"):
        open_source(path)


@pytest.mark.parametrize("beyond", [0, 1 << 40])
def test_a_chunk_that_is_said_to_lie_past_the_end(tmp_path, rng, beyond):
    """Its address in HDF5's index is changed to the file's end, or far behind it."""
    images = rng.integers(0, 256, (14, 28, 28), dtype=np.uint8)
    path = h5(tmp_path / "x.h5", images, chunks=(7, 28, 28))
    data = bytearray(path.read_bytes())
    address = struct.pack("<Q", data.index(images[7].tobytes()))
    assert data.count(address) == 1
    at = data.index(address)
    data[at : at + 8] = struct.pack("<Q", len(data) + beyond)
    path.write_bytes(data)
    assert "to have a chunk stored at image 7, found one that cannot be read" in refusals(path)


def test_chunks_that_are_too_large(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        options = {"chunks": (1 << 21, 28, 28), "maxshape": (None, 28, 28)}
        file.create_dataset("x", (5, 28, 28), "u1", **options)
    with pytest.raises(LenetError, match="found chunks of 1,644,167,168 bytes, more than 1,073,7"):
        open_source(tmp_path / "x.h5")


def test_a_way_out_of_the_file_through_two_links(tmp_path, digits):
    secret = h5(tmp_path / "secret.h5", digits)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["door"] = h5py.ExternalLink(str(secret), "/")
        file["x"] = h5py.SoftLink("/door/x")
    with pytest.raises(LenetError, match="/x to be .*found a link to another file"):
        open_source(tmp_path / "x.h5")


def test_the_file_that_was_checked_is_the_one_that_is_read(tmp_path, monkeypatch, digits):
    """Another of its name comes between HDF5's opening and ours."""
    path, other = h5(tmp_path / "x.h5", digits), h5(tmp_path / "y.h5", 255 - digits)
    find = hdf5_source.hdf5.find

    def swap(*arguments):
        other.replace(path)
        return find(*arguments)

    monkeypatch.setattr(hdf5_source.hdf5, "find", swap)
    np.testing.assert_array_equal(load_dataset(path).images, as_read(digits))
    assert not other.exists()


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((0, 28, 28), "u1", r"found shape \(0, 28, 28\)"),
        ((2, 28, 29), "u1", r"found shape \(2, 28, 29\)"),
        ((784,), "u1", r"found shape \(784,\)"),
        ((2, 28, 28), "i8", "uint8 or float images, found type int64"),
        ((2, 28, 28), "O", "uint8 or float images, found type object"),
    ],
)
def test_other_arrays(tmp_path, shape, dtype, message):
    np.save(tmp_path / "x.npy", np.zeros(shape, dtype), allow_pickle=True)
    with pytest.raises(LenetError, match=message):
        open_source(tmp_path / "x.npy")


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


# --- packed IDX files ---


@pytest.mark.parametrize("kept", [256 << 20, 20 * 784, 0])
@pytest.mark.parametrize("size", [1, 7, 30])
def test_packed_files_are_right_in_any_order(tmp_path, monkeypatch, digits, kept, size):
    monkeypatch.setattr(idx, "KEPT_BYTES", kept)
    monkeypatch.setattr(idx, "_STEP", 5 * 784)
    path = idx_file(tmp_path / "x-images.gz", digits)
    with open_source(path, 4) as source:
        for seed in range(3):
            found = in_any_order(source, size, seed=seed)
            np.testing.assert_array_equal(found, as_read(digits)[4:])


def test_what_one_thread_passes_is_kept_for_the_other(tmp_path, monkeypatch, digits):
    """A file is opened once though the second part is read first, and nothing stays."""
    opened = []
    monkeypatch.setattr(idx, "unpacking", lambda path: opened.append(path) or gzip.GzipFile(path))
    monkeypatch.setattr(idx, "_STEP", 5 * 784)
    path = idx_file(tmp_path / "x-images.gz", digits)
    with open_source(path, 1) as source:
        del opened[:]
        found = np.zeros((60, 28, 28, 1), np.uint8)
        for lo, hi in ((40, 60), (0, 12), (12, 39), (39, 40)):
            source.read(lo, found[lo:hi])
        assert len(opened) == 1
        assert source._kept == {}
    np.testing.assert_array_equal(found, as_read(digits)[1:])


def test_packed_labels_after_a_skip(tmp_path, monkeypatch, digits, labels):
    monkeypatch.setattr(idx, "_STEP", 7)
    path = idx_file(tmp_path / "x-images.gz", digits, labels)
    for skip, limit in ((0, None), (15, 20), (40, None)):
        with open_source(path, skip, limit) as source:
            until = None if limit is None else skip + limit
            np.testing.assert_array_equal(source.labels, labels[skip:until])


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


@pytest.mark.parametrize("how", ["zlib", "isal"])
def test_either_inflate(tmp_path, digits, labels, how):
    """A process each: what is installed is found once."""
    if how == "isal":
        pytest.importorskip("isal", reason="the extra isal is not installed")
    path = idx_file(tmp_path / "x-images.gz", digits, labels)
    chunked = h5(tmp_path / "x.h5", digits, labels, chunks=(7, 28, 28), **DEFLATE)
    bad = direct(tmp_path / "bad.h5", b"\x78\x9cnot deflated", **DEFLATE)
    np.save(tmp_path / "truth.npy", as_read(digits))
    code = f"""
import sys
from pathlib import Path
if {how!r} == "zlib":
    sys.modules["isal"] = None
import numpy as np
from lenetgpu.errors import LenetError
from lenetgpu.files.dataset import load_dataset
for path in sys.argv[1:3]:
    found = load_dataset(Path(path))
    assert (found.images == np.load(sys.argv[4])).all() and len(found.labels) == {COUNT}
assert ("isal.isal_zlib" in sys.modules) == ({how!r} == "isal")
Path(sys.argv[1]).write_bytes(Path(sys.argv[1]).read_bytes()[:-3])
for path in sys.argv[1], sys.argv[3]:
    try:
        load_dataset(Path(path))
    except LenetError as error:
        print(error)
"""
    arguments = [path, chunked, bad, tmp_path / "truth.npy"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stderr == ""
    assert done.stdout.count("found a damaged") == 2


FORKED = """
import os, signal, sys, time
from pathlib import Path
from lenetgpu.files import hdf5_source
from lenetgpu.files.source import open_source
hdf5_source.core_count = lambda: 1
with open_source(Path(sys.argv[1])) as source:
    images = source.whole().images
    time.sleep(0.2)  # the thread waits for work now
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if (source.whole().images == images).all() else 3)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_reads_chunks_too(tmp_path, digits):
    path = h5(tmp_path / "x.h5", digits, chunks=(7, 28, 28))
    words = [sys.executable, "-c", FORKED, str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
