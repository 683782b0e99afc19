"""Label files written in parts: the same bytes as one write, or no file at all."""

import csv
import io
import json
import os
import resource
import subprocess

import h5py
import numpy as np
import pytest
from terminal import refused, run

from lenetgpu.errors import LenetError
from lenetgpu.files import checksums, output
from lenetgpu.files.convert import convert_data
from lenetgpu.files.output import LabelWriter, write_labels
from lenetgpu.files.reading import Source

ENDINGS = [".npy", ".csv", ".json", ".h5"]


def whole(path, labels, scores, asked):
    """Return the expected bytes of a file written at once by the libraries; contents for HDF5."""
    buffer, text = io.BytesIO(), io.StringIO()
    if path.suffix == ".npy":
        rows = labels
        if scores is not None:
            rows = np.empty(len(labels), [("label", "<i4"), ("scores", "<f4", (10,))])
            rows["label"], rows["scores"] = labels, scores
        np.save(buffer, rows)
        return buffer.getvalue()
    if path.suffix == ".csv":
        writer = csv.writer(text, lineterminator="\n")
        names = [] if scores is None else [f"score{k}" for k in range(10)]
        writer.writerow(["index", "label", *names])
        for index, label in enumerate(labels.tolist()):
            row = [] if scores is None else [f"{value:.9g}" for value in scores[index]]
            writer.writerow([index, label, *row])
        return text.getvalue().encode()
    said = {} if asked is None else {"interrupted": True, "images_asked": asked}
    if path.suffix == ".json":
        document = said | {"labels": labels.tolist()}
        if scores is not None:
            rows = scores.astype(float).tolist()
            document["scores"] = [[v if np.isfinite(v) else None for v in row] for row in rows]
        return json.dumps(document).encode()
    arrays = {"labels": labels} if scores is None else {"labels": labels, "scores": scores}
    return said, {name: (array.dtype, array.tobytes()) for name, array in arrays.items()}


def held(path):
    """Return the bytes of a file; for HDF5 its attributes and arrays, without their checksums."""
    if path.suffix != ".h5":
        return path.read_bytes()
    assert checksums.verify(path)
    with h5py.File(path) as file:
        said = {name: value for name, value in file.attrs.items() if name != checksums.ATTRIBUTE}
        return said, {name: (item.dtype, item[...].tobytes()) for name, item in file.items()}


@pytest.fixture
def made(rng):
    scores = rng.standard_normal((40_000, 10)).astype(np.float32)
    scores[3, :4] = np.nan, np.inf, -np.inf, 1e-40
    return rng.integers(0, 10, 40_000, dtype=np.int32), scores


@pytest.mark.parametrize(
    ("count", "with_scores", "asked"), [(1, True, None), (2, False, 9), (40_000, True, 50_000)]
)
@pytest.mark.parametrize("ending", ENDINGS)
def test_parts_give_the_same_bytes_as_one_write(tmp_path, made, ending, count, with_scores, asked):
    labels, scores = made[0][:count], made[1][:count] if with_scores else None
    expected = whole(tmp_path / f"x{ending}", labels, scores, asked)
    parts, at_once = tmp_path / f"parts{ending}", tmp_path / f"whole{ending}"
    write_labels(at_once, labels, scores, asked)
    assert held(at_once) == expected
    with LabelWriter(parts, asked or count, with_scores) as writer:
        lo = 0
        for size in (1, 700, 0, 39_000, 299):
            part = None if scores is None else scores[lo : lo + size]
            writer.write(labels[lo : lo + size], part)
            lo += size
        assert writer.done == count
        assert not parts.exists()
        writer.close(asked)
    assert held(parts) == expected
    assert parts.read_bytes() == at_once.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_names_cannot_be_spreadsheet_formulas(tmp_path):
    names = ["=cmd|calc.png", "+1.png", "-x.png", "@a.png", "a=b.png"]
    with LabelWriter(tmp_path / "l.CSV", 5, False, names=names) as writer:
        writer.write(np.arange(5, dtype=np.int32), None)
    found = (tmp_path / "l.CSV").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in found] == [f"'{n}" for n in names[:4]] + names[4:]


def test_labels_of_other_types_become_int32(tmp_path):
    write_labels(tmp_path / "x.npy", np.array([3, 1, 4], np.int64)[::-1])
    assert np.load(tmp_path / "x.npy").dtype == np.int32
    assert np.load(tmp_path / "x.npy").tolist() == [4, 1, 3]


@pytest.mark.parametrize("ending", ENDINGS)
def test_interrupted_write_keeps_the_old_file(tmp_path, made, ending):
    labels, scores = made
    path = tmp_path / f"x{ending}"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), LabelWriter(path, 40_000, True) as writer:
        writer.write(labels[:9], scores[:9])
        raise KeyboardInterrupt
    writer = LabelWriter(path, 40_000, False)
    writer.write(labels)
    writer.abandon()
    writer.close()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_wrong_number_of_labels_writes_no_file(tmp_path, made):
    path = tmp_path / "x.npy"
    announced = "3 labels announced, 2 written"
    with pytest.raises(ValueError, match=announced), LabelWriter(path, 3, False) as writer:
        writer.write(made[0][:2])
    for labels, scores in ((made[0][:4], None), (made[0][:1], made[1][:1])):
        announced = "more labels than announced"
        with pytest.raises(ValueError, match=announced), LabelWriter(path, 3, False) as writer:
            writer.write(labels, scores)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files():
    """Limit files to 100 kB, which acts like a full disk on files that grow."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("ending", ENDINGS)
def test_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, made, small_files, ending):
    labels, scores = made
    path = tmp_path / f"x{ending}"
    path.write_text("old")
    with pytest.raises(LenetError) as caught:
        write_labels(path, labels, scores)
    assert str(caught.value) == f"{path}: cannot be written: File too large"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", ENDINGS)
def test_devices_and_pipes_are_written_directly(tmp_path, made, ending):
    """A pipe receives the bytes; a device that is always full gives an error."""
    full, pipe = tmp_path / f"full{ending}", tmp_path / f"pipe{ending}"
    full.symlink_to("/dev/full")
    os.mkfifo(pipe)
    with pytest.raises(LenetError, match="full.*: No space left on device"):
        write_labels(full, made[0])
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        few = made[0][:100], made[1][:100]
        write_labels(pipe, *few)
        copy = tmp_path / f"copy{ending}"
        copy.write_bytes(reader.communicate(timeout=30)[0])
    assert held(copy) == whole(pipe, *few, None)
    assert full.is_symlink() and pipe.is_fifo()


def test_convert_streams_chunks_and_reads_pipes(tmp_path, rng, monkeypatch):
    images = rng.integers(0, 256, (2_500, 28, 28), dtype=np.uint8)
    np.save(tmp_path / "x.npy", images)
    monkeypatch.setattr(Source, "whole", None)
    assert convert_data(tmp_path / "x.npy", tmp_path / "x.h5") == 2_500
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["x"].chunks == (1_000, 28, 28, 1)
        np.testing.assert_array_equal(file["x"][..., 0], images)
    np.save(tmp_path / "x.npy", images[:9])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        convert_data(tmp_path / "x.npy", pipe)
        with h5py.File(io.BytesIO(reader.communicate(timeout=30)[0])) as file:
            np.testing.assert_array_equal(file["x"][..., 0], images[:9])
    assert pipe.is_fifo()


def test_convert_on_a_full_disk(tmp_path, rng, small_files):
    """HDF5's error is reported by the failing call; the target keeps its old contents."""
    images = np.asarray(rng.integers(0, 256, (127, 28, 28)), np.uint8)
    np.save(tmp_path / "x.npy", images)
    target = tmp_path / "x.h5"
    target.write_text("old")
    with pytest.raises(LenetError, match=f"{target}: cannot be written: ") as e:
        convert_data(tmp_path / "x.npy", target)
    assert "\n" not in str(e.value)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.h5", "x.npy"]


def test_only_the_first_line_of_an_error_is_shown(tmp_path):
    for error in (OSError(28, "No space\nHDF5: 12 more lines"), RuntimeError("No space\nat 7")):
        with pytest.raises(LenetError) as caught, output.replacing(tmp_path / "x.h5"):
            raise error
        assert str(caught.value).endswith("x.h5: cannot be written: No space")
    assert list(tmp_path.iterdir()) == []


def test_infer_of_a_file_that_shrinks(tmp_path, monkeypatch):
    """The file shrinks between its opening and its first image; the label file is unchanged."""
    data, target = tmp_path / "x.npy", tmp_path / "labels.npy"
    np.save(data, np.zeros((50, 28, 28), np.uint8))
    target.write_text("old")
    preadv = os.preadv

    def shrink(handle, buffers, at):
        if os.path.samestat(os.fstat(handle), data.stat()):
            os.truncate(data, 20_000)
        return preadv(handle, buffers, at)

    monkeypatch.setattr(os, "preadv", shrink)
    result = run("infer", data, "--device", "cpu", "--output", target)
    refused(result, f"{data}: expected ", ": the file became shorter while it was read\n")
    assert target.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [target, data]
