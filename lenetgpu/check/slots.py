"""Images in slots, some exchanged before every sample, and windows of them that slide call by call.

A variant that remembers what it computed, leaves a call out or handles the first images only is
right as long as every call gets the same images at the same address. So it never does:

- Two calls in a row read other windows of the input and write other windows of the output, by a
  few images further. What each of the last calls wrote last is still there after them.
- Before each sample some images change places with others, in the same memory.

Neither touches more than a few images, so what the caches hold is what they held before. Where
windows would take more than a small share of the memory besides, there is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

from lenetgpu.check.judge import Verdict, array_module, judge_parts, largest
from lenetgpu.layouts import MAP_LAYOUTS, held_as, physical_shape, to_nhwc
from lenetgpu.stages.mounted import Fenced

SPARE = 2
"""Images beyond the windows, for the first ones to change places with."""
_EXCHANGED = 4
_ALIGNED = {"cuda": 256, "cpu": 64}
_ROOM_BYTES = {"cuda": 1_000_000, "cpu": 60_000}
_SHARE = 8
_MOST_TURNS = {"cuda": 10, "cpu": 3}
_PART_BYTES = 64 << 20


@dataclass(frozen=True)
class Windows:
    """`turns` windows of `n` images each, `step` images apart."""

    n: int
    turns: int = 1
    step: int = 0

    @property
    def span(self) -> int:
        """Slots that they cover together."""
        return self.n + (self.turns - 1) * self.step


def windows(problem: Any, n: int, device: str) -> Windows:
    """Windows of `n` images for `problem` on "cpu" or "cuda": each starts as aligned as the first.

    Those after the first take an eighth of the first one's memory at most, or what any cache holds.
    """
    if problem.writes not in (*MAP_LAYOUTS, "NC", "N"):
        return Windows(n)
    each = 2 if held_as(problem) in ("float16", "uint16") else 4
    read = each * _items("NC", problem.in_shape)
    written = each * _items(problem.writes, problem.out_shape)
    aligned = _ALIGNED[device]
    step = aligned // gcd(aligned, read, written)
    room = max(n * (read + written) // _SHARE, _ROOM_BYTES[device])
    more = min(_MOST_TURNS[device] - 1, room // (step * (read + written)))
    return Windows(n, 1 + more, step) if more else Windows(n)


def _items(layout: str, shape: tuple[int, ...]) -> int:
    items = 1
    for extent in physical_shape(layout, 1, shape):
        items *= extent
    return items


class Slots:
    """Images on a device, in fenced memory: slot s holds image `which[s]` of the truth.

    `source` (S, ...) is copied and kept, `count` of its images round and round.
    """

    def __init__(self, source: Any, count: int) -> None:
        import numpy as np

        self._np = np
        self._source = source
        self._fenced = Fenced(array_module(source), (count, *source.shape[1:]), source.dtype)
        self.images = self._fenced.array
        self.which = np.arange(count) % len(source)
        self._fill()
        self._rng = np.random.default_rng()
        weights = self._rng.integers(1, 1 << 63, self._words(0, 1).shape[1], np.uint64) | 1
        self._weights = array_module(source).asarray(weights)
        self._sums = self._summed()

    def _words(self, lo: int, hi: int) -> Any:
        flat = self.images[lo:hi].reshape(hi - lo, -1)
        return flat.view("uint8" if flat.itemsize * flat.shape[1] % 4 else "uint32")

    def _summed(self) -> Any:
        """A weighted sum of each image's bits (S,) uint64, on the host."""
        sums = self._np.empty(len(self.images), self._np.uint64)
        for part in self._chunks():
            found = (self._words(part.start, part.stop) * self._weights).sum(axis=1)
            sums[part] = found.get() if hasattr(found, "get") else found
        return sums

    def _chunks(self) -> Iterator[slice]:
        chunk = max(1, _PART_BYTES // (8 * self._words(0, 1).shape[1]))
        for lo in range(0, len(self.images), chunk):
            yield slice(lo, min(lo + chunk, len(self.images)))

    def _fill(self) -> None:
        module = array_module(self._source)
        for part in self._chunks():
            self.images[part] = self._source[module.asarray(self.which[part])]

    def mend(self) -> None:
        """Put every image, and what lies beside them, back."""
        self._fenced.mend()
        self._fill()

    @property
    def intact(self) -> bool:
        """Whether nobody but `exchange` has written an image, or beside them."""
        return self._fenced.intact and bool((self._summed() == self._sums).all())

    def draw(self, below: int, count: int) -> Any:
        """`count` random integers from 0 up to `below`."""
        return self._rng.integers(0, below, count)

    def exchange(self, covered: int) -> Any:
        """Some of the first `covered` images change places with any; the slots of both."""
        first, second = self.draw(covered, _EXCHANGED), self.draw(len(self.images), _EXCHANGED)
        first[0] = (0, covered - 1)[int(self.draw(2, 1)[0])]
        second[0] = len(self.images) - 1 - int(self.draw(SPARE, 1)[0])
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            held = self.images[a].copy()
            self.images[a] = self.images[b]
            self.images[b] = held
            for facts in (self.which, self._sums):
                facts[[a, b]] = facts[[b, a]]
        return self._np.concatenate([first, second])


@dataclass(frozen=True)
class Call:
    """`n` images from slot `read` of the input on into the output's from slot `written` on."""

    read: int
    written: int
    n: int


class Feed:
    """What calls read and write next, and what the last ones must have left in the output `y`.

    `expected` holds float64's output in NHWC, (N, K) or (N,) of the first images of the truth, on
    the input's device or on the host; `scale` is its largest. A call takes `chunk` images at most.
    """

    def __init__(
        self, slots: Slots, y: Any, problem: Any, shape: Windows, chunk: int, expected: Any
    ) -> None:
        self.slots, self.y, self.problem = slots, y, problem
        self._shape, self._chunk, self._expected = shape, min(chunk, shape.n), expected
        self.scale = largest(expected) or 1.0
        self._turn = 0
        self._exchanged = slots.draw(1, 0)
        self._recent: deque[Call] = deque(maxlen=shape.turns)
        self._whole = [
            (call, *self._views(call)) for call in self._calls(shape.n, range(shape.turns))
        ]

    @staticmethod
    def outputs(shape: Windows, chunk: int) -> int:
        """Slots that the output of such a feed has."""
        return min(chunk, shape.n) + (shape.turns - 1) * shape.step

    def _calls(self, n: int, turns: Any) -> Iterator[Call]:
        step, last = self._shape.step, self._shape.turns - 1
        for turn in turns:
            yield Call((last - turn) * step, turn * step, n)

    def _views(self, call: Call) -> tuple[Any, Any]:
        x = self.slots.images[call.read : call.read + call.n]
        if self._shape.turns == 1 and call.n == self._chunk:
            return x, self.y
        return x, self.y[call.written : call.written + call.n]

    def whole(self) -> tuple[Any, Any]:
        """Input and output windows of the next call on all images."""
        call, x, y = self._whole[self._turn]
        self._turn = (self._turn + 1) % self._shape.turns
        self._recent.append(call)
        return x, y

    def parts(self, n: int) -> list[tuple[Any, Any, Call]]:
        """Those of the next calls on `n` images at most, `chunk` in each, and what to say of them.

        They count as made only when `made` says so.
        """
        found, n = [], min(n, self._shape.n)
        for lo in range(0, n, self._chunk):
            call = self._whole[self._turn][0]
            self._turn = (self._turn + 1) % self._shape.turns
            size = min(self._chunk, n - lo)
            found.append(Call(lo + call.read, call.written, size))
        return [(*self._views(call), call) for call in found]

    def made(self, *calls: Call) -> None:
        """`calls` were made, in this order."""
        self._recent.extend(calls)

    @property
    def last(self) -> list[Call]:
        """The last calls, as many as there are windows: what a recorded graph ends with."""
        return list(self._recent)

    def renew(self) -> None:
        """Exchange some images, and forget the calls: what they left may be wrong from now on."""
        self._exchanged = self.slots.exchange(self._shape.span)
        self._recent.clear()

    def _sources(self, slots: Any) -> Any:
        """The input's slots that the output's `slots` were made of last; -1: no call wrote it."""
        import numpy as np

        found = np.full(len(slots), -1)
        for call in self._recent:
            inside = (slots >= call.written) & (slots < call.written + call.n)
            found[inside] = slots[inside] + (call.read - call.written)
        return found

    def _telling(self) -> Any:
        """Slots of the output that tell most: both ends of each call, exchanged ones, any."""
        import numpy as np

        last, moved = self._recent[-1], self._exchanged
        found = [self.slots.draw(last.n, 2) + last.written]
        for call in self._recent:
            inside = moved[(moved >= call.read) & (moved < call.read + call.n)]
            found += [inside - call.read + call.written, [call.written, call.written + call.n - 1]]
        return np.unique(np.concatenate(found)).astype(int)

    def glance(self, precision: str) -> Verdict:
        """Are a few images right that the last calls left? At once, on the current stream."""
        return self._judged([self._telling()], precision)

    def judged(self, precision: str) -> Verdict:
        """Is every image right that the last calls left?"""
        import numpy as np

        count = len(self.y)
        each = max(1, _PART_BYTES // (8 * (self.y[:1].size or 1)))
        parts = (np.arange(lo, min(lo + each, count)) for lo in range(0, count, each))
        return self._judged(parts, precision)

    def _judged(self, parts: Iterable[Any], precision: str) -> Verdict:
        return judge_parts(map(self._pair, parts), self.scale, precision)

    def _pair(self, slots: Any) -> tuple[Any, Any]:
        """What the output's `slots` (host int64) hold in NHWC, and should: those with a truth."""
        sources = self._sources(slots)
        images = self.slots.which[sources]
        known = (sources >= 0) & (images < len(self._expected))
        module = array_module(self.y)
        found = self.y[module.asarray(slots[known])]
        if self.problem.writes in MAP_LAYOUTS:
            found = to_nhwc(found, self.problem.writes, self.problem.out_shape)
        expected = self._expected[array_module(self._expected).asarray(images[known])]
        return found, module.asarray(expected)
