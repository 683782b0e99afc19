"""How long so many workers take over a job, from what one costs: who waits for whom.

A worker takes S / r + o for a shard of S images: r is the slowest of reading a file, of the bus and
the kernels between host memory and labels, which lie over each other; o is what a file takes to
open. Meanwhile the shard before is written, flushed, named and listed, which takes e: the longer of
both counts. Workers share what the files' medium gives, the manifest, to which one appends at a
time, and the scheduler, which hands out one task after the other. No worker gets less than a shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

WORKERS = (1, 2, 4, 8, 64)
_TASKS_EACH, _MOST_SHARDS = 16, 32


@dataclass(frozen=True)
class Costs:
    """What was measured, images/s and seconds.

    `read`: images/s of one reader; `read_all`: of as many as there are cores; `label`: of a worker
    alone, from host memory to labels; `start`: seconds until a worker is ready; `opening`: seconds
    of a shard's file until it is read; `ending`: of its labels' file and line; `line`: the part
    of it under the manifest's lock; `task`: seconds in which a scheduler hands out a task, 0 where
    there is none. `label_all`: images/s of the `there` workers that were measured at once. `bus`
    and `kernels`: what `label` is made of on a GPU, images/s, None on a CPU.
    """

    read: float
    read_all: float
    label: float
    start: float
    opening: float
    ending: float
    line: float
    task: float = 0.0
    there: int = 1
    label_all: float = inf
    bus: float | None = None
    kernels: float | None = None


@dataclass(frozen=True)
class Prediction:
    """Images a second of `workers` that are ready, seconds from the start on, and what bounds."""

    workers: int
    rate: float
    seconds: float
    bound: str


def lot(shards: int, workers: int) -> int:
    """Shards of one task: handing out takes a scheduler's time, and workers are to end together."""
    return max(1, min(_MOST_SHARDS, shards // (_TASKS_EACH * workers)))


def predict(costs: Costs, images: int, shard: int, workers: int) -> Prediction:
    """What `workers` like the measured ones come to over `images` in shards of `shard`."""
    shards = ceil(images / shard)
    rounds = ceil(shards / workers)
    label = min(costs.label, costs.label_all / costs.there)
    own = min(rounds * shard, images) / min(costs.read, label) + rounds * costs.opening
    tasks = ceil(shards / lot(shards, workers))
    takes = {
        _slowest(costs, label): own,
        "a shard's ends": rounds * costs.ending,
        "the files' medium": images / costs.read_all,
        "the manifest": shards * costs.line,
        "the scheduler": tasks * costs.task,
    }
    name = max(takes, key=lambda bound: takes[bound])
    seconds = takes[name]
    said = "the number of shards" if takes[name] == own and shards < workers else name
    return Prediction(workers, images / seconds, costs.start + seconds, said)


def _slowest(costs: Costs, label: float) -> str:
    if costs.read < label:
        return "reading"
    if costs.bus is None or costs.kernels is None:
        return "the network"
    return "the bus" if costs.bus < costs.kernels else "the kernels"
