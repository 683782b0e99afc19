"""Who does a job's shards: this process, or Dask's workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.measure.document import device_json
from lenetgpu.measure.outcome import Request
from lenetgpu.plan import AUTO, settled
from lenetgpu.running.engine import Engine
from lenetgpu.shards import cluster
from lenetgpu.shards.here import run_here
from lenetgpu.shards.job import Job
from lenetgpu.shards.manifest import Failed, Row
from lenetgpu.shards.worker import Worker

Resolved = tuple[str, str, str, dict[str, Any]]
"""(plan, precision, "cpu" or "cuda", the device as JSON) that a request comes to."""


class Here:
    """This process as the crew."""

    dashboard = ""

    def __init__(self, request: Request) -> None:
        self.request = request

    def resolve(self, dtype: str, size: int) -> Resolved:
        """(plan, precision, "cpu" or "cuda", the device as JSON) that really run."""
        return resolve(self.request, dtype, size)

    def rows(
        self, folder: Path, job: Job, numbers: list[int], tries: int
    ) -> Iterator[Row | Failed]:
        """What comes of each shard."""
        return run_here(Worker(folder, job, self.request), numbers, tries)


class OnDask:
    """Dask's workers as the crew."""

    def __init__(self, client: Any, request: Request) -> None:
        self.client, self.request = client, request
        self.dashboard: str = cluster.dashboard(client)

    def resolve(self, dtype: str, size: int) -> Resolved:
        """As `Here.resolve`, on one of the workers."""
        asked = self.client.submit(_resolved, self.request, dtype, size, pure=False)
        found = cluster.result(asked)
        if isinstance(found, str):
            raise LenetError(found)
        plan, precision, device, machine = found
        return plan, precision, device, machine

    def rows(
        self, folder: Path, job: Job, numbers: list[int], tries: int
    ) -> Iterator[Row | Failed]:
        """What comes of each shard."""
        return cluster.Crew(self.client, folder, job, self.request).run(numbers, tries)


def resolve(request: Request, dtype: str, size: int) -> Resolved:
    """(plan, precision, "cpu" or "cuda", the device as JSON) that a request comes to here."""
    engine = Engine(request)
    if request.plan == AUTO:
        engine.start(dtype, size)
    name = settled(engine.plan, engine.gpu)
    return name, engine.plan.precision, engine.device, device_json(engine.gpu)


def _resolved(request: Request, dtype: str, size: int) -> Any:
    """`resolve`, or the sentence that says why not."""
    try:
        return resolve(request, dtype, size)
    except LenetError as error:
        return str(error)


@contextmanager
def crew(
    run: Request, workers: str | None, scheduler: str | None, tries: int
) -> Iterator[Here | OnDask]:
    """Who does a job: this process, or Dask's workers where they, or a scheduler, are asked for."""
    if workers is None and scheduler is None:
        yield Here(run)
        return
    with cluster.cluster(workers, scheduler, tries) as client:
        yield OnDask(client, cluster.share(run, workers))
