"""Splitting a range over the cores that this process may use, with one shared thread pool."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from lenetgpu.cpu.flush import flush

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MOST_THREADS = 1_024
"""What may be asked for; systems give a process some thousands."""
_asked: list[int] = []


def core_count() -> int:
    """Cores this process may use: of its affinity, and no more than its cgroup's quota pays."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return min(cores, _quota() or cores)


def machine_load() -> float:
    """Threads of the machine that could run, a core of its, over the last minute; 0 where no one
    says. Those of this process count too.
    """
    if not hasattr(os, "getloadavg"):
        return 0.0
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


def thread_count() -> int:
    """Threads that a CPU variant takes: those of `set_threads`, or as many as there are cores."""
    return _asked[-1] if _asked else core_count()


def set_threads(count: int | None) -> None:
    """Take `count` threads from now on, None for `core_count`; before any pipeline is made.

    Raises ValueError where there would be none, or more than MOST_THREADS. NumPy's BLAS (plan
    `unrolled`) has its own.
    """
    if count is not None and count < 1:
        raise ValueError(f"threads: expected at least 1, found {count}")
    if count is not None and count > MOST_THREADS:
        raise ValueError(f"threads: expected at most {MOST_THREADS:,}, found {count:,}")
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
    """CPUs that the cgroup of this process may use, rounded up, or None; versions 1 and 2."""
    found = [cpus for folder in _groups(root) if (cpus := _granted(folder)) is not None]
    return min(found, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Folders of this process's cgroup and those above it, as far as they can be seen."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if controllers:
            if "cpu" not in controllers.split(","):
                continue
            mount /= "cpu"
        folder = Path(path)
        for group in (folder, *folder.parents):
            yield mount / str(group).lstrip("/")


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


class _Part:
    """A part of a range for another thread; the caller waits for its end, or calls it off.

    Any call but `run` may be cut short by Ctrl-C and made again.
    """

    def __init__(self, body: Callable[[int, int], object], lo: int, hi: int) -> None:
        self._body, self._lo, self._hi = body, lo, hi
        self._whose: dict[str, str] = {}
        self._bell = Lock()
        self._bell.acquire()
        self._ended = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call the body, unless that was called off."""
        if self._whose.setdefault("part", "thread") == "caller":
            return
        try:
            self._body(self._lo, self._hi)
        except BaseException as error:
            self.error = error
        finally:
            self._ended = True
            self._bell.release()

    def wait(self, call_off: bool) -> None:
        """Return when the body runs no more; `call_off`: it need not begin."""
        if call_off and self._whose.setdefault("part", "caller") == "caller":
            return
        while not self._ended:
            self._bell.acquire()


def _end(parts: list[_Part], call_off: bool) -> None:
    """Wait for all; a Ctrl-C meanwhile is raised then."""
    stopped: KeyboardInterrupt | None = None
    while True:
        try:
            for part in parts:
                part.wait(call_off)
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
    edges = [n * i // count for i in range(count + 1)]
    pool = _pool(threads)
    parts = [_Part(body, edges[i], edges[i + 1]) for i in range(1, count)]
    failed = True
    try:
        try:
            for part in parts:
                pool.submit(part.run)
            body(edges[0], edges[1])
            failed = False
        finally:
            _end(parts, failed)
    finally:
        _end(parts, failed)  # Ctrl-C may have kept the first from waiting
    for part in parts:
        if part.error is not None:
            raise part.error
