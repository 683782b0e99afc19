"""Input and output of timed calls: fenced memory, whose images change before every check.

A variant that remembers what it computed, leaves calls out or handles only the first images is
right as long as every call gets the same images in the same memory. So a check puts other images
there, in every second one all but the first and the last of each call, and leaves the output as the
call before left it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.check.judge import Verdict, array_module, judge_parts, largest, same_bytes
from lenetgpu.layouts import MAP_LAYOUTS, to_nhwc
from lenetgpu.stages.mounted import Fenced

_PART_BYTES = 64 << 20


class Images:
    """`count` images on a device, in fenced memory: slot s holds image `which[s]` of `source`.

    `source` (S, ...) is kept, its images round and round.
    """

    def __init__(self, source: Any, count: int) -> None:
        self._module = array_module(source)
        self._fenced = Fenced(self._module, (count, *source.shape[1:]), source.dtype)
        self._rng = np.random.default_rng()
        self._odd = False
        self.array = self._fenced.array
        self.load(source)

    def load(self, source: Any) -> None:
        """Images of another `source` of as many or fewer, from now on."""
        self._source = source
        self.which = np.arange(len(self.array)) % len(source)
        self.restore()

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        """The slots, and what they are to hold, in parts that memory holds twice."""
        each = max(1, _PART_BYTES // max(1, self.array[:1].nbytes))
        for lo in range(0, len(self.array), each):
            part = self.array[lo : lo + each]
            yield part, self._source[self._module.asarray(self.which[lo : lo + each])]

    def restore(self) -> None:
        """Put every image, and what lies around them, back."""
        self._fenced.mend()
        for part, images in self._parts():
            part[...] = images

    def renew(self, chunk: int) -> None:
        """Put other images in; every second time each `chunk` keeps its first and its last."""
        moved = np.ones(len(self.which), bool)
        if self._odd and chunk > 2:
            moved[::chunk] = moved[chunk - 1 :: chunk] = moved[-1] = False
        self._odd, count = not self._odd, len(self._source)
        step = self._rng.integers(1, max(2, count), len(moved))
        self.which = np.where(moved, (self.which + step) % count, self.which)
        self.restore()

    @property
    def intact(self) -> bool:
        """Whether nobody else has written an image, or beside them."""
        return self._fenced.intact and all(same_bytes(*pair) for pair in self._parts())


class Feed:
    """The timed calls' input and output, `chunk` images a call, and what the last one must leave.

    `y` holds a call's output; `expected` is float64's of the source's images in NHWC, (N, K) or
    (N,), on their device or on the host.
    """

    def __init__(
        self, images: Images, n: int, y: Any, problem: Any, chunk: int, expected: Any
    ) -> None:
        self.images, self.y, self.problem = images, y, problem
        self.chunk = min(chunk, n)
        self.load(expected)
        ranges = [(lo, min(lo + self.chunk, n)) for lo in range(0, n, self.chunk)]
        self.calls = [(images.array[lo:hi], y[: hi - lo], lo) for lo, hi in ranges]
        if len(self.calls) == 1:
            self.calls = [(images.array[:n], y, 0)]

    def load(self, expected: Any) -> None:
        """What another source's output is to be, from now on."""
        self._expected, self.scale = expected, largest(expected) or 1.0

    def judged(self, call: tuple[Any, Any, int], precision: str) -> Verdict:
        """Is every image right that `call`, the last one, left?"""
        _, y, first = call
        each = max(1, _PART_BYTES // (8 * (y[:1].size or 1)))
        ranges = ((lo, min(lo + each, len(y))) for lo in range(0, len(y), each))
        parts = (self._pair(y[lo:hi], first + lo) for lo, hi in ranges)
        return judge_parts(parts, self.scale, precision)

    def _pair(self, found: Any, first: int) -> tuple[Any, Any]:
        """Outputs in NHWC of the slots from `first` on, and what they should be."""
        which = self.images.which[first : first + len(found)]
        if self.problem.writes in MAP_LAYOUTS:
            found = to_nhwc(found, self.problem.writes, self.problem.out_shape)
        expected = self._expected[array_module(self._expected).asarray(which)]
        return found, array_module(found).asarray(expected)
