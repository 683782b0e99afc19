"""Splitting of a range over the cores that this process may use, with one shared thread pool."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lenetgpu.cpu.flush import flush

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

MOST_THREADS = 1_024  # Largest accepted thread count; systems allow a process some thousands.
_asked: list[int] = []


def core_count() -> int:
    """Return the cores this process may use: its affinity, limited by its cgroup's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, _quota() or cores)


def machine_load() -> float:
    """Return runnable threads per core over the last minute, or 0 if unknown."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (OSError, AttributeError):
        return 0.0


def thread_count() -> int:
    """Return the threads that CPU variants use: those of `set_threads`, or `core_count()`."""
    return _asked[-1] if _asked else core_count()


def set_threads(count: int | None) -> None:
    """Use `count` threads from now on, None for `core_count()`; call it before making a pipeline.

    Raises ValueError if `count` is below 1 or above MOST_THREADS.
    """
    if count is not None and not 1 <= count <= MOST_THREADS:
        limit = "at least 1" if count < 1 else f"at most {MOST_THREADS:,}"
        raise ValueError(f"threads: expected {limit}, found {count:,}")
    _asked[:] = [] if count is None else [count]


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Call `set_threads(count)`, and undo it if the block raises."""
    earlier = list(_asked)
    set_threads(count)
    try:
        yield
    except BaseException:
        _asked[:] = earlier
        raise


@cache
def _quota(root: Path = Path("/")) -> int | None:
    """Return the least CPU quota of this process's cgroup and its ancestors, or None; v1 and v2."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        quotas += [_granted(mount / str(g).lstrip("/")) for g in (Path(path), *Path(path).parents)]
    return min((cpus for cpus in quotas if cpus is not None), default=None)


def _granted(folder: Path) -> int | None:
    """Return the CPUs of one cgroup (quota over period, rounded up), or None without a quota."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii").strip()
                for name in ("quota", "period")
            )
        microseconds, interval = int(quota), int(period)
    except (OSError, ValueError):  # not there, or "max"
        return None
    return -(-microseconds // interval) if microseconds > 0 and interval > 0 else None


def cpu_name() -> str:
    """Return the processor's model name, else its architecture; avoids running `uname`."""
    import platform

    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return (sys.platform == "win32" and platform.processor()) or platform.machine()


@cache
def _pool(threads: int) -> "ThreadPoolExecutor":
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads, thread_name_prefix="lenetgpu", initializer=flush)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its threads


def _run(part: "Future[None]", body: Callable[[int, int], object], lo: int, hi: int) -> None:
    """Call the body in a pool thread, unless its part was cancelled."""
    if part.set_running_or_notify_cancel():
        try:
            body(lo, hi)
        except BaseException as error:
            part.set_exception(error)
        else:
            part.set_result(None)


def _end(parts: "list[Future[None]]", cancel: bool) -> None:
    """Wait for all parts; `cancel` cancels those not begun. Raise a Ctrl-C received meanwhile."""
    try:
        for part in parts:
            if not (cancel and part.cancel()):
                part.exception()
    except KeyboardInterrupt:
        _end(parts, cancel)
        raise


def parallel_ranges(n: int, body: Callable[[int, int], object], least: int = 1) -> None:
    """Call `body(lo, hi)` over a split of range(n), one part a thread; `body` releases the GIL.

    A part has at least `least` items, because handing it to a thread costs about 0.1 ms. The
    calling thread runs the first part. An exception in any part, Ctrl-C included, is raised
    here after all running parts have ended; parts that had not begun are cancelled.
    """
    threads = thread_count()
    count = min(threads, n // least)
    if count <= 1:
        body(0, n)
        return
    from concurrent.futures import Future

    edges = [n * i // count for i in range(count + 1)]
    pool = _pool(threads)
    parts: list[Future[None]] = [Future() for _ in range(1, count)]
    failed = True
    try:
        try:
            for i, part in enumerate(parts, 1):
                pool.submit(_run, part, body, edges[i], edges[i + 1])
            body(edges[0], edges[1])
            failed = False
        finally:
            _end(parts, failed)
    finally:
        _end(parts, failed)  # Ctrl-C may have interrupted the first wait
    for part in parts:
        part.result()
