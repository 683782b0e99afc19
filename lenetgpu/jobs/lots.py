"""How many shards one task is given: handing out takes a scheduler's time, whatever the task."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

LOT_S = 0.5
"""Seconds that a task is to take."""


class Lots:
    """Shards that wait to be done.

    A lot is what takes about half a second by what the last one took, no more than half of an equal
    share of what is left, so that workers end together; the first are of one shard.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._fresh = deque(numbers)
        self._alone: deque[tuple[int, int]] = deque()
        self._each: float | None = None

    def __len__(self) -> int:
        return len(self._fresh) + len(self._alone)

    def took(self, shards: int, seconds: float) -> None:
        """A lot of so many `shards` came back."""
        self._each = seconds / shards

    def again(self, number: int, count: int) -> None:
        """Shard `number` is to be begun the `count`-th time: alone, behind the others."""
        self._alone.append((number, count))

    def take(self, workers: int) -> tuple[tuple[int, ...], int]:
        """The next lot and the how manyth time it is begun; IndexError where nothing waits."""
        if not self._fresh:
            number, count = self._alone.popleft()
            return (number,), count
        size = 1
        if self._each is not None:
            share = len(self._fresh) // (2 * workers)
            size = max(1, min(share, int(LOT_S / max(self._each, 1e-6))))
        return tuple(self._fresh.popleft() for _ in range(size)), 1
