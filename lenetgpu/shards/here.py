"""A job in this process: one shard after the other, on one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lenetgpu.errors import LenetError
from lenetgpu.shards.job import Job
from lenetgpu.shards.manifest import Failed, Row
from lenetgpu.shards.worker import StopError, Worker

TRIES = 3
"""Times that a shard is begun before it is set aside."""


def run_here(worker: Worker, numbers: Iterable[int], tries: int = TRIES) -> Iterator[Row | Failed]:
    """Do the shards of these numbers; a bad one is begun again behind all others, then set aside.

    StopError, which ends the job, is raised.
    """
    job: Job = worker.job
    queue = [(number, 1) for number in numbers]
    while queue:
        later: list[tuple[int, int]] = []
        for number, count in queue:
            shard = job.shard(number)
            try:
                yield worker.run(shard)
            except StopError:
                raise
            except LenetError as error:
                if count < tries:
                    later.append((number, count + 1))
                else:
                    yield Failed(number, len(shard), str(error), count)
        queue = later
