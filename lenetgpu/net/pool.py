"""Runners that callers in several threads take in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lenetgpu.net.runners import CpuRunner, GpuRunner


class Pool:
    """At most `most` runners, made by `make` when all others are out, lent to one caller each."""

    def __init__(self, make: Callable[[], CpuRunner | GpuRunner], most: int) -> None:
        self._make, self._left = make, threading.Semaphore(most)
        self._idle: list[CpuRunner | GpuRunner] = []

    @contextmanager
    def lent(self) -> Iterator[CpuRunner | GpuRunner]:
        """A runner for the block alone, waited for; one whose block fails is dropped."""
        with self._left:
            try:
                runner = self._idle.pop()
            except IndexError:  # asked first, another caller may take the last one meanwhile
                runner = self._make()
            yield runner
            self._idle.append(runner)
