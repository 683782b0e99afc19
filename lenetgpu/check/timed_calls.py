"""Input and output of timed calls, between guard zones; the images change before every check.

This exposes variants that cache results, skip calls or compute only the first images. Every second
check leaves the first and the last image of each call unchanged. The output buffer is not cleared:
it holds the previous call's output.
"""

from collections.abc import Iterator
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.check.judge import Verdict, array_module, judge_parts, largest, same_bytes
from lenetgpu.layouts import MAP_LAYOUTS, to_nhwc
from lenetgpu.stages.prepared import Guarded

_PART_BYTES = 64 << 20


class Images:
    """Guarded copies of `count` images on a device: slot s holds image `which[s]` of `source`."""

    def __init__(self, source: Any, count: int) -> None:
        self._module = array_module(source)
        self._guarded = Guarded(self._module, (count, *source.shape[1:]), source.dtype)
        self._rng = np.random.default_rng()
        self._odd = False
        self.array = self._guarded.array
        self.load(source)

    def load(self, source: Any) -> None:
        """Load images from another `source`, which has at most as many images as the first."""
        self._source = source
        self.which = np.arange(len(self.array)) % len(source)
        self.restore()

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        """Yield (slots, expected contents) in parts small enough to copy."""
        each = max(1, _PART_BYTES // max(1, self.array[:1].nbytes))
        for lo in range(0, len(self.array), each):
            part = self.array[lo : lo + each]
            yield part, self._source[self._module.asarray(self.which[lo : lo + each])]

    def restore(self) -> None:
        """Restore every image and the guard zones around them."""
        self._guarded.repair()
        for part, images in self._parts():
            part[...] = images

    def renew(self, chunk: int) -> None:
        """Load other images; every second time, each `chunk` keeps its first and its last image."""
        moved = np.ones(len(self.which), bool)
        if self._odd and chunk > 2:
            moved[::chunk] = moved[chunk - 1 :: chunk] = moved[-1] = False
        self._odd, count = not self._odd, len(self._source)
        step = self._rng.integers(1, max(2, count), len(moved))
        self.which = np.where(moved, (self.which + step) % count, self.which)
        self.restore()

    @property
    def intact(self) -> bool:
        """True if no one else has written to the images or their guard zones."""
        return self._guarded.intact and all(same_bytes(*pair) for pair in self._parts())


class TimedCalls:
    """Input and output of timed calls of `chunk` images; `expected` is of the source's images."""

    def __init__(
        self, images: Images, n: int, y: Any, problem: Any, chunk: int, expected: Any
    ) -> None:
        self.images, self.y, self.problem = images, y, problem
        self.chunk = min(chunk, n)
        self._expected, self.scale = expected, largest(expected) or 1.0  # float64, device or host
        ranges = [(lo, min(lo + self.chunk, n)) for lo in range(0, n, self.chunk)]
        self.calls = [(images.array[lo:hi], y[: hi - lo], lo) for lo, hi in ranges]
        if len(self.calls) == 1:  # F16 pads y to whole tiles
            self.calls = [(images.array[:n], y, 0)]

    def judged(self, call: tuple[Any, Any, int], precision: str) -> Verdict:
        """Judge the output of `call`, the last call that ran."""
        _, y, first = call
        each = max(1, _PART_BYTES // (8 * (y[:1].size or 1)))
        ranges = ((lo, min(lo + each, len(y))) for lo in range(0, len(y), each))
        module = array_module(self._expected)

        def pair(lo: int, hi: int) -> tuple[Any, Any]:
            found = y[lo:hi]
            if self.problem.writes in MAP_LAYOUTS:
                found = to_nhwc(found, self.problem.writes, self.problem.out_shape)
            which = self.images.which[first + lo : first + hi]
            return found, array_module(found).asarray(self._expected[module.asarray(which)])

        return judge_parts((pair(*span) for span in ranges), self.scale, precision)
