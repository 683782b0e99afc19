"""Who does a job's shards: lots of them, each written while the next is computed."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files.assets import default_digits, default_weights
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import load_weights
from lenetgpu.jobs import cluster, manifest, worker
from lenetgpu.jobs import opened as opening
from lenetgpu.jobs.here import run_here
from lenetgpu.jobs.inputs import Input, fingerprint, gather
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.lots import Lots
from lenetgpu.jobs.manifest import Failed, Row
from lenetgpu.jobs.worker import StopError, Worker
from lenetgpu.measure.outcome import Request

REQUEST = Request(None, default_weights(), plan="fp32", device="cpu", threads=1)


@pytest.fixture
def begun(tmp_path):
    """(folder, job, what a task is told): seven shards of 50 images, a NaN in the third."""
    floats = load_dataset(default_digits()).images[:350].astype(np.float32) / 255
    floats[120] = np.nan
    np.save(tmp_path / "f.npy", floats)
    inputs = gather([tmp_path / "f.npy"]).inputs
    weights = load_weights(default_weights())
    job = Job(tuple(inputs), weights.source, weights.digest, "fp32", "fp32", "cpu", 50)
    out = tmp_path / "out"
    out.mkdir()
    manifest.begin(out, job)
    return out, job, (str(out), job.key, pickle.dumps(REQUEST))


def test_a_lot_goes_on_behind_a_bad_shard(begun):
    out, _, told = begun
    found, seconds = cluster._task(*told, (1, 2, 3))
    assert [(number, how) for number, how, _ in found] == [(1, "done"), (2, "bad"), (3, "done")]
    assert "image 120" in found[1][2] and seconds > 0
    assert sorted(manifest.read(out).done) == [1, 3]
    assert Row(**found[2][2]) == manifest.read(out).done[3]


def test_what_a_dead_worker_had_listed_is_not_done_again(begun):
    out, _, told = begun
    cluster._task(*told, (0, 1))
    before = (out / "part-000001.npy").stat().st_mtime_ns
    found, _ = cluster._task(*told, (1, 3))
    assert [how for _, how, _ in found] == ["done", "done"]
    assert (out / "part-000001.npy").stat().st_mtime_ns == before
    assert manifest.read(out).redone == 0


def test_tasks_of_one_process_take_turns(begun, monkeypatch):
    """A cluster's worker may have several threads; the runner has one caller at a time."""
    _, _, told = begun
    label, inside, most, found = Worker._label, [], [], {}

    def slow(self, shard):
        inside.append(shard)
        most.append(len(inside))
        time.sleep(0.02)
        try:
            return label(self, shard)
        finally:
            inside.remove(shard)

    def task(number):
        found[number] = cluster._task(*told, (number,))[0][0][1]

    monkeypatch.setattr(Worker, "_label", slow)
    threads = [threading.Thread(target=task, args=(number,)) for number in (0, 1, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys((0, 1, 3, 4), "done") and max(most) == 1


def test_a_process_keeps_the_worker_of_its_last_job(begun):
    _, _, told = begun
    cluster._task(*told, (0,))
    first = cluster._worker(*told)
    assert cluster._worker(*told) is first
    other = (told[0], "another job", told[2])
    assert cluster._worker(*other) is not first and cluster._worker(*told) is not first


def test_a_lot_at_which_workers_die_is_taken_apart(begun):
    out, job, _ = begun
    crew, lots = cluster.Crew(None, out, job, REQUEST), Lots(())
    assert list(crew._died((3, 4), lots, 3)) == []
    assert [lots.take(1), lots.take(1)] == [((3,), 1), ((4,), 1)]
    (failed,) = crew._died((4,), lots, 3)
    assert failed == Failed(4, 50, failed.sentence, 3) and "images 200 to 250" in failed.sentence
    assert not len(lots)


def test_the_shard_before_is_listed_while_the_next_is_computed(begun, monkeypatch):
    out, job, _ = begun
    made, waited, computed = Worker(out, job, REQUEST), threading.Event(), []
    end = Worker._end

    def late(self, labelled):
        assert waited.wait(60)
        return end(self, labelled)

    monkeypatch.setattr(Worker, "_end", late)
    made.ready("float32")
    label = made._label

    def noted(shard):
        computed.append(shard.number)
        if shard.number == 1:
            waited.set()
        return label(shard)

    monkeypatch.setattr(made, "_label", noted)
    rows = [row for _, row in made.run(map(job.shard, (0, 1, 3)))]
    assert computed == [0, 1, 3] and [row.shard for row in rows] == [0, 1, 3]
    assert sorted(manifest.read(out).done) == [0, 1, 3]


def test_a_file_is_opened_once_for_shards_that_follow(begun, monkeypatch):
    out, job, _ = begun
    opened, held, made = [], [], Worker(out, job, REQUEST)

    def noted(path, lo, count):
        opened.append((path.name, lo))
        held.append(open_source(path, lo, count))
        return held[-1]

    monkeypatch.setattr(opening, "open_source", noted)
    rows = [row for lot in ((1, 3), (4,)) for _, row in made.run(map(job.shard, lot))]
    assert len(opened) == 1 and not held[0]._file.file.closed
    rows += run_here(made, [0])
    assert opened == [("f.npy", 50), ("f.npy", 0)] and [row.lo for row in rows] == [50, 150, 200, 0]
    for row in rows:
        alone = CliRunner().invoke(
            main,
            ["infer", job.inputs[0].path, "--skip", str(row.lo), "--limit", "50", "--device", "cpu",
             "--plan", "fp32", "--no-progress", "--output", str(out / "alone.npy")],
        )  # fmt: skip
        assert alone.exit_code == 0, alone.output
        assert (np.load(out / row.file) == np.load(out / "alone.npy")).all()
    assert [source._file.file.closed for source in held] == [True, True]


def test_files_alike_but_in_the_middle_are_each_read(tmp_path):
    """The same size, time, first and last bytes."""
    images = load_dataset(default_digits()).images[:400].copy()
    np.save(tmp_path / "a.npy", images)
    images[150:250] = images[250:150:-1]
    np.save(tmp_path / "b.npy", images)
    for name in "ab":
        os.utime(tmp_path / f"{name}.npy", ns=(10**18, 10**18))
    words = ["classify", str(tmp_path / "?.npy"), "--out", str(tmp_path / "out"), "--shard", "100"]
    done = CliRunner().invoke(main, [*words, "--device", "cpu", "--plan", "fp32", "--no-progress"])
    assert done.exit_code == 0, done.output
    found = [np.load(path) for path in sorted((tmp_path / "out").glob("part-*"))]
    assert not (np.concatenate(found[:4]) == np.concatenate(found[4:])).all()


def test_damage_behind_a_shard_is_not_its_own(tmp_path):
    """Labels are read as far as a file is opened."""
    head = (0x803).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in (300, 28, 28))
    images = load_dataset(default_digits()).images[:300]
    (tmp_path / "t-images-idx3-ubyte").write_bytes(head + images.tobytes())
    labels = np.zeros(300, np.uint8)
    labels[250] = 77
    head = (0x801).to_bytes(4, "big") + (300).to_bytes(4, "big")
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    images = tmp_path / "t-images-idx3-ubyte"
    weights = load_weights(default_weights())
    entry = Input(str(images), 300, "uint8", True, fingerprint(images))
    job = Job((entry,), weights.source, weights.digest, "fp32", "fp32", "cpu", 100)
    out = tmp_path / "out"
    out.mkdir()
    manifest.begin(out, job)
    found = [row for _, row in Worker(out, job, REQUEST).run(job.shards)]
    assert [isinstance(row, Row) for row in found] == [True, True, False]
    assert "77" in str(found[2])


def test_a_full_disk_ends_a_lot(begun, monkeypatch):
    out, job, _ = begun

    def full(folder, row, job):
        raise LenetError("no space")

    monkeypatch.setattr(worker, "append", full)
    rows = Worker(out, job, REQUEST).run(map(job.shard, (0, 1, 3)))
    with pytest.raises(StopError, match="no space"):
        list(rows)
    assert manifest.read(out).done == {} and not (out / "part-000003.npy").exists()


def test_a_shard_that_fails_on_its_way_leaves_nothing(begun):
    out, job, _ = begun
    ((shard, found),) = Worker(out, job, REQUEST).run([job.shard(2)])
    assert shard.number == 2 and isinstance(found, LenetError)
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json"]


def test_a_worker_that_cannot_be_made_ready_is_said(begun):
    out, job, _ = begun
    other = Request(None, default_weights(), plan="fp32", device="cpu", threads=0)
    assert "--threads" in cluster._prepare(str(out), "other", pickle.dumps(other))
    assert cluster._prepare(str(out), job.key, pickle.dumps(REQUEST)) == ""


@pytest.mark.parametrize("workers", [None, "1"])
def test_what_a_worker_costs(tmp_path, workers):
    """Nothing is left; a scheduler is measured where there is one."""
    if workers is not None:
        pytest.importorskip("distributed", reason="no Dask")
    read, out, found = tmp_path / "a.npy", tmp_path / "out", tmp_path / "found.json"
    np.save(read, load_dataset(default_digits()).images[:600])
    words = ["classify", read, "--out", out, "--shard", 100, "--predict", "--device", "cpu"]
    words += ["--plan", "fp32", "--no-progress", "--json", found]
    words += [] if workers is None else ["--workers", workers]
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 0, done.output
    document = json.loads(found.read_text())
    costs = document["costs"]
    assert (costs["task"] > 0) == (workers is not None) and costs["there"] == 1
    assert all(costs[name] > 0 for name in ("read", "label", "start", "opening", "ending", "line"))
    assert costs["label_all"] > 0 and costs["bus"] is None
    assert [row["workers"] for row in document["predicted"]] == [1, 2, 4, 8, 64]
    assert ("ms a task" in done.output) == (workers is not None)
    assert sorted(Path(tmp_path).iterdir()) == [read, found]


def test_a_job_without_workers_ends_with_a_sentence(begun, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="no Dask")
    out, job, _ = begun
    monkeypatch.setattr(cluster, "LOOK_S", 0.1)
    monkeypatch.setattr(cluster, "JOIN_S", 0.3)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as made,
        distributed.Client(made) as client,
        pytest.raises(StopError, match="expected one at least, found none for 0 s"),
    ):
        list(cluster.Crew(client, out, job, REQUEST).run([0, 1]))
    assert manifest.read(out).done == {}
