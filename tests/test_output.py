"""Output files: labels in parts, permission to overwrite, modes, full disks, stopped runs."""

import csv
import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import ROOT
from terminal import python, refused, run

from lenetgpu.errors import LenetError
from lenetgpu.files import assets, checksums, output
from lenetgpu.files.convert import convert_data, convert_weights, write_weights
from lenetgpu.files.output import LabelWriter, require_targets, write_labels
from lenetgpu.files.reading import Source
from lenetgpu.files.weights import load_weights
from lenetgpu.store import Temporary, write_atomically

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
    with pytest.raises(LenetError, match=f"{target}: cannot be written: "):
        convert_data(tmp_path / "x.npy", target)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.h5", "x.npy"]


def test_only_the_first_line_of_an_error_is_shown(tmp_path):
    for error in (OSError(28, "No space\nHDF5: 12 more lines"), RuntimeError("No space\nat 7")):
        with pytest.raises(LenetError) as caught, output.replacing(tmp_path / "x.h5"):
            raise error
        assert str(caught.value).endswith("x.h5: cannot be written: No space")
    assert list(tmp_path.iterdir()) == []


CPU = ("--device", "cpu")
LABELS = np.arange(10, dtype=np.int32)
WAYS = {
    "labels": lambda path: write_labels(path, LABELS),
    "bytes": lambda path: write_atomically(path, b"new"),
    "weights": lambda path: write_weights(path, load_weights(assets.default_weights()).tensors, {}),
}


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "pool1", "--data", "{same}", "--json", "{way}"],
        ["compare", "pool1", "--with", "{folder}", "--markdown", "{way}"],
        ["conv", "1,8,8,1,3", "--against", "{same}", "--csv", "{way}"],
    ],
)
@pytest.mark.parametrize("by", ["hard link", "descriptor"])
def test_input_of_a_comparison_is_not_overwritten(words, by, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    source, way = folder / "x.py", tmp_path / "way"
    source.write_text("read")
    with source.open() as opened:
        if by == "hard link":
            os.link(source, way)
        else:
            way = Path(f"/proc/self/fd/{opened.fileno()}")
        result = run(*(word.format(same=source, folder=folder, way=way) for word in words))
    refused(result, "expected an output file other than the inputs", str(source))
    assert source.read_text() == "read"


@pytest.mark.parametrize("shipped", [*assets.shipped(), assets.PACKAGE / "errors.py"])
def test_shipped_files_are_not_overwritten(shipped, tmp_path):
    before = shipped.read_bytes()
    (tmp_path / "link").symlink_to(shipped)
    np.save(tmp_path / "x.npy", np.zeros((3, 28, 28), np.uint8))
    asked = [["infer", "--limit", 9, *CPU, "--json", way] for way in (shipped, tmp_path / "link")]
    for words in (*asked, ["data", "convert", tmp_path / "x.npy", shipped]):
        refused(run(*words), "found one that ships with lenetgpu")
    assert shipped.read_bytes() == before


@pytest.mark.parametrize("by", ["way", "hard link", "soft link"])
def test_two_results_need_two_files(by, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = Path("a.json"), Path("b.json")
    if by == "way":
        second = tmp_path / "." / "a.json"
    elif by == "hard link":
        first.write_text("old")
        os.link(first, second)
    else:
        second.symlink_to(first)
    refused(run("infer", *CPU, "--output", first, "--json", second), "one result per output file")
    require_targets(first, Path("c.json"))
    require_targets(first, Path("-"))
    with pytest.raises(LenetError, match="^stdout: expected one result per output file, found two"):
        require_targets(Path("-"), Path("-"))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_file_of_a_redirected_stream_is_refused(stream, tmp_path):
    path = tmp_path / "out.json"
    code = "from lenetgpu.files.output import require_targets; from pathlib import Path; import sys"
    words = [sys.executable, "-c", f"{code}; require_targets(Path(sys.argv[1]))", path]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with path.open("w") as file:
        done = subprocess.run(words, **streams | {stream: file}, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    said = done.stderr if stream == "stdout" else path.read_text()
    assert f"{path}: expected one result per output file, found two" in said


@pytest.mark.parametrize("way", WAYS)
def test_mode_is_kept_and_new_files_follow_umask(way, tmp_path, monkeypatch):
    old, plain, new = (tmp_path / f"{name}.npy" for name in ("old", "plain", "new"))
    old.write_text("old")
    old.chmod(0o764)
    was = old.stat()
    before = os.umask(0o027)
    try:
        plain.write_text("")
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("every thread's umask set"))
        for path in (old, new):
            WAYS[way](path)
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert old.read_bytes() != b"old" and old.stat().st_ino != was.st_ino
    assert (old.stat().st_mode, old.stat().st_uid, old.stat().st_gid) == (
        was.st_mode, was.st_uid, was.st_gid,
    )  # fmt: skip
    assert stat.S_IMODE(new.stat().st_mode) == 0o640 == stat.S_IMODE(plain.stat().st_mode)


def test_data_is_synced_before_renaming(tmp_path, monkeypatch):
    def kind(handle):
        return "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"

    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(kind(handle)), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (done.append("named"), replace(*names)))
    for way in WAYS.values():
        done.clear()
        way(tmp_path / "x.npy")
        assert done == ["file", "named", "folder"]
    done.clear()
    write_atomically(tmp_path / "x", b"made again where it is lost", lasting=False)
    assert done == ["named"]


HOLDER = """
import sys
from pathlib import Path
from lenetgpu.store import Temporary
made = Temporary(Path(sys.argv[1]))
made.file.write(b"whole")
print(made.path.name, flush=True)
sys.stdin.readline()
made.publish(Path(sys.argv[1]) / "published")
"""


def test_temporary_files_of_dead_runs_are_removed(tmp_path):
    def holder():
        words = [sys.executable, "-c", HOLDER, tmp_path]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(words, **pipes, text=True, cwd=ROOT)

    with holder() as dead, holder() as alive:
        left, held = (tmp_path / child.stdout.readline().strip() for child in (dead, alive))
        dead.send_signal(signal.SIGKILL)
        dead.wait(30)
        assert left.exists() and held.exists()
        write_labels(tmp_path / "x.npy", LABELS)
        assert not left.exists() and held.exists()
        alive.communicate("\n", timeout=30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["published", "x.npy"]
    assert (tmp_path / "published").read_bytes() == b"whole"


def test_unrelated_files_are_not_removed(tmp_path):
    name = ".lenetgpu.0123456789abcde"
    (tmp_path / f"{name}1").symlink_to(tmp_path / "far")
    (tmp_path / "far").write_text("far")
    os.mkfifo(tmp_path / f"{name}2")
    (tmp_path / f"{name}3").mkdir()
    (tmp_path / ".lenetgpu.settings").write_text("mine")
    (tmp_path / f"{name}4.txt").write_text("mine")
    there = set(tmp_path.iterdir())
    (tmp_path / f"{name}6").write_text("left")
    with Temporary(tmp_path) as made:
        assert set(tmp_path.iterdir()) == there | {made.path}
    assert set(tmp_path.iterdir()) == there


def test_invalid_targets_are_one_sentence(tmp_path, monkeypatch):
    loop, gone = tmp_path / "loop.json", tmp_path / "gone"
    loop.symlink_to(loop)
    with (tmp_path / "x").open("w") as file:
        (tmp_path / "x").unlink()
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        deleted = f"/proc/self/fd/{file.fileno()}"
        for target in (loop, loop / "x.json", "x.json", gone / "x.json", deleted, "/proc/version"):
            refused(run("infer", "--limit", 9, *CPU, "--json", target), str(target))
            with pytest.raises(
                LenetError, match=re.escape(f"{target}: ") + "(expected|cannot|folder)"
            ):
                convert_weights(assets.default_weights(), Path(target))
    assert list(tmp_path.iterdir()) == [loop]


def test_unnamed_pipe_is_written(tmp_path):
    """`infer --json /dev/stdout | cat`, in which the name resolves to no path."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as pipe:
        write_atomically(Path(f"/proc/self/fd/{write}"), b"bytes")
        os.close(write)
        assert pipe.read() == b"bytes"


# A moment is a line about to run, in h5py's Python code or in hdf5.py, after `new_hdf5` began. The
# first child counts the moments; each later child sends SIGINT to itself at one of them.
DRIVER = """
import json, os, signal, sys
import h5py, numpy
import lenetgpu.lab.listing, lenetgpu.files.convert
from lenetgpu.cli import main
from lenetgpu.files import hdf5

places = hdf5.__file__, os.path.dirname(h5py.__file__)
folder, log, moments, arguments = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4:]
begun, passed = False, 0

def child(at):
    def line(frame, event, argument):
        global begun, passed
        begun = begun or frame.f_code.co_name == "new_hdf5"
        if begun and event == "line":
            passed += 1
            if passed == at:
                os.kill(os.getpid(), signal.SIGINT)
        return line

    if os.fork():
        status = os.waitstatus_to_exitcode(os.wait()[1])
        left = os.listdir(folder)
        for name in left:
            os.remove(os.path.join(folder, name))
        with open(log) as file:
            return at, status, file.read(), left
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1), os.dup2(stream, 2)
    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.startswith(places) else None)
    try:
        main(arguments, prog_name="lenetgpu")
    finally:
        sys.settrace(None)
        if at == 0:
            print(passed, file=sys.stderr)

whole = child(0)
count = int(whole[2].split()[-1])
ends = [child(1 + count * index // moments) for index in range(moments)]
print(json.dumps([whole, ends]))
"""


@pytest.mark.parametrize(
    ("words", "moments"),
    [
        ("data convert", 8),
        pytest.param("data convert", 60, marks=pytest.mark.slow),
        pytest.param("weights convert", 60, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_leaves_no_partial_files(tmp_path, rng, words, moments):
    source, folder = tmp_path / "x.npy", tmp_path / "made"
    np.save(source, rng.integers(0, 256, (2_500, 28, 28), dtype=np.uint8))
    folder.mkdir()
    read = source if "data" in words else assets.default_weights()
    log, target = tmp_path / "log", folder / "x.h5"
    done = python("-c", DRIVER, folder, log, moments, *words.split(), read, target)
    assert done.returncode == 0, done.stderr
    whole, ends = json.loads(done.stdout)
    assert whole[1] == 0 and whole[3] == ["x.h5"]
    assert len({at for at, *_ in ends}) == moments
    wrong = [end for end in ends if end[1:] != [130, "lenetgpu: interrupted\n", []]]
    assert wrong == []
