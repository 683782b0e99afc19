"""What one worker costs here, measured in a second or two."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from lenetgpu.cpu.threads import core_count
from lenetgpu.files.reading import MemorySource
from lenetgpu.files.source import Source, open_source
from lenetgpu.measure.timing import clock, cpu_ms
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.shards import manifest
from lenetgpu.shards.inputs import fingerprint
from lenetgpu.shards.job import Job
from lenetgpu.shards.manifest import Row
from lenetgpu.shards.model import Costs
from lenetgpu.shards.worker import Worker

_SECONDS = 0.5
_BLOCK = 8_192
_MEMORY_IMAGES = 1 << 18
_ENDS = 9


def costs(worker: Worker, folder: Path, task: float = 0.0) -> Costs:
    """Of `worker`'s job; files are written into `folder`, and dropped."""
    job = worker.job
    longest = max(job.inputs, key=lambda entry: entry.images)
    with open_source(Path(longest.path)) as source:
        read, read_all = reading(source, 1), reading(source, core_count())
        label = labelling(worker, source)
    with tempfile.TemporaryDirectory(prefix=".lenetgpu-", dir=folder) as place:
        ends, line = ending(Path(place), job)
    return Costs(read, max(read, read_all), label, ends, line, task)


def reading(source: Source, threads: int) -> float:
    """Images a second that `threads` readers get from a file, each at a place of its own."""
    import numpy as np

    count = min(_BLOCK, len(source))
    places = [number * (len(source) // threads) for number in range(threads)]
    end = clock() + _SECONDS

    def read(lo: int) -> int:
        part, done, at = np.empty((count, *IMAGE_SHAPE), source.dtype), 0, lo
        while clock() < end:
            at = at if at + count <= len(source) else 0
            source.read(at, part)
            at, done = at + count, done + count
        return done

    begun = clock()
    with ThreadPoolExecutor(threads) as pool:
        images = sum(pool.map(read, places))
    return images / (clock() - begun)


def labelling(worker: Worker, source: Source) -> float:
    """Images a second from host memory to labels, of the file's first images again and again."""
    import numpy as np

    images = np.empty((min(_BLOCK, len(source)), *IMAGE_SHAPE), source.dtype)
    source.read(0, images)
    runner: Any = worker.ready(source.dtype)

    def run(count: int) -> float:
        held = MemorySource(np.resize(images, (count, *IMAGE_SHAPE)), None, source.source)
        return cpu_ms(lambda: runner.run_source(held, lambda labels, scores: None)) / 1e3

    count = len(images)
    while (took := run(count)) < _SECONDS / 4 and count < _MEMORY_IMAGES:
        count *= 2
    return count / took


def ending(folder: Path, job: Job) -> tuple[float, float]:
    """(seconds of a shard's file, fingerprint and line; of the line): medians."""
    import numpy as np

    from lenetgpu.files.output import write_labels

    shard = job.shards[0]
    scores = np.zeros((len(shard), CLASSES), np.float32) if job.scores else None
    labels = np.zeros(len(shard), np.int32)
    manifest.begin(folder, job)
    row = Row(0, shard.name, len(shard), shard.input.path, "", 0, (0,) * CLASSES, None, 0.0, "", "")

    def whole() -> None:
        fingerprint(Path(shard.input.path))
        with open_source(Path(shard.input.path), shard.lo, len(shard)):
            write_labels(folder / shard.name, labels, scores)

    line = _median(lambda: manifest.append(folder, row))
    return _median(whole) + line, line


def _median(call: Callable[[], Any]) -> float:
    return median(cpu_ms(call) / 1e3 for _ in range(_ENDS))
