"""Hostile HDF5 and IDX files: references are not followed, declared sizes are not trusted."""

import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import hostile_hdf5 as hostile
import numpy as np
import pytest
from conftest import ROOT
from stored import idx_file, npy
from terminal import python

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.files import hdf5_trees as trees
from lenetgpu.files.hdf5_trees import require_trees
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights

# One child process per file and loader reports its CPU time (s), its peak memory (MiB) and its
# message ("" if the file was read).
DRIVER = """
import json, os, resource, signal, sys, time
from contextlib import nullcontext
from pathlib import Path
import h5py, numpy
from lenetgpu.errors import LenetError
from lenetgpu.files.source import load_dataset
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import load_weights

def images(path):
    load_dataset(path)

def parts(path):
    with open_source(path) as source:
        out = numpy.empty((100, 28, 28, 1), source.dtype)
        for lo in range(0, min(len(source), 100_000), 100):
            source.read(lo, out[:len(source) - lo])

found = {}
for path in map(Path, sys.argv[1:]):
    for load in (images, load_weights, parts)[: 2 + path.name.startswith("bombs")]:
        end, begin = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            said, before = "", time.process_time()
            try:
                load(path)
            except LenetError as error:
                said = str(error)
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            facts = time.process_time() - before, most, said
            os.write(begin, json.dumps(facts).encode())
            os._exit(0)
        os.close(begin)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open(end) as answer:
            found[f"{path.name} {load.__name__}"] = [status, *json.loads(answer.read() or "[]")]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return hostile.write_all(tmp_path_factory.mktemp("hostile") / "corpus")


@pytest.fixture(scope="module")
def ends(corpus):
    """The outcome of every file: (status, seconds, MiB, message)."""
    done = python("-c", DRIVER, *corpus)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of(ends, family, load):
    return {name: end for name, end in ends.items() if re.match(f"{family}-.* {load}$", name)}


def test_hostile_files_are_refused_or_read_correctly(ends):
    """Reading images, images by parts, and weights gives no signal, traceback or hang."""
    others = len(hostile.HEADERS) + len(hostile.WHOLE) + len(hostile.LENGTHS)
    files = sum(map(len, hostile.FAMILIES.values())) + others
    assert len(ends) == 2 * files + len(hostile.BOMBS)
    assert {name: end for name, end in ends.items() if end[0] != 0 or "\n" in end[3]} == {}


LINKS = r"found (an external link at|a soft link at|data stored in other|a type that is not) "


@pytest.mark.parametrize(
    ("family", "files", "words"),
    [
        ("foreign", hostile.FOREIGN, LINKS),
        ("short", hostile.SHORT, "to have a chunk "),
        # HDF5 would return uninitialized memory, or overflow its buffer by 90,000 bytes and crash
        ("lengths", hostile.LENGTHS, ", where all have "),
        ("other", hostile.OTHER, "expected dataset /x to be "),
    ],
)  # fmt: skip
def test_files_of_a_family_are_refused_with_its_sentence(family, files, words, ends):
    found = of(ends, f"{family}(?!-fc2)", "images") | of(ends, f"{family}-fc2", "load_weights")
    assert len(found) == len(files)
    assert [name for name, end in found.items() if not re.search(words, end[3])] == []


def test_decompression_bombs_take_little_memory_or_time(corpus, ends):
    """Limits are 190 MiB and 1 s of a core, imported libraries included, for files of any size."""
    bombs = of(ends, "(bombs|headers|whole)", r"\w+")
    others = len(hostile.HEADERS) + len(hostile.WHOLE)
    assert len(bombs) == 3 * len(hostile.BOMBS) + 2 * others
    assert {name: end for name, end in bombs.items() if end[1] > 1 or end[2] > 190} == {}
    small = [path for path in corpus if path.stat().st_size < 100_000]
    assert len(small) > 20
    sentences = {
        "unwritten": "bytes, more than a file of ",
        "deflated-twice": "found filter 1 twice",
        "more-blank-images": "bytes to read whole from a file of ",
    }
    for name, words in sentences.items():
        assert words in ends[f"bombs-{name}.h5 images"][3]
    said = of(ends, "headers", "images")
    assert all("expected B-trees and heaps that " in end[3] for end in said.values())


TRACED = """
import sys
from contextlib import nullcontext
from pathlib import Path
from lenetgpu.errors import LenetError
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights
for path in map(Path, sys.argv[1:]):
    for load in load_dataset, load_weights:
        try:
            load(path)
        except LenetError:
            continue
"""


def traced(folder, *command, **environment):
    """Return the lines of strace about opened files and executed programs."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = folder / "trace"
    calls = "trace=open,openat,openat2,execve,execveat"
    done = subprocess.run(
        ["strace", "-fqq", "-s", "4096", "-e", calls, "-o", str(log), sys.executable, *command],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip
    if "ptrace" in done.stderr.lower() and not log.stat().st_size:
        pytest.skip(f"strace may not trace here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines()


def programs(lines):
    return [line for line in lines if "execve" in line][1:]


def test_foreign_files_plugins_and_programs_are_not_opened(corpus, tmp_path):
    """Tests the whole corpus, with a marker library in the plugin folder."""
    (tmp_path / "libmarker.so").write_bytes(b"\x7fELF")
    lines = traced(tmp_path, "-c", TRACED, *map(str, corpus), HDF5_PLUGIN_PATH=str(tmp_path))
    assert sum(corpus[0].name in line for line in lines) >= 2
    bait = ("secret.h5", "/fifo", "/dev/zero", "libmarker", str(tmp_path))
    assert [line for line in lines if any(f"{name}" in line for name in bait)] == []
    assert programs(lines) == []


def test_infer_runs_no_program(tmp_path):
    lines = traced(tmp_path, "-m", "lenetgpu", "infer", "--limit", "3", "--device", "cpu")
    assert programs(lines) == []


@pytest.mark.parametrize("load", [load_dataset, load_weights])
def test_fifos_and_devices_are_not_opened(tmp_path, load):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(LenetError, match="found a (folder; name a file|device)$"):
            load(path)


def test_file_swapped_after_the_check_is_not_read(tmp_path, monkeypatch, weight_file):
    """Tests systems without a way to reopen the very file that was checked."""
    monkeypatch.setattr(hdf5, "_OWN_FILES", str(tmp_path / "nothing"))
    load_weights(weight_file)
    other, look = tmp_path / "other.h5", hdf5.require_trees
    shutil.copy(weight_file, other)
    monkeypatch.setattr(hdf5, "require_trees", lambda *a: (look(*a), other.replace(weight_file)))
    with pytest.raises(LenetError, match="expected one file, found another in its place"):
        load_weights(weight_file)


def test_groups_of_weights_stay_in_the_file_and_end(tmp_path):
    """A group may contain itself; links in groups may lead elsewhere."""
    path = tmp_path / "x.h5"
    for name, make, words in (
        ("again", lambda group: group, "at most 256 objects, 8 deep, found more"),
        ("outside", lambda group: h5py.ExternalLink("y.h5", "/"), "an external link at /g/outside"),
    ):
        with h5py.File(path, "w") as file:
            group = file.create_group("g")
            group[name] = make(group)
        with pytest.raises(LenetError, match=words):
            load_weights(path)


def test_locked_file_is_refused_with_reason(weight_file):
    with weight_file.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LenetError, match="found one that another process has locked for wri"):
            load_weights(weight_file)
    load_weights(weight_file)


def with_attributes(path, **values):
    with h5py.File(path, "w", libver="latest") as file:
        for name, value in values.items():
            file.attrs[name] = value
        file["x"] = np.zeros(hostile.SHAPE, "u1")
    return path


def test_only_fixed_size_attributes_are_read(tmp_path):
    path = with_attributes(
        tmp_path / "x.h5", number=3, half=np.float16(0.5), text=np.bytes_(b"plain"),
        free="of variable length", many=np.arange(9), vast=np.bytes_(b"x" * 64_001),
        truth=np.bool_(True), none=h5py.Empty("f4"), pair=np.zeros((), [("a", "u1")]),
    )  # fmt: skip
    read = {"number": "3", "half": "0.5", "text": "plain", "truth": "True"}
    unread = ("free", "many", "vast", "none", "pair")
    assert hdf5.attributes(path) == read | dict.fromkeys(unread)
    with hdf5.open_hdf5(path) as file:
        for name in unread:
            with pytest.raises(LenetError, match=f"expected .*attribute {name}.*, found "):
                hdf5.text_of(file, name, path)


def test_whole_reads_are_bounded_by_free_memory(tmp_path, monkeypatch, weight_file):
    from lenetgpu.files import reading

    images = np.zeros((9, 28, 28), "u1")
    monkeypatch.setattr(reading, "free_bytes", lambda: 9 * 784 - 1)
    with pytest.raises(LenetError, match="7,055 bytes of free memory hold, found 7,056 bytes"):
        load_dataset(npy(tmp_path / "x.npy", images))
    with pytest.raises(LenetError, match="dataset /conv2: .*free memory hold, found 204,800 bytes"):
        load_weights(weight_file)


def test_idx_size_must_be_possible_for_gzip(tmp_path):
    """Refuse 256 MB of labels for five images, and billions of images."""
    images, labels = tmp_path / "x-images.gz", tmp_path / "x-labels.gz"
    vast = (1 << 32) - 1

    def packed(head, length):
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        parts = [packer.compress(head)]
        parts += [packer.compress(bytes(1 << 20)) for _ in range(length >> 20)]
        return b"".join([*parts, packer.flush()])

    idx_file(images, np.zeros((5, 28, 28), "u1"))
    labels.write_bytes(packed(struct.pack(">2I", 2049, 5), 256 << 20))
    with pytest.raises(LenetError, match="expected 5 bytes after the header .*, found more"):
        load_dataset(images)
    images.write_bytes(packed(struct.pack(">4I", 2051, vast, 28, 28), 5 << 20))
    with pytest.raises(LenetError, match="found a header of 4,294,967,295 images, 3,367,254,"):
        load_dataset(images)


BAD_HEADERS = {
    "tree": trees._TREE.pack(b"BTHD", 0, 10, 1 << 31, 32, 1),
    "heap": trees._HEAP.pack(b"FRHP", 0, 8, 0, 0, 3, 512, 1024, 32, 0, 0, 1),
    "names": trees._NAMES.pack(b"HEAP", 0, 64, 32, 0),
    "layout": b"\x04\x03" + (48).to_bytes(8, "little"),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_every_byte_of_a_large_file_is_scanned(kind, tmp_path, monkeypatch):
    """Bad headers at the ends, within a part, and across the edges of parts; with threads."""
    monkeypatch.setattr(trees, "_PART", 1 << 10)
    path, bad, size = tmp_path / "x.h5", BAD_HEADERS[kind], 1 << 15
    plain = bytearray(np.random.default_rng(0).integers(128, 256, size).astype("u1").tobytes())
    plain[:11], plain[32:48] = b"\x89HDF\r\n\x1a\n\x02\x08\x08", struct.pack("<QQ", 32, 0)
    plain[48:52] = b"GCOL"
    path.write_bytes(plain)
    with path.open("rb") as file:
        require_trees(path, file)
    edges = [edge - back for edge in (1 << 10, 1 << 14) for back in (1, 2, 3, 20, 140)]
    for at in (64, size // 2, size - max(len(bad), 10), *edges):
        data = bytearray(plain)
        data[at : at + len(bad)] = bad
        path.write_bytes(data)
        with path.open("rb") as file, pytest.raises(LenetError, match="expected B-trees and heaps"):
            require_trees(path, file)


def test_foreign_driver_info_block_is_not_read(tmp_path):
    """HDF5 would allocate as much memory as the block's header says."""
    path = hostile.small(tmp_path / "x.h5", hostile.OTHER["a compound"], None, None)
    data = bytearray(path.read_bytes())
    assert data[8] == 0 and data[48:56] == b"\xff" * 8
    data[48:56] = (96).to_bytes(8, "little")
    path.write_bytes(data)
    with path.open("rb") as file, pytest.raises(LenetError, match="found one of another driver"):
        require_trees(path, file)
