"""A flipped bit in a shipped or written file is refused with a message, or changes nothing."""

import hashlib
import json

import h5py
import numpy as np
import pytest
from conftest import ROOT
from stored import hdf5
from terminal import python, refused, run

from lenetgpu.errors import LenetError
from lenetgpu.files import assets, checksums, sums
from lenetgpu.files.convert import convert_data, convert_weights
from lenetgpu.files.output import write_labels
from lenetgpu.files.source import load_dataset, open_source
from lenetgpu.files.weights import load_weights

SCRIPT = ROOT / "scripts" / "flips.py"


def rewritten(path, target, change):
    """Copy a file and apply `change` to the copy, opened by h5py; return its path."""
    target.write_bytes(path.read_bytes())
    with h5py.File(target, "a") as file:
        change(file)
    return target


def bare(file):
    """Drop all checksums."""
    for name in list(file):
        if name.endswith(checksums.OF_BLOCKS):
            del file[name]
        else:
            file[name].attrs.pop(checksums.ATTRIBUTE, None)
    file.attrs.pop(checksums.ATTRIBUTE)


@pytest.fixture
def converted(tmp_path, rng):
    images = rng.integers(0, 256, (3_345, 28, 28), dtype=np.uint8)
    images[:, 5:] = 0
    labels = rng.integers(0, 10, len(images), dtype=np.uint8)
    convert_data(hdf5(tmp_path / "source.h5", x=images, y=labels), tmp_path / "images.h5")
    return tmp_path / "images.h5"


@pytest.fixture
def weight_file(tmp_path):
    convert_weights(assets.default_weights(), tmp_path / "weights.h5")
    return tmp_path / "weights.h5"


def test_bit_flips_are_never_silent():
    """`scripts/flips.py` flips 1,000 bits of each file by default; this test uses `--flips 8`."""
    done = python(SCRIPT, "--json", "--flips", 8, "--seed", 3)
    rows = json.loads(done.stdout)
    assert [row["bits"] for row in rows] == [{"silent": [], "broken": []}] * len(rows)
    assert len(rows) >= 12 and sum(row["refused"] for row in rows) > 50, rows
    assert done.returncode == 0, done.stderr


def test_sha256_detects_rewritten_data(tmp_path, weight_file):
    """Data rewritten by HDF5 have a valid Fletcher checksum."""

    def change(file):
        file["fc2"][0, 0] *= -1

    path = rewritten(weight_file, tmp_path / "x.h5", change)
    for load in (load_weights, checksums.verify):
        with pytest.raises(LenetError, match=f"{path}: expected dataset /fc2 to have the SHA-256"):
            load(path)
    refused(run("weights", "verify", path), "/fc2")


def test_images_are_verified_by_blocks(converted, tmp_path, monkeypatch):
    first, message = 3_344, "rows 3,000 to 3,344,"

    def change(file):
        file["x"][first, 3, 3] ^= 1

    path = rewritten(converted, tmp_path / "x.h5", change)
    expected = load_dataset(converted)
    with open_source(path) as source:
        assert (source.labels == expected.labels).all()
        assert [source._item.whole_chunks(rows) for rows in (1, 1_001)] == [1_000, 2_000]
        for lo in (3_000, 1_000, 0):
            part = np.empty((min(1_000, 3_345 - lo), 28, 28, 1), np.uint8)
            if lo <= first < lo + 1_000:
                with pytest.raises(LenetError, match=f"/x, {message} to have the SHA-256"):
                    source.read(lo, part)
                with pytest.raises(LenetError, match=f"/x, {message} to have the SHA-256"):
                    source.read(first, part[:1])
            else:
                source.read(lo, part)
                assert (part == expected.images[lo : lo + 1_000]).all()
    monkeypatch.setattr(checksums, "_AT_ONCE", 2_000 * 784)
    with pytest.raises(LenetError, match=f"expected dataset /x, {message} to have the SHA-256"):
        checksums.verify(path)


def _rename(file):
    file.move("y", "z")


def _drop_blocks(file):
    del file["x_sha256"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_rename, "names and attributes"),
        (_drop_blocks, "names and attributes"),
        (lambda file: file["x"].attrs.pop(checksums.ATTRIBUTE), "names and attributes"),
        (lambda file: file.attrs.update(note="mine"), "attribute note to be numbers or text of"),
    ],
)
def test_attributes_and_structure_are_verified(converted, tmp_path, change, message):
    path = rewritten(converted, tmp_path / "x.h5", change)
    for load in (load_dataset, checksums.verify):
        with pytest.raises(LenetError, match=f"{path}: expected {message}"):
            load(path)


def test_all_labels_are_verified(converted, tmp_path):
    """The comparison covers all labels even if few are requested."""

    def change(file):
        file["y"][2_000] ^= 1

    path = rewritten(converted, tmp_path / "x.h5", change)
    with pytest.raises(LenetError, match="expected dataset /y to have the SHA-256"):
        open_source(path, 0, 5)


def test_files_without_checksums_load_with_a_note(converted, weight_file, tmp_path):
    images = rewritten(converted, tmp_path / "i.h5", bare)
    weights = rewritten(weight_file, tmp_path / "w.h5", bare)
    assert (load_dataset(images).images == load_dataset(converted).images).all()
    assert load_weights(weights).digest == load_weights(weight_file).digest
    np.save(tmp_path / "x.npy", np.zeros((3, 28, 28), np.uint8))
    without = (images, weights, tmp_path / "x.npy", assets.default_weights())
    for path, said in zip(without, [sums.NONE] * 3 + ["checksums match (4 datasets)"], strict=True):
        result = run("data", "verify", path)
        assert (result.exit_code, result.output) == (0, f"{path}: {said}\n")
    assert "damage cannot be detected" in run("weights", "verify", weights).output


def test_written_files_have_checksums(converted, weight_file, tmp_path, rng):
    """Every dataset has the documented SHA-256, and HDF5's own checksum on its chunks."""
    scores = rng.standard_normal((40_000, 10), np.float32)
    write_labels(tmp_path / "labels.h5", scores.argmax(1), scores, 50_000)
    shipped = assets.default_weights(), assets.default_digits()
    made = converted, weight_file, tmp_path / "labels.h5"
    counts = [4, 2, 2, 4, 2]
    for path, count in zip((*shipped, *made), counts, strict=True):
        assert checksums.verify(path).summary == f"checksums match ({count} datasets)"
        with h5py.File(path) as file:
            for name, item in file.items():
                assert item.attrs[checksums.ATTRIBUTE].decode() == by_hand(item[...])
                assert item.fletcher32, name
                blocks = file.get(f"{name}_sha256")
                if blocks is not None:
                    parts = range(0, len(item), item.chunks[0])
                    sums = [by_hand(item[lo : lo + item.chunks[0]]) for lo in parts]
                    assert [row.tobytes().hex() for row in blocks[...]] == sums


def by_hand(array):
    little = array.astype(array.dtype.newbyteorder("<"))
    line = f"{little.dtype.str} {'x'.join(str(n) for n in array.shape)}\n"
    return hashlib.sha256(line.encode() + little.tobytes()).hexdigest()


def verified(path):
    result = run("data", "verify", path, code=0)
    return result.output.removeprefix(f"{path}: ").rstrip("\n")


def _labels(file):
    file["z"] = np.zeros(5)
    file["a\x1b[31m\nb"] = 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_labels, "; /a\\x1b[31m\\nb, /z have none: damage cannot be detected"),
        (lambda file: file.attrs.pop(checksums.ATTRIBUTE), "; names and attributes have none"),
    ],
)
def test_missing_checksums_are_reported_and_the_rest_verified(converted, tmp_path, change, said):
    path = rewritten(converted, tmp_path / "x.h5", change)
    assert (load_dataset(path).images == load_dataset(converted).images).all()
    assert verified(path) == "checksums match (2 datasets)" + said

    def flip(file):
        file["x"][5, 5, 5] ^= 1

    with pytest.raises(LenetError, match="expected dataset /x, rows 0 to 999, to have the SHA-256"):
        load_dataset(rewritten(path, tmp_path / "flipped.h5", flip))


def test_copied_data_sets_keep_their_checksums(converted, tmp_path):
    """Images without block checksums are read whole when they are opened."""
    path = tmp_path / "copied.h5"
    with h5py.File(path, "w") as file, h5py.File(converted) as source:
        source.copy("x", file)
        file["y"] = source["y"][...]
    said = "checksums match (1 dataset); /y has none: damage cannot be detected"
    assert verified(path) == f"{said}; names and attributes have none"
    assert (load_dataset(path).images == load_dataset(converted).images).all()
    with h5py.File(path, "a") as file:
        file["x"][2_000, 3, 3] ^= 1
    for read in (load_dataset, checksums.verify):
        with pytest.raises(LenetError, match="expected dataset /x to have the SHA-256"):
            read(path)
