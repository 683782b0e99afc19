"""Output files: permission to overwrite, file modes, leftovers of killed runs."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from terminal import refused, run

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.convert import convert_weights, write_weights
from lenetgpu.files.output import require_targets, write_labels
from lenetgpu.files.weights import load_weights
from lenetgpu.store import Temporary, write_atomically

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


def test_targets_are_checked_before_computing(tmp_path, monkeypatch):
    monkeypatch.setattr("lenetgpu.lab.infer.infer", lambda *_: pytest.fail("computed"))
    np.save(tmp_path / "x.npy", np.zeros((3, 28, 28), np.uint8))
    refused(run("infer", tmp_path / "x.npy", *CPU, "--output", tmp_path / "x.npy"), "the inputs")


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
