"""How many images a second so many workers come to, from what one costs: who waits for whom.

A worker takes S / r + c for a shard of S images: r is the slower of reading a file and of the way
from host memory to labels, which lie over each other; c is what a shard costs whatever its size, to
open, flush and name a file. Workers share three things: what the files' medium gives, the manifest,
to which one appends at a time, and the scheduler, which hands out one shard after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

WORKERS = (1, 2, 4, 8, 64)


@dataclass(frozen=True)
class Costs:
    """What was measured of one worker here, images/s and seconds.

    `read`: images/s of one reader; `read_all`: of as many as there are cores; `label`: from host
    memory to labels; `ends`: seconds of a shard's file and line; `line`: the part of it under the
    manifest's lock; `task`: seconds in which a scheduler hands out a shard, 0 where there is none.
    """

    read: float
    read_all: float
    label: float
    ends: float
    line: float
    task: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """Images a second of `workers`, and what bounds them."""

    workers: int
    rate: float
    bound: str


def predict(costs: Costs, shard: int, workers: int) -> Prediction:
    """What `workers` that are like the measured one come to with shards of `shard` images."""
    slower = min(costs.read, costs.label)
    own = "reading" if costs.read < costs.label else "the network"
    each = shard / (shard / slower + costs.ends)
    if costs.ends > shard / slower:
        own = "a shard's ends"
    bounds = {
        own: workers * each,
        "the files' medium": costs.read_all,
        "the manifest": shard / costs.line if costs.line else float("inf"),
        "the scheduler": shard / costs.task if costs.task else float("inf"),
    }
    name = min(bounds, key=lambda bound: bounds[bound])
    return Prediction(workers, bounds[name], name)
