"""Files that are read while they are computed: what is read, written, said and left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import tracemalloc

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.cpu import threads
from lenetgpu.errors import LenetError
from lenetgpu.files import early
from lenetgpu.files.reading import Source
from lenetgpu.files.source import open_source
from lenetgpu.lab import infer as job
from lenetgpu.measure.outcome import Request
from lenetgpu.net.engine import Engine

DIGITS = ROOT / "data" / "digits-10k.h5"
N = 330


@pytest.fixture
def streamed(monkeypatch):
    """Nothing is small enough to be read whole, or before it is asked for."""
    monkeypatch.setattr(job, "WHOLE_BYTES", 0)
    monkeypatch.setattr(early, "MOST_BYTES", 0)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "many.h5"
    with open_source(DIGITS, limit=N) as source, h5py.File(path, "w") as file:
        whole = source.whole()
        file["x"], file["y"] = whole.images, whole.labels
    return path


def asked(path, **options):
    return Request(data=path, device="cpu", plan="tiled", batch=100, **options)


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize("ending", ["csv", "h5"])
def test_labels_and_scores_are_those_of_images_that_are_read_whole(
    data, tmp_path, monkeypatch, ending
):
    files = tmp_path / f"whole.{ending}", tmp_path / f"parts.{ending}"
    whole = job.infer(asked(data, scores=True), output=files[0])
    monkeypatch.setattr(job, "WHOLE_BYTES", N * 784 - 1)
    told = []
    parts = job.infer(asked(data, scores=True), lambda *at: told.append(at), files[1])
    np.testing.assert_array_equal(parts.labels, whole.labels)
    assert parts.correct == whole.correct
    assert (whole.streamed, parts.streamed) == (False, True)
    if ending == "h5":
        with h5py.File(files[0]) as one, h5py.File(files[1]) as other:
            for name in ("labels", "scores"):
                np.testing.assert_array_equal(one[name][()], other[name][()])
    else:
        assert files[0].read_bytes() == files[1].read_bytes()
    assert told[-1] == (N, N) and [done for done, _ in told] == sorted(done for done, _ in told)


def test_it_says_that_its_time_begins_in_the_file(data, streamed):
    result = run("infer", data, "--device", "cpu", "--json", "-", "--repeat", 2)
    assert "ms file to labels (median of 2 passes, " in result.stderr
    document = json.loads(result.stdout)
    assert document["from"] == "file"
    assert document["timing_ms"]["compute"]["samples"] == []
    assert len(document["timing_ms"]["end_to_end"]["samples"]) == 2


def test_only_what_is_meant_is_read(data, streamed, monkeypatch):
    """--skip and --limit, and two slices at a time."""
    read, plain = [], Source.read

    def watched(self, lo, out):
        read.append((self.chosen.start + lo, len(out)))
        plain(self, lo, out)

    monkeypatch.setattr(Source, "read", watched)
    whole = job.infer(asked(DIGITS, limit=N)).labels
    read.clear()
    part = job.infer(asked(data, skip=17, limit=230))
    assert read == [(17, 100), (117, 100), (217, 30)]
    np.testing.assert_array_equal(part.labels, whole[17:247])
    assert len(part.truth) == 230
    for words, options in (("more images than the 330 to skip, found 330", ["--skip", N]),
                           ("--skip: expected at least 0, found -1", ["--skip", -1])):  # fmt: skip
        refused = run("infer", data, "--device", "cpu", *options)
        assert refused.exit_code == 2 and words in refused.stderr


@pytest.mark.parametrize("images", [130, 300])
def test_ctrl_c_writes_what_was_done(data, tmp_path, streamed, images):
    target = tmp_path / "labels.json"
    whole = job.infer(asked(data)).labels

    def stop(done, total):
        if done >= images:
            raise KeyboardInterrupt

    outcome = job.infer(asked(data), stop, target)
    count = outcome.done
    assert outcome.interrupted and images <= count < N
    written = json.loads(target.read_text())
    assert written["labels"] == whole[:count].tolist()
    assert (written["interrupted"], written["images_asked"]) == (True, N)
    assert not [t for t in threading.enumerate() if t.name.startswith("lenetgpu-read")]


class Breaks(Source):
    """Images that cannot be read from number 200 on, as of a file that shrinks meanwhile."""

    def __init__(self, images):
        super().__init__("many.h5", "uint8", None, range(len(images)))
        self.images = images

    def _fill(self, first, out):
        if first >= 200:
            raise LenetError("many.h5: expected 330 images, found 200")
        out[...] = self.images[first : first + len(out)]


def test_a_file_that_shrinks_meanwhile_leaves_no_labels(data, tmp_path, streamed, monkeypatch):
    target = tmp_path / "labels.npy"
    target.write_bytes(b"before")
    images = open_source(data).whole().images
    monkeypatch.setattr(job, "open_source", lambda *_: Breaks(images))
    refused = run("infer", data, "--device", "cpu", "--batch", 100, "--output", target)
    assert (refused.exit_code, refused.stderr) == (
        2, "lenetgpu: error: many.h5: expected 330 images, found 200\n",
    )  # fmt: skip
    assert target.read_bytes() == b"before"
    assert {path.name for path in tmp_path.iterdir()} == {"labels.npy", "many.h5"}


def test_a_disk_that_fills_is_said_and_leaves_nothing(data, tmp_path, streamed, monkeypatch):
    """The limit of a file's size stands for a full disk."""
    resource = pytest.importorskip("resource")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    job.infer(asked(data, limit=1))  # what is remembered of plans is written
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        refused = run("infer", data, "--device", "cpu", "--output", tmp_path / "labels.npy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert refused.exit_code == 2 and "labels.npy: expected a place to write to" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["many.h5"]


def test_threads_are_as_many_as_asked(data, monkeypatch):
    used, plain = set(), threads.thread_count

    def counted():
        used.add(plain())
        return plain()

    monkeypatch.setattr(threads, "thread_count", counted)
    for asked_for in (1, 3):
        used.clear()
        assert run("infer", data, "--device", "cpu", "--threads", asked_for).exit_code == 0
        assert used == {asked_for}
    used.clear()
    assert run("infer", data, "--device", "cpu").exit_code == 0
    assert used == {threads.core_count()}
    refused = run("infer", data, "--device", "cpu", "--threads", 0)
    assert refused.exit_code == 2 and "--threads: expected at least 1, found 0" in refused.stderr


def test_options_of_another_device_are_refused(data, monkeypatch):
    from lenetgpu.gpu.device import Gpu
    from lenetgpu.net import engine

    with pytest.raises(LenetError, match="--streams 3: expected a GPU, found device cpu"):
        Engine(asked(data, streams=3))
    monkeypatch.setattr(engine, "choose_device", lambda *_: (Gpu(0, "pretended", 90), "asked for"))
    with pytest.raises(LenetError, match="--threads 2: expected device cpu, found pretended"):
        Engine(asked(data, threads=2))


@pytest.mark.parametrize("words", [["--streams", "many"], ["--chunk", "1.5"]])
def test_auto_or_a_whole_number(words):
    refused = run("infer", "--device", "cpu", *words)
    assert refused.exit_code == 2
    assert f"expected auto or a whole number, found '{words[1]}'" in refused.stderr
    assert run("infer", "--device", "cpu", "--limit", 3, words[0], "auto").exit_code == 0


def test_memory_is_bounded(tmp_path, streamed):
    """Of 400 MB of images no more than some tens are held at any time."""
    path, count = tmp_path / "long.npy", 500_000
    header = np.lib.format.header_data_from_array_1_0(np.empty((0, 28, 28), np.uint8))
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header | {"shape": (count, 28, 28)})
        file.truncate(file.tell() + count * 784)

    def stop(done, total):
        if done >= 60_000:
            raise KeyboardInterrupt

    tracemalloc.start()
    try:
        assert job.infer(Request(data=path, device="cpu"), stop).done >= 60_000
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2 * 10_000 * 784 < most < 100e6
    assert os.path.getsize(path) > 390e6
