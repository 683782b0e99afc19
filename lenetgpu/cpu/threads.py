"""Splitting a range over the cores that this process may use, with one shared thread pool."""

from __future__ import annotations

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

MOST_THREADS = 1_024
"""What may be asked for; systems give a process some thousands."""
_asked: list[int] = []


def core_count() -> int:
    """Cores this process may use: of its affinity, and no more than its cgroup's quota pays."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, _quota() or cores)


def machine_load() -> float:
    """Threads that could run, a core, over the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (OSError, AttributeError):
        return 0.0


def thread_count() -> int:
    """Threads that a CPU variant takes: those of `set_threads`, or as many as there are cores."""
    return _asked[-1] if _asked else core_count()


def set_threads(count: int | None) -> None:
    """Take `count` threads from now on, None for `core_count`; before any pipeline is made.

    Raises ValueError where there would be none, or more than MOST_THREADS. NumPy's BLAS (plan
    `unrolled`) has its own.
    """
    if count is not None and not 1 <= count <= MOST_THREADS:
        limit = "at least 1" if count < 1 else f"at most {MOST_THREADS:,}"
        raise ValueError(f"threads: expected {limit}, found {count:,}")
    _asked[:] = [] if count is None else [count]


@contextmanager
def threads_kept(count: int | None) -> Iterator[None]:
    """`set_threads(count)`, taken back where the block raises."""
    earlier = list(_asked)
    set_threads(count)
    try:
        yield
    except BaseException:
        _asked[:] = earlier
        raise


@cache
def _quota(root: Path = Path("/")) -> int | None:
    """CPUs that the cgroup of this process may use, rounded up, or None; versions 1 and 2.

    The least of its own and of those above it, as far as they can be seen.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        found += [_granted(mount / str(g).lstrip("/")) for g in (Path(path), *Path(path).parents)]
    return min((cpus for cpus in found if cpus is not None), default=None)


def _granted(folder: Path) -> int | None:
    """CPUs of one cgroup's quota over its period, rounded up; None where it has none."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii").strip()
                for name in ("quota", "period")
            )
        whole, each = int(quota), int(period)
    except (OSError, ValueError):  # not there, or "max"
        return None
    return -(-whole // each) if whole > 0 and each > 0 else None


def cpu_name() -> str:
    """The processor's model name, else its kind: Python would run `uname` for more."""
    import platform

    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return (sys.platform == "win32" and platform.processor()) or platform.machine()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads, thread_name_prefix="lenetgpu", initializer=flush)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # its threads stay with the parent


def _run(part: Future[None], body: Callable[[int, int], object], lo: int, hi: int) -> None:
    """Call the body in a thread of the pool, unless its part was called off."""
    if part.set_running_or_notify_cancel():
        try:
            body(lo, hi)
        except BaseException as error:
            part.set_exception(error)
        else:
            part.set_result(None)


def _end(parts: list[Future[None]], call_off: bool) -> None:
    """Wait for all; `call_off`: they need not begin. A Ctrl-C meanwhile is raised then."""
    stopped: KeyboardInterrupt | None = None
    while True:
        try:
            for part in parts:
                if not (call_off and part.cancel()):
                    part.exception()
            break
        except KeyboardInterrupt as error:
            stopped = error
    if stopped is not None:
        raise stopped


def parallel_ranges(n: int, body: Callable[[int, int], object], least: int = 1) -> None:
    """Call `body(lo, hi)` over a split of range(n), one part a thread; `body` releases the GIL.

    A part has `least` items at least: handing it to a thread costs about 0.1 ms. The calling
    thread takes the first part. An exception in any part is raised here, Ctrl-C too,
    when no part runs any more; parts that had not begun never do then.
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
        _end(parts, failed)  # Ctrl-C may have kept the first from waiting
    for part in parts:
        part.result()
