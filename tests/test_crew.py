"""Crews and workers of a job: writing overlaps computing; retries."""

import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu.errors import LenetError
from lenetgpu.files.assets import default_weights
from lenetgpu.files.weights import load_weights
from lenetgpu.jobs import crew, manifest, worker
from lenetgpu.jobs.crew import OnDask, shards_per_task
from lenetgpu.jobs.inputs import gather
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.manifest import Failed, Row
from lenetgpu.jobs.worker import StopError, Worker
from lenetgpu.measure.outcome import Request

REQUEST = Request(None, default_weights(), plan="fp32", device="cpu", threads=1)


@pytest.fixture
def begun(tmp_path, digits):
    """(folder, job, arguments of a task): seven shards of 50 images, a NaN in the third."""
    floats = digits.images[:350].astype(np.float32) / 255
    floats[120] = np.nan
    np.save(tmp_path / "f.npy", floats)
    inputs = gather([tmp_path / "f.npy"]).inputs
    weights = load_weights(default_weights())
    job = Job(tuple(inputs), weights.source, weights.digest, "fp32", "fp32", "cpu", 50)
    out = tmp_path / "out"
    out.mkdir()
    manifest.begin(out, job)
    return out, job, (str(out), job.key, pickle.dumps(REQUEST))


def test_tasks_of_one_process_are_serialized(begun, monkeypatch):
    """A cluster's worker may have several threads, but a runner supports one caller at a time."""
    _, _, sent = begun
    stream, inside = Worker._stream, threading.Lock()

    def slow(*arguments):
        assert inside.acquire(blocking=False)
        time.sleep(0.02)
        try:
            return stream(*arguments)
        finally:
            inside.release()

    monkeypatch.setattr(Worker, "_stream", slow)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda number: crew._task(*sent, [number]), (0, 1, 3, 4)))
    assert [row.shard for (row,), _ in rows] == [0, 1, 3, 4]


def test_shard_is_listed_while_next_is_computed(begun, monkeypatch):
    out, job, _ = begun
    made, waited, computed = Worker(out, job, REQUEST), threading.Event(), []
    write, add = Worker._write, worker._LabelledShard.add

    def late(self, labelled):
        assert waited.wait(60)
        return write(self, labelled)

    monkeypatch.setattr(Worker, "_write", late)

    def noted(self, labels, scores):
        computed.append(self.shard.number)
        if self.shard.number == 1:
            waited.set()
        add(self, labels, scores)

    monkeypatch.setattr(worker._LabelledShard, "add", noted)
    rows = [row for _, row in made.run(map(job.shard, (0, 1, 3)))]
    assert computed == [0, 1, 3] and [row.shard for row in rows] == [0, 1, 3]
    assert sorted(manifest.read(out).done) == [0, 1, 3]


def test_chain_leaves_bad_and_listed_shards_to_be_computed_alone(begun, tmp_path, monkeypatch):
    out, job, _ = begun
    manifest.begin(tmp_path / "alone", job)
    for folder, rate in ((out, 1e9), (tmp_path / "alone", 0.0)):
        monkeypatch.setattr(worker, "_CHAIN_S", rate)
        made = Worker(folder, job, REQUEST)
        made._rate = rate
        list(made.run([job.shard(3)]))
        ended = list(made.run(map(job.shard, (0, 1, 3, 4, 5, 2, 6))))
        assert [shard.number for shard, _ in ended] == [0, 1, 3, 4, 5, 2, 6]
        assert [shard for shard, row in ended if not isinstance(row, Row)] == [job.shard(2)]
    for number in (0, 1, 3, 4, 5, 6):
        name = job.shard(number).name
        assert (out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert len(manifest.read(out).done) == 6 and manifest.read(out).redone == 0


def test_worker_goes_on_after_a_full_disk(begun, monkeypatch):
    """A cluster's process keeps its worker: the next command finds no old error, file or shard."""
    out, job, _ = begun
    made, asked = Worker(out, job, REQUEST), SimpleQueue()

    for stops, numbers, error in (
        ((worker, "append"), (0, 1, 3), LenetError), ((Worker, "_alone"), (2, 3, 4), StopError)
    ):  # fmt: skip

        def full(*arguments, error=error):
            raise error("no space")

        made._rate = 1e9
        made.requested.extend((job.shard(number), asked) for number in numbers)
        with monkeypatch.context() as patch:
            patch.setattr(*stops, full)
            crew._compute(made)
        made.close()
        found = [asked.get_nowait() for _ in range(asked.qsize())]
        assert isinstance(found[-1], StopError) and str(found[-1]) == "no space"
        assert not list(out.glob(".lenetgpu.*")) and not (out / "part-000003.npy").exists()
    rows = [row for _, row in made.run([job.shard(0)])]
    assert [row.shard for row in rows] == [0] and list(manifest.read(out).done) == [0]


def test_same_shards_asked_for_twice_are_reported_twice(begun):
    """The tasks of an interrupted command may still run when the next one asks for its shards."""
    out, job, _ = begun
    made, queues = Worker(out, job, REQUEST), (SimpleQueue(), SimpleQueue())
    made.requested.extend((job.shard(number), queue) for queue in queues for number in (0, 1))
    crew._compute(made)
    for queue in queues:
        assert [queue.get_nowait()[0].number for _ in range(queue.qsize())] == [0, 1]


def test_chain_limits_open_files_but_not_passes(begun, tmp_path, monkeypatch):
    out, job = tmp_path / "small", replace(begun[1], size=40)
    out.mkdir()
    manifest.begin(out, job)
    monkeypatch.setattr(worker, "_CHAIN_FILES", 2)
    made, opened, add = Worker(out, job, REQUEST), Worker._opened, worker._Chain.add
    made._rate, found, passes = 1e9, [], []

    def counted(self, shard):
        labelled = opened(self, shard)
        found.append(len(list(out.glob(".lenetgpu.*"))))
        return labelled

    def noted(self, labels, scores):
        passes.append(len(labels))
        add(self, labels, scores)

    monkeypatch.setattr(Worker, "_opened", counted)
    monkeypatch.setattr(worker._Chain, "add", noted)
    assert len(list(made.run(map(job.shard, (8, 0, 1, 2, 4, 5, 6, 7))))) == 8
    assert max(found) <= 4 and passes[:2] == [30, 40]  # two open, one written, one queued


@pytest.fixture
def dask():
    """A client of a scheduler in this process with the given number of workers."""
    distributed = pytest.importorskip("distributed", reason="no Dask")

    @contextmanager
    def made(workers):
        with (
            distributed.LocalCluster(
                n_workers=workers, processes=False, dashboard_address=None
            ) as here,
            distributed.Client(here) as client,
        ):
            yield client

    return made


def test_bad_shard_is_retried_then_set_aside(begun, dask, monkeypatch):
    out, job, _ = begun
    alone, begins = Worker._alone, []

    def counted(self, shard, report):
        begins.append(shard.number)
        return alone(self, shard, report)

    monkeypatch.setattr(Worker, "_alone", counted)
    monkeypatch.setattr(crew, "shards_per_task", lambda shards, workers: 3)
    with dask(1) as client:
        found = list(OnDask(client, REQUEST).ready(out, job)([0, 1, 2, 3], 2))
    (failed,) = [row for row in found if isinstance(row, Failed)]
    assert failed == Failed(2, 50, failed.sentence, 2) and "image 120" in failed.sentence
    assert sorted(row.shard for row in found if isinstance(row, Row)) == [0, 1, 3]
    assert begins == [2, 2]


def test_fatal_errors_pass_through_dask(begun, dask, monkeypatch):
    """Cases: a worker's full disk, and a worker that cannot be prepared; neither is retried."""
    out, job, _ = begun
    calls = []

    def full(self, labelled):
        calls.append(labelled)
        raise StopError("no space")

    monkeypatch.setattr(Worker, "_write", full)
    with dask(1) as client:
        with pytest.raises(StopError, match="no space"):
            list(OnDask(client, REQUEST).ready(out, job)([0], 3))
        with pytest.raises(LenetError, match="--threads"):
            OnDask(client, replace(REQUEST, threads=0)).ready(out, job)
    assert len(calls) == 1


TASKS, REAL = [], crew._task


def dies(folder, key, asked, numbers):
    """A task that kills its workers at shard 4."""
    TASKS.append(numbers)
    if 4 in numbers:
        raise sys.modules["distributed"].KilledWorker("task", SimpleNamespace(address="there"), 3)
    return REAL(folder, key, asked, numbers)


def test_task_that_kills_workers_is_split(begun, dask, monkeypatch):
    monkeypatch.setattr(crew, "_task", dies)
    monkeypatch.setattr(crew, "shards_per_task", lambda shards, workers: 2)
    with dask(1) as client:
        found = list(OnDask(client, REQUEST)._run(begun[2], begun[1], [3, 4], 1))
    assert TASKS == [[3, 4], [3], [4]]
    (failed,) = [row for row in found if isinstance(row, Failed)]
    assert failed == Failed(4, 50, failed.sentence, 1) and "images 200 to 250" in failed.sentence


def test_job_without_workers_ends_with_an_error(begun, dask, monkeypatch):
    out, job, _ = begun
    monkeypatch.setattr(crew, "LOOK_S", 0.1)
    monkeypatch.setattr(crew, "JOIN_S", 0.3)
    with (
        dask(0) as client,
        pytest.raises(StopError, match="expected one at least, found none for 0 s"),
    ):
        list(OnDask(client, REQUEST)._run(begun[2], job, [0, 1], 3))
    assert manifest.read(out).done == {}


def test_tasks_group_several_shards():
    shards = (1, 127, 128, 1_000, 10**6)
    assert [shards_per_task(count, 4) for count in shards] == [1, 7, 8, 32, 32]
