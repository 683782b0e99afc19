"""A job in this process: one shard after the other, on one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from lenetgpu.jobs.manifest import Failed, Row
from lenetgpu.jobs.worker import Worker

TRIES = 3
"""Times that a shard is begun before it is set aside."""


def run_here(worker: Worker, numbers: Iterable[int], tries: int = TRIES) -> Iterator[Row | Failed]:
    """Do the shards of these numbers; a bad one is begun again behind all others, then set aside.

    StopError, which ends the job, is raised.
    """
    counts = dict.fromkeys(numbers, 1)
    with closing(worker):
        while counts:
            later: dict[int, int] = {}
            for shard, found in worker.run(worker.job.joined(counts)):
                count = counts[shard.number]
                if isinstance(found, Row):
                    yield found
                elif count < tries:
                    later[shard.number] = count + 1
                else:
                    yield Failed(shard.number, len(shard), str(found), count)
            counts = later
