"""Splitting a range over the machine's cores with one shared thread pool."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


def core_count() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's model name."""
    import platform

    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


@cache
def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(core_count(), thread_name_prefix="lenetgpu")


def parallel_ranges(n: int, body: Callable[[int, int], object]) -> None:
    """Call `body(lo, hi)` over a split of range(n), one part per core; `body` releases the GIL.

    The calling thread takes the first part. An exception in any part is raised here, Ctrl-C too,
    when no part runs any more.
    """
    from concurrent.futures import wait

    parts = min(core_count(), n)
    if parts <= 1:
        body(0, n)
        return
    edges = [n * i // parts for i in range(parts + 1)]
    futures = [_pool().submit(body, edges[i], edges[i + 1]) for i in range(1, parts)]
    try:
        body(edges[0], edges[1])
    finally:
        wait(futures)
    for future in futures:
        future.result()
