"""A job on several processes: Dask's workers, on this machine or on a cluster that is there."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from lenetgpu import __version__
from lenetgpu.cpu.threads import core_count
from lenetgpu.errors import LenetError, first_line, require_extra
from lenetgpu.gpu.faults import lost
from lenetgpu.jobs import manifest
from lenetgpu.jobs.here import TRIES
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.lots import Lots
from lenetgpu.jobs.manifest import Failed, Row
from lenetgpu.jobs.worker import StopError, Worker
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock
from lenetgpu.plan import choose_device

AHEAD = 2
"""Lots that each worker has been given at most: it does one while the other waits beside it."""
JOIN_S, LOOK_S = 60.0, 5.0
"""Seconds that a worker is waited for; those after which a job looks whether one is left."""
_LOST = 70
"""Exit code of a worker whose GPU is lost; another is started in its place."""
_TALKATIVE = ("asyncio", "bokeh", "dask_cuda", "distributed", "tornado")
"""Libraries whose tracebacks about connections that ended are nobody's business."""

_TASKS = 256
_turn = threading.Lock()
"""One task of a process at a time, however many threads its cluster gave it."""


def _dask() -> Any:
    """The library `distributed`; LenetError where it is not."""
    require_extra("--workers, --scheduler", "distributed", "cluster")
    import distributed

    return distributed


@contextmanager
def cluster(workers: str | None, scheduler: str | None, tries: int = TRIES) -> Iterator[Any]:
    """A Dask client of `workers` ("2": processes here, "cuda": one a GPU) or of a scheduler.

    LenetError where Dask is not installed, nobody answers, or there is no worker in a minute.
    """
    distributed = _dask()
    import dask

    settings = {
        "distributed.scheduler.allowed-failures": tries - 1,
        "distributed.worker.daemon": True,
        "distributed.comm.timeouts.connect": "20s",
        "distributed.admin.log-format": "%(message)s",
    }
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with dask.config.set(settings), ExitStack() as stack:
        if scheduler is None:
            try:
                made = stack.enter_context(_local(distributed, workers or "1"))
            except RuntimeError as error:
                raise LenetError(
                    f"--workers {workers}: expected processes that start, found: "
                    f"{first_line(error)}; the same command begins again"
                ) from error
            client = stack.enter_context(distributed.Client(made))
        else:
            client = stack.enter_context(_joined(distributed, scheduler))
        try:
            client.wait_for_workers(1, timeout=JOIN_S)
        except TimeoutError as error:
            where = scheduler or f"--workers {workers}"
            raise LenetError(
                f"{where}: expected a worker within {JOIN_S:.0f} s, found none"
            ) from error
        yield client


def _local(distributed: Any, workers: str) -> Any:
    """A cluster of processes of this machine."""
    kept = {
        "threads_per_worker": 1,
        "memory_limit": 0,
        "data": dict,
        "dashboard_address": "127.0.0.1:0",
        "silence_logs": logging.CRITICAL,
    }
    if workers == "cuda":
        require_extra("--workers cuda", "dask_cuda", "cluster-cuda")
        from dask_cuda import LocalCUDACluster

        return LocalCUDACluster(**kept)
    return distributed.LocalCluster(n_workers=int(workers), processes=True, **kept)


def _joined(distributed: Any, scheduler: str) -> Any:
    try:
        return distributed.Client(scheduler, timeout="20s")
    except (OSError, ValueError, RuntimeError) as error:
        raise LenetError(
            f"--scheduler {scheduler}: expected a Dask scheduler there, found: {first_line(error)}"
        ) from error


def dashboard(client: Any) -> str:
    """The address of Dask's page about its workers; nothing where it has none (no bokeh)."""
    served = "dashboard" in client.scheduler_info(n_workers=0).get("services", {})
    found = client.dashboard_link if served else None
    return found or ""


def addresses(client: Any) -> list[str]:
    """Of the workers that are there."""
    return list(client.scheduler_info(n_workers=-1)["workers"])


def task_seconds(client: Any) -> float:
    """Seconds that a task takes which does nothing, many of them one after the other."""
    begun = clock()
    result(client.submit(sum, client.map(abs, range(_TASKS), pure=False)))
    return (clock() - begun) / _TASKS


def share(request: Request, workers: str | None) -> Request:
    """`request` for each of several workers of one machine: the cores are shared out."""
    if workers in (None, "cuda") or request.threads is not None:
        return request
    if choose_device(request.device, request.plan)[0] is not None:
        return request
    return replace(request, threads=max(1, core_count() // int(workers or 1)))


@lru_cache(1)
def _worker(folder: str, key: str, asked: bytes) -> Worker:
    """The process' own worker for its last job, `asked` a pickled request."""
    request: Request = pickle.loads(asked)
    found = manifest.read(Path(folder))
    if found is None:
        raise LenetError(f"{folder}: expected the manifest of a job, found none")
    return Worker(Path(folder), found.job, request)


def _prepare(folder: str, key: str, asked: bytes) -> str:
    """Make the process' worker ready; why it cannot be, or nothing."""
    with _turn:
        try:
            worker = _worker(folder, key, asked)
            worker.ready(worker.job.valid[0].dtype)
        except LenetError as error:
            return str(error)
    return ""


def _task(
    folder: str, key: str, asked: bytes, numbers: tuple[int, ...]
) -> tuple[list[tuple[int, str, Any]], float]:
    """What a worker's process does: (shard, "done" | "bad" | "stop", a line's fields or a sentence)
    for each shard until one stops it, and the seconds of all."""
    with _turn:
        begun, found = clock(), []
        try:
            worker = _worker(folder, key, asked)
            for shard, row in worker.run(worker.job.joined(numbers)):
                done = isinstance(row, Row)
                found.append((shard.number, "done" if done else "bad",
                              vars(row) if done else str(row)))  # fmt: skip
        except LenetError as error:
            if isinstance(error, StopError) and lost():
                os._exit(_LOST)  # the scheduler gives the lot to another, the nanny starts one anew
            found.append((-1, "stop", str(error)))
        return found, clock() - begun


class Crew:
    """Does a job's shards through a client."""

    def __init__(self, client: Any, folder: Path, job: Job, request: Request) -> None:
        self._client, self._job = client, job
        self._told = str(folder.resolve()), job.key, pickle.dumps(request)
        self._with: dict[int, tuple[int, ...]] = {}
        self._futures: dict[Any, tuple[tuple[int, ...], int]] = {}

    def ready(self) -> None:
        """Have all workers that are there made ready; StopError where one cannot be."""
        asked = [
            self._client.submit(
                _prepare, *self._told, pure=False, workers=[address], allow_other_workers=True
            )
            for address in addresses(self._client)
        ]
        for future in asked:
            with suppress(_dask().KilledWorker):  # what the job's shards will say too
                if why := result(future):
                    raise StopError(why)

    def _submit(self, lots: Lots, workers: int) -> None:
        taken, count = lots.take(workers)
        numbers = tuple(chain.from_iterable(self._with.pop(first, (first,)) for first in taken))
        future = self._client.submit(
            _task,
            *self._told,
            numbers,
            pure=False,
            key=f"lenetgpu-{numbers[0]}-{len(numbers)}-{count}-{os.urandom(4).hex()}",
        )
        self._futures[future] = (numbers, count)

    def run(self, numbers: list[int], tries: int = TRIES) -> Iterator[Row | Failed]:
        """Rows as they come, in any order; those set aside. StopError ends the job."""
        shares = ([one.number for one in shard.each] for shard in self._job.joined(numbers))
        self._with = {first: (first, *more) for first, *more in shares}
        lots = Lots([*self._with])
        try:
            while len(lots) or self._futures:
                workers = max(1, len(addresses(self._client)))
                while len(lots) and len(self._futures) < AHEAD * workers:
                    self._submit(lots, workers)
                for future in self._some():
                    yield from self._ended(future, lots, tries)
        finally:
            with suppress(Exception):  # the scheduler may be gone
                self._client.cancel(list(self._futures))

    def _some(self) -> list[Any]:
        """The lots that came back, one at least; StopError where nobody is there to do one."""
        alone = 0.0
        while True:
            try:
                found = _dask().wait(
                    list(self._futures), timeout=LOOK_S, return_when="FIRST_COMPLETED"
                )
                return list(found.done)
            except TimeoutError:
                alone = 0.0 if addresses(self._client) else alone + LOOK_S
            except _dask().CancelledError as error:
                raise _gone() from error
            if alone >= JOIN_S:
                raise StopError(
                    f"workers: expected one at least, found none for {JOIN_S:.0f} s; "
                    "the same command goes on where it stopped"
                )

    def _ended(self, future: Any, lots: Lots, tries: int) -> Iterator[Row | Failed]:
        """What came of a lot; what is to be begun again goes to `lots`."""
        numbers, count = self._futures.pop(future)
        try:
            outcomes, seconds = result(future)
        except _dask().KilledWorker:
            yield from self._died(numbers, lots, tries)
            return
        lots.took(max(1, len(outcomes)), seconds)
        for number, how, found in outcomes:
            if how == "stop":
                raise StopError(found)
            if how == "done":
                yield Row(**found)
            elif count < tries:
                lots.again(number, count + 1)
            else:
                yield Failed(number, len(self._job.shard(number)), found, count)

    def _died(self, numbers: tuple[int, ...], lots: Lots, tries: int) -> Iterator[Failed]:
        """Several workers died at a lot: one of its shards kills them, which shows when alone."""
        if len(numbers) > 1:
            for number in numbers:
                lots.again(number, 1)
            return
        shard = self._job.shard(numbers[0])
        yield Failed(
            shard.number,
            len(shard),
            f"{shard.input.path}: expected workers that finish images {shard.lo:,} to "
            f"{shard.hi:,}, found that several died at them",
            tries,
        )


def result(future: Any) -> Any:
    """What a future came to; StopError where the workers or the scheduler cannot say."""
    try:
        return future.result()
    except ImportError as error:
        raise StopError(
            f"workers: expected lenetgpu {__version__} installed there, found: {error}"
        ) from error
    except (_dask().CancelledError, OSError) as error:
        raise _gone() from error


def _gone() -> StopError:
    return StopError(
        "scheduler: expected it to stay until the job ends, found it gone; "
        "the same command goes on where it stopped"
    )
