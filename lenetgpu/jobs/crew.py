"""Crews that run a job's shards: this process, or Dask workers here or on an existing cluster."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from lenetgpu import __version__
from lenetgpu.cpu.threads import core_count
from lenetgpu.errors import LenetError, first_line, require_extra, unexpected
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.gpu.faults import lost
from lenetgpu.jobs import manifest
from lenetgpu.jobs.job import Job, Shard
from lenetgpu.jobs.manifest import Failed, Row
from lenetgpu.jobs.worker import Result, StopError, Worker, waited
from lenetgpu.measure.document import device_json
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock
from lenetgpu.net.engine import Engine
from lenetgpu.plan import AUTO, choose_device, resolved_name

TRIES = 3  # attempts before a shard is set aside
# One is computed, the next waits in the same process, so that its images are read ahead, and one
# ends or arrives.
_TASKS_PER_WORKER = 3
_TASKS_TO_COME, _MOST_SHARDS = 4, 32  # tasks of a worker in all, shards of a task
JOIN_S, LOOK_S = 60.0, 5.0  # seconds to wait for a worker, and between checks that one is left
_LOST = 70  # exit code of a worker whose GPU is lost; another worker is started
# Libraries that log tracebacks when connections close, which are of no use to users.
_TALKATIVE = ("asyncio", "bokeh", "dask_cuda", "distributed", "tornado")
# A process computes in one thread, even if the cluster gave it several for its tasks.
_preparing, _computing = threading.Lock(), ThreadPoolExecutor(1, "lenetgpu-compute")
# Images for each worker on a GPU of this machine, at least: they take a GPU 0.1 s, and a worker 1
# to 2 s to start. Smaller jobs are run by the command's own process.
SHARE = 4_000_000

# Runs the shards with these numbers, each with at most so many attempts.
Rows = Callable[[list[int], int], Iterator[Row | Failed]]
# Resolved request: (plan, precision, "cpu" or "cuda", the device as JSON).
Resolved = tuple[str, str, str, dict[str, Any]]
SentJob = tuple[str, str, bytes]  # a job as sent to a worker: (folder, key, pickled request)


def resolve(request: Request, dtype: str, size: int) -> Resolved:
    """Resolve the plan, precision and device that a request runs on this machine."""
    engine = Engine(request)
    if request.plan == AUTO:
        engine.start(dtype, size)
    name = resolved_name(engine.plan, engine.gpu)
    return name, engine.plan.precision, engine.device, device_json(engine.gpu)


@contextmanager
def crew(
    request: Request, workers: str | None, scheduler: str | None, tries: int
) -> Iterator[Here | OnDask]:
    """Provide the crew of a job: this process, or Dask workers if either option is given.

    Local workers are processes ("2") or one process per GPU ("cuda"). Raises LenetError if Dask
    is not installed, nothing answers, or no worker joins within a minute.
    """
    if workers is None and scheduler is None:
        yield Here(request)
        return
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
        try:
            if scheduler is None:
                option, expected = f"--workers {workers}", "processes that start"
                local = stack.enter_context(_local_cluster(distributed, workers))
                client = stack.enter_context(distributed.Client(local))
            else:
                option, expected = f"--scheduler {scheduler}", "a reachable Dask scheduler"
                client = stack.enter_context(distributed.Client(scheduler, timeout="20s"))
            expected = f"a worker within {JOIN_S:.0f} s"
            client.wait_for_workers(1, timeout=JOIN_S)
        except (OSError, ValueError, RuntimeError) as error:
            raise unexpected(option, expected, first_line(error)) from error
        yield OnDask(client, share(request, workers))


def paying(request: Request, workers: str | None, images: int) -> str | None:
    """Return the local workers that a job of files of `images` images uses: as many as pay."""
    if workers is None or choose_device(request.device, request.plan)[0] is None:
        return workers
    requested = len(driver_gpus()) if workers == "cuda" else int(workers)
    most = images // SHARE
    if most >= requested:
        return workers
    return None if most < 2 else f"cuda:{most}" if workers == "cuda" else str(most)


class Here:
    """Crew of this process alone: one shard after the other, on one device."""

    dashboard = ""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.resolve = partial(resolve, request)

    def ready(self, folder: Path, job: Job) -> Rows:
        """Prepare this process for a job, and return the function that runs its shards."""
        worker = Worker(folder, job, self.request)
        worker.ready()
        return partial(_run_here, worker)


def _run_here(worker: Worker, numbers: list[int], tries: int) -> Iterator[Row | Failed]:
    """Run these shards; retry a bad one after all others, then set it aside."""
    with closing(worker):
        for count in range(1, tries + 1):
            bad = []
            for shard, result in worker.run(worker.job.joined(numbers)):
                if isinstance(result, Row):
                    yield result
                elif count < tries:
                    bad.append(shard.number)
                else:
                    yield Failed(shard.number, len(shard), str(result), count)
            numbers = bad


class OnDask:
    """Crew of Dask workers."""

    def __init__(self, client: Any, request: Request) -> None:
        self.client, self.request = client, request
        served = "dashboard" in client.scheduler_info(n_workers=0).get("services", {})
        self.dashboard: str = client.dashboard_link or "" if served else ""

    def resolve(self, dtype: str, size: int) -> Resolved:
        """Resolve a request on one of the workers, as `Here.resolve` does here."""
        resolved: Resolved = result(self._submit(resolve, self.request, dtype, size))
        return resolved

    def ready(self, folder: Path, job: Job) -> Rows:
        """Prepare all current workers for a job, and return the function that runs its shards."""
        sent = str(folder.resolve()), job.key, pickle.dumps(self.request)
        futures = [
            self._submit(_prepare, *sent, workers=[address], allow_other_workers=True)
            for address in self._addresses()
        ]
        for future in futures:
            with suppress(_dask().KilledWorker):  # the job's shards will report it
                result(future)
        return partial(self._run, sent, job)

    def _submit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return self.client.submit(call, *arguments, pure=False, **options)

    def _addresses(self) -> list[str]:
        return list(self.client.scheduler_info(n_workers=-1)["workers"])

    def _run(
        self, sent: SentJob, job: Job, numbers: list[int], tries: int
    ) -> Iterator[Row | Failed]:
        """Yield rows as they arrive, in any order, and shards set aside; StopError ends the job.

        Bad shards are retried one by one. Dask retries a task if its worker died. If several
        workers died running a task, one of its shards kills them: its shards are then
        submitted one by one to find it.
        """
        groups = [[shard.number for shard in group.each] for group in job.joined(numbers)]
        size = shards_per_task(len(groups), max(1, len(self._addresses())))
        tasks = (groups[lo : lo + size] for lo in range(0, len(groups), size))
        waiting = deque(([number for group in task for number in group], 1) for task in tasks)
        running: dict[Any, tuple[list[int], int]] = {}
        looked, most = -LOOK_S, 0
        try:
            while waiting or running:
                if clock() > looked + LOOK_S:  # a question to the scheduler: as long as a shard
                    looked, most = clock(), _TASKS_PER_WORKER * max(1, len(self._addresses()))
                while waiting and len(running) < most:
                    shards, attempt = waiting.popleft()
                    future = self._submit(_task, *sent, shards, retries=tries - 1)
                    running[future] = shards, attempt
                for future in self._ended(list(running)):
                    shards, attempt = running.pop(future)
                    bad: list[tuple[int, str]] = []
                    try:
                        rows, bad = result(future)
                        yield from rows
                    except _dask().KilledWorker:
                        if len(shards) > 1:
                            waiting.extend(([number], attempt) for number in shards)
                        else:
                            shard = job.shard(shards[0])
                            why = f"several workers died at images {shard.lo:,} to {shard.hi:,}"
                            attempt, bad = tries, [(shard.number, f"{shard.input.path}: {why}")]
                    for number, why in bad:
                        if attempt < tries:
                            waiting.append(([number], attempt + 1))
                        else:
                            yield Failed(number, len(job.shard(number)), why, tries)
        finally:
            with suppress(Exception):  # the scheduler may be gone
                self.client.cancel(list(running))

    def _ended(self, running: list[Any]) -> list[Any]:
        """Return at least one finished task; raise StopError if no worker is left."""
        lonely = 0.0  # seconds without a worker
        while lonely < JOIN_S:
            try:
                ended = _dask().wait(running, timeout=LOOK_S, return_when="FIRST_COMPLETED")
                return list(ended.done)
            except TimeoutError:
                lonely = 0.0 if self._addresses() else lonely + LOOK_S
            except _dask().CancelledError as error:
                raise _scheduler_gone() from error
        raise StopError(
            f"workers: expected one at least, found none for {JOIN_S:.0f} s; "
            "the same command goes on where it stopped"
        )


def shards_per_task(shards: int, workers: int) -> int:
    """Return the shards per task: more of them load the scheduler less but balance worse."""
    return max(1, min(_MOST_SHARDS, shards // (_TASKS_TO_COME * workers)))


@lru_cache(1)
def _worker(folder: str, key: str, pickled: bytes) -> Worker:
    """Return this process's worker, cached for its last job; `pickled` is the request."""
    begun = manifest.read(Path(folder))
    if begun is None:
        raise unexpected(folder, "the manifest of a job", "none")
    return Worker(Path(folder), begun.job, pickle.loads(pickled))


def _prepare(*sent: Any) -> None:
    with _preparing:
        worker = _worker(*sent)
    _computing.submit(worker.ready).result()


def _compute(worker: Worker) -> None:
    """Compute the shards that this process' tasks request; put each in its task's queue."""
    # queues of each shard: an interrupted command's tasks may have requested it too
    tasks = defaultdict[int, deque[SimpleQueue[Any]]](deque)

    def take() -> Shard | None:
        if not worker.requested:
            return None
        shard, results = worker.requested.popleft()
        for each in shard.each:
            tasks[each.number].append(results)
        return shard

    def report(shard: Shard, row: Result) -> None:
        results, *_ = [tasks[each.number].popleft() for each in shard.each]
        results.put((shard, row))

    try:
        while worker.begin(take, report):
            pass
    except BaseException as error:
        worker.taken.clear()
        while take() is not None:
            pass
        for results in {each for waiting in tasks.values() for each in waiting}:
            results.put(error)


def _task(
    folder: str, key: str, pickled: bytes, numbers: list[int]
) -> tuple[list[Row], list[tuple[int, str]]] | LenetError:
    """Return the lines of these shards, and (number, reason) of bad ones; or the fatal error."""
    rows, bad, left = list[Row](), list[tuple[int, str]](), len(numbers)
    try:
        with _preparing:
            worker = _worker(folder, key, pickled)
        results = SimpleQueue[Any]()
        worker.requested.extend((shard, results) for shard in worker.job.joined(numbers))
        _computing.submit(_compute, worker)
        while left:
            ended = results.get()
            if isinstance(ended, BaseException):
                raise ended
            shard, row = ended[0], waited(ended[1])
            left -= len(shard.each)
            if isinstance(row, Row):
                rows.append(row)
            else:
                bad.append((shard.number, str(row)))
    except LenetError as error:
        if isinstance(error, StopError) and lost():
            os._exit(_LOST)  # the scheduler reassigns the task, the nanny restarts
        return error
    return rows, bad


def result(future: Any) -> Any:
    """Return the result of a future; raise the LenetError that it returned, or StopError."""
    try:
        returned = future.result()
    except ImportError as error:
        expected = f"lenetgpu {__version__} installed there"
        raise StopError(f"workers: expected {expected}, found: {error}") from error
    except (_dask().CancelledError, OSError) as error:
        raise _scheduler_gone() from error
    if isinstance(returned, LenetError):
        raise returned
    return returned


def _scheduler_gone() -> StopError:
    return StopError(
        "scheduler: expected it to stay until the job ends, found it gone; "
        "the same command goes on where it stopped"
    )


def share(request: Request, workers: str | None) -> Request:
    """Divide this machine's cores among its workers by setting the threads of `request`."""
    if workers is None or not workers.isdigit() or request.threads is not None:
        return request
    if choose_device(request.device, request.plan)[0] is not None:
        return request
    return replace(request, threads=max(1, core_count() // int(workers or 1)))


def _dask() -> Any:
    """Import the library `distributed`; raise LenetError if it is not installed."""
    require_extra("--workers, --scheduler", "distributed", "cluster")
    import distributed

    return distributed


def _local_cluster(distributed: Any, workers: str | None) -> Any:
    settings: dict[str, Any] = {
        "threads_per_worker": _TASKS_PER_WORKER,
        "memory_limit": 0,
        "data": dict,
    }
    settings |= {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    if workers is not None and workers.startswith("cuda"):
        require_extra("--workers cuda", "dask_cuda", "cluster-cuda")
        from dask_cuda import LocalCUDACluster

        count = workers.partition(":")[2]
        return LocalCUDACluster(n_workers=int(count) if count else None, **settings)
    return distributed.LocalCluster(n_workers=int(workers or 1), processes=True, **settings)
