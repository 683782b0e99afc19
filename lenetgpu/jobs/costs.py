"""Measured costs of one worker on this machine, and the predicted time of a job with several.

A worker takes S / r + o for a shard of S images. The rate r is the slowest of three overlapping
steps: reading the file, the bus, and the kernels. The overhead o is the time to open a file.
Meanwhile the previous shard is written, flushed, renamed and listed, which takes e; the longer of
the two counts. Workers share the bandwidth of the storage, the manifest (one appends at a time) and
the scheduler (one task at a time). A worker gets at least one shard.
"""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import ceil, inf
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.threads import core_count
from lenetgpu.files.output import write_labels
from lenetgpu.files.reading import MemorySource, Source
from lenetgpu.jobs import manifest
from lenetgpu.jobs.job import Job, Shard
from lenetgpu.jobs.manifest import Row
from lenetgpu.jobs.pictures import AT_ONCE, PictureSource
from lenetgpu.jobs.worker import Worker, opened
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock, cpu_ms
from lenetgpu.network import CLASSES, IMAGE_SHAPE

WORKERS = (1, 2, 4, 8, 64)
_TASKS_PER_WORKER, _MOST_SHARDS = 4, 32
_SECONDS = 0.5  # minimum time of a measurement of reading
_BLOCK = 8_192  # images read at a time
_MEMORY_IMAGES = 1 << 18  # most images labelled from memory
_SHARD_SAMPLES, _LABEL_SAMPLES = 9, 5


@dataclass(frozen=True)
class Costs:
    """Measured rates of one worker in images/s, and times in seconds."""

    read: float  # rate of one reader
    read_all: float  # rate of one reader per core
    label: float  # rate from host memory to labels
    start: float  # time until the worker is ready
    opening: float  # time to open a shard's file
    ending: float  # time to write a shard's label file and its line
    line: float  # the part of `ending` under the manifest's lock
    task: float = 0.0  # time in which a scheduler hands out a task; 0 without a scheduler
    there: int = 1  # workers measured together
    label_all: float = inf  # their total rate
    bus: float | None = None  # rate of the copies alone; None on a CPU
    kernels: float | None = None  # rate of the kernels alone; None on a CPU


@dataclass(frozen=True)
class Prediction:
    """Predicted rate in images/s, seconds including the start, and bottleneck of `workers`."""

    workers: int
    rate: float
    seconds: float
    bound: str


def shards_per_task(shards: int, workers: int) -> int:
    """Return the shards per task: more of them load the scheduler less but balance worse."""
    return max(1, min(_MOST_SHARDS, shards // (_TASKS_PER_WORKER * workers)))


def predict(costs: Costs, images: int, shard: int, workers: int) -> Prediction:
    """Predict the rate and time of `workers` for `images` in shards of `shard` images."""
    shards = ceil(images / shard)
    rounds = ceil(shards / workers)
    label = min(costs.label, costs.label_all / costs.there)
    own = min(rounds * shard, images) / min(costs.read, label) + rounds * costs.opening
    own_bound = "the network"
    if shards < workers:
        own_bound = "the number of shards"
    elif costs.read < label:
        own_bound = "reading"
    elif costs.bus is not None and costs.kernels is not None:
        own_bound = "the bus" if costs.bus < costs.kernels else "the kernels"
    seconds, bound = max(
        (own, own_bound),
        (rounds * costs.ending, "a shard's end"),
        (images / costs.read_all, "the storage"),
        (shards * costs.line, "the manifest"),
        (ceil(shards / shards_per_task(shards, workers)) * costs.task, "the scheduler"),
        key=itemgetter(0),
    )
    return Prediction(workers, images / seconds, costs.start + seconds, bound)


@dataclass(frozen=True)
class Predicted:
    """Measured costs of one worker and predictions for several; the job itself is not run."""

    job: Job
    costs: Costs
    machine: dict[str, Any]

    def rows(self) -> list[Prediction]:
        """Return a prediction for each number of workers in WORKERS."""
        return [predict(self.costs, self.job.images, self.job.size, workers) for workers in WORKERS]

    def document(self) -> dict[str, Any]:
        """Return the prediction as JSON, rates in images/s and times in seconds."""
        return {
            "schema": 1,
            "command": "classify --predict",
            "device": self.machine,
            "plan": self.job.plan,
            "images": self.job.images,
            "shard": self.job.size,
            "costs": asdict(self.costs),
            "predicted": [asdict(row) for row in self.rows()],
        }


def costs(folder: Path, job: Job, request: Request) -> Costs:
    """Measure one worker in this process; temporary files in `folder` are removed."""
    worker = Worker(folder, job, request)
    begun = clock()
    worker.ready()
    start = clock() - begun
    with _longest(worker) as source:
        read, read_all = _read_rate(source, 1), _storage_rate(source)
    label = label_rate(worker)
    with tempfile.TemporaryDirectory(prefix=".lenetgpu-", dir=folder) as scratch:
        seconds = _shard_seconds(Path(scratch), worker)
    bus, kernels = _gpu_rates(worker)
    return Costs(
        read, max(read, read_all), label, start, *seconds, label_all=label, bus=bus, kernels=kernels
    )


def _gpu_rates(worker: Worker) -> tuple[float | None, float | None]:
    """Return the images/s of the bus and of the kernels on a GPU, (None, None) on a CPU."""
    from lenetgpu.net.streaming.costs import costs_of

    engine, gpu = worker.engine, worker.engine.gpu
    dtype = worker.job.valid[0].dtype
    measured = None if gpu is None else costs_of(engine.plan, engine.weights, gpu, dtype)
    if measured is None:
        return None, None
    return measured.bus_gbs * 1e9 / measured.image_bytes, 1e9 / measured.image_ns


def _longest(worker: Worker) -> Source:
    """Open the input with the most images."""
    entry = max(worker.job.valid, key=lambda entry: entry.images)
    return opened(worker.folder, worker.job, Shard(0, entry, 0, entry.images, ""))


def _block(source: Source) -> int:
    return min(AT_ONCE if isinstance(source, PictureSource) else _BLOCK, len(source))


def _read_rate(source: Source, threads: int) -> float:
    """Return the images/s of `threads` readers of one file, each at its own offset."""
    count = _block(source)
    begun = clock()

    def read(thread: int) -> int:
        block, done = np.empty((count, *IMAGE_SHAPE), source.dtype), 0
        lo = thread * (len(source) // threads)
        while clock() < begun + _SECONDS:
            lo = lo if lo + count <= len(source) else 0
            source.read(lo, block)
            lo, done = lo + count, done + count
        return done

    with ThreadPoolExecutor(threads) as pool:
        images = sum(pool.map(read, range(threads)))
    return images / (clock() - begun)


def _storage_rate(source: Source) -> float:
    """Return the images/s of the storage: one reader per core, or raw reads of picture files."""
    if not isinstance(source, PictureSource):
        return _read_rate(source, core_count())
    begun, count = clock(), 0
    while clock() < begun + _SECONDS:
        Path(source.names[count % len(source)]).read_bytes()
        count += 1
    return count / (clock() - begun)


def label_rate(worker: Worker) -> float:
    """Return the images/s from host memory to labels, for the first images of the longest file."""
    with _longest(worker) as source:
        images = np.empty((_block(source), *IMAGE_SHAPE), source.dtype)
        source.read(0, images)
        name = source.source
    runner = worker.ready()

    def seconds(count: int) -> float:
        repeated = MemorySource(np.resize(images, (count, *IMAGE_SHAPE)), None, name)
        return cpu_ms(lambda: runner.run_source(repeated, lambda labels, scores: None)) / 1e3

    count = len(images)
    while seconds(count) < _SECONDS / 4 and count < _MEMORY_IMAGES:
        count *= 2
    return count / median(seconds(count) for _ in range(_LABEL_SAMPLES))


def _shard_seconds(folder: Path, worker: Worker) -> tuple[float, float, float]:
    """Measure seconds to open a shard, to write and list its labels, and of that to list them."""

    def seconds(call: Callable[[], Any]) -> float:
        return median(cpu_ms(call) / 1e3 for _ in range(_SHARD_SAMPLES))

    job, shard = worker.job, worker.job.shards[0]
    count = len(shard)
    scores = np.zeros((count, CLASSES), np.float32) if job.scores else None
    labels = np.zeros(count, np.int32)
    row = Row(
        0, shard.name, count, shard.input.path, "", 0, (0,) * CLASSES, None, 0.0, "", "", 0, ""
    )
    manifest.begin(folder, job)
    line = seconds(lambda: manifest.append(folder, job, row))
    writing = seconds(lambda: write_labels(folder / shard.name, labels, scores))
    return seconds(lambda: opened(worker.folder, job, shard).close()), writing + line, line
