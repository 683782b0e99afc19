"""Who does a job's shards: this process, or Dask's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.jobs import cluster
from lenetgpu.jobs.costs import costs, label_rate
from lenetgpu.jobs.here import run_here
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.manifest import Failed, Row
from lenetgpu.jobs.model import Costs
from lenetgpu.jobs.worker import Worker
from lenetgpu.measure.document import device_json
from lenetgpu.measure.outcome import Request
from lenetgpu.net.engine import Engine
from lenetgpu.plan import AUTO, settled

Rows = Callable[[list[int], int], Iterator[Row | Failed]]
"""What does the shards of these numbers, each begun so many times at most."""
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

    def ready(self, folder: Path, job: Job) -> Rows:
        """Make ready for a job; what then does shards."""
        worker = Worker(folder, job, self.request)
        worker.ready(job.valid[0].dtype)
        return partial(run_here, worker)

    def costs(self, folder: Path, job: Job) -> Costs:
        """What a worker costs here; nothing is left in `folder`."""
        return costs(Worker(folder, job, self.request), folder)


class OnDask:
    """Dask's workers as the crew."""

    def __init__(self, client: Any, request: Request) -> None:
        self.client, self.request = client, request
        self.dashboard: str = cluster.dashboard(client)

    def resolve(self, dtype: str, size: int) -> Resolved:
        """As `Here.resolve`, on one of the workers."""
        found: Resolved = self._asked(resolve, self.request, dtype, size)
        return found

    def ready(self, folder: Path, job: Job) -> Rows:
        """Make all workers ready for a job; what then does shards."""
        crew = cluster.Crew(self.client, folder, job, self.request)
        crew.ready()
        return crew.run

    def costs(self, folder: Path, job: Job) -> Costs:
        """What a worker costs there, alone and while all are at work, and a task of Dask's."""
        alone: Costs = self._asked(_costs, folder, job, self.request)
        addresses = cluster.addresses(self.client)
        at_once = [
            self.client.submit(_said, _label, (folder, job, self.request), pure=False,
                               workers=[address])
            for address in addresses
        ]  # fmt: skip
        rates = [_heard(future) for future in at_once]
        task = cluster.task_seconds(self.client)
        return replace(alone, task=task, there=len(rates), label_all=sum(rates))

    def _asked(self, call: Callable[..., Any], *words: Any) -> Any:
        return _heard(self.client.submit(_said, call, words, pure=False))


def _said(call: Callable[..., Any], words: tuple[Any, ...]) -> tuple[bool, Any]:
    """What a call comes to on a worker: whether it went well, what it gave or its sentence."""
    try:
        return True, call(*words)
    except LenetError as error:
        return False, str(error)


def _heard(future: Any) -> Any:
    well, found = cluster.result(future)
    if not well:
        raise LenetError(found)
    return found


def _costs(folder: Path, job: Job, request: Request) -> Costs:
    return costs(Worker(folder, job, request), folder)


def _label(folder: Path, job: Job, request: Request) -> float:
    return label_rate(Worker(folder, job, request))


def resolve(request: Request, dtype: str, size: int) -> Resolved:
    """(plan, precision, "cpu" or "cuda", the device as JSON) that a request comes to here."""
    engine = Engine(request)
    if request.plan == AUTO:
        engine.start(dtype, size)
    name = settled(engine.plan, engine.gpu)
    return name, engine.plan.precision, engine.device, device_json(engine.gpu)


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
