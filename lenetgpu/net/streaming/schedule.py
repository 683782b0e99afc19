"""How many streams, and chunks of how many images: a model of the bus, the kernels and a launch.

Copies follow each other over the bus, kernels over the GPU. A chunk's kernels wait for its copy, a
copy for the kernels that last read its lane's images. Small chunks let kernels begin early and end
soon after the last copy; large ones pay what a copy and a launch cost less often. So where the bus
is slower chunks best fall towards the end, where the kernels are slower they rise from the start.
Or nothing is copied, and kernels read the host's memory (zero-copy): one launch, at a slower bus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

MOST_STREAMS, MOST_CHUNK = 6, 40_000
_PARTS = 12
_FOLLOWED = 32
"""Chunks that are followed one by one; the rest repeat the last half of them."""
EVEN = 1.0
NEVER = 1e12
"""Of a time: what is not to be had."""
_MOST_GBS, _LARGE = 1e9, 1 << 20
_TAPERS = (2, 3, 4)
_LEAST = 500
"""Images of a tapered chunk, at least."""
_WORTH = 1.01
"""How much longer the schedule may take that holds the fewest images on the GPU at once."""


@dataclass(frozen=True)
class Costs:
    """A machine's figures for one plan and type of pixels.

    The bus in GB/s and us a copy, which is also what one stream's waiting for another takes;
    kernels in ns an image and us a chunk, alone and behind another lane's, whose end they overlap;
    us that the host takes to launch a recorded pass and to see its end; bytes of an image. Then the
    bus in GB/s where kernels read the host's memory themselves, and the us of a pass beside that.
    """

    bus_gbs: float
    copy_us: float
    image_ns: float
    chunk_us: float
    lane_us: float
    call_us: float
    image_bytes: int
    zero_copy_gbs: float
    zero_copy_us: float

    @property
    def sound(self) -> bool:
        """Whether these are figures that a machine may have: rates that are some, times from 0."""
        rates = self.bus_gbs, self.zero_copy_gbs
        times = (
            self.copy_us, self.image_ns, self.chunk_us, self.lane_us, self.call_us,
            self.zero_copy_us,
        )  # fmt: skip
        fine = all(1 / _MOST_GBS <= rate <= _MOST_GBS for rate in rates)
        return fine and all(0 <= time <= NEVER for time in times) and 0 < self.image_bytes < _LARGE

    def copy(self, images: int) -> float:
        """Microseconds that a chunk's copy takes."""
        return self.copy_us + images * self.image_bytes / self.bus_gbs / 1e3

    def kernels(self, images: int, behind: bool = False) -> float:
        """Microseconds that a chunk's kernels take, alone or behind another lane's."""
        return (self.lane_us if behind else self.chunk_us) + images * self.image_ns / 1e3

    def zero_copy_ms(self, images: int, chunk: int | None = None) -> float:
        """Milliseconds of a pass whose kernels read the host's memory, in chunks one by one."""
        each = max(self.image_ns, self.image_bytes / self.zero_copy_gbs)
        starts = ceil(images / (chunk or images)) * self.zero_copy_us
        return (self.call_us + starts + images * each / 1e3) / 1e3

    def bare_copy_ms(self, images: int) -> float:
        """Milliseconds that all images take over the bus in one copy."""
        return self.copy(images) / 1e3


@dataclass(frozen=True)
class Schedule:
    """Streams, images of the largest chunk, the milliseconds that the model says for them.

    `taper` is how many times the one before it a chunk has, of those that rise or fall.
    `zero_copy`: nothing is copied, kernels read the host's memory.
    """

    streams: int
    chunk: int
    predicted_ms: float = field(compare=False)
    taper: float = EVEN
    zero_copy: bool = False


def chunk_sizes(images: int, chunk: int, taper: float = EVEN) -> list[int]:
    """The images of each chunk, at most `chunk`, together `images`.

    Above 1 they rise to `chunk`, each about `taper` times the one before it; below 1 they fall from
    it so. They are not cut below _LEAST, of which a rest may be half.
    """
    if taper == EVEN:
        return [min(chunk, images - lo) for lo in range(0, images, chunk)]
    share = 1 - min(taper, 1 / taper)
    sizes, left = [], images
    while left:
        size = min(left, chunk, max(_LEAST, ceil(share * left)))
        if left - size < _LEAST // 2 and left <= chunk:
            size = left
        sizes.append(size)
        left -= size
    return sizes if taper < EVEN else sizes[::-1]


def predicted_ms(images: int, streams: int, chunk: int, costs: Costs, taper: float = EVEN) -> float:
    """Milliseconds from page-locked images to labels in host memory."""
    chunks = -(-images // chunk)
    if chunks <= _FOLLOWED:
        sizes = chunk_sizes(images, chunk, taper)
        return (costs.call_us + _ends(sizes, streams, costs)) / 1e3
    half, whole = _FOLLOWED // 2, chunk_sizes(_FOLLOWED * chunk, chunk, taper)
    most = _ends([chunk] * _FOLLOWED, streams, costs)
    each = (most - _ends([chunk] * half, streams, costs)) / (_FOLLOWED - half)
    followed = _ends(whole, streams, costs)
    return (costs.call_us + followed + (images / chunk - _FOLLOWED) * each) / 1e3


def _ends(sizes: list[int], streams: int, costs: Costs) -> float:
    """Microseconds until the labels of the last chunk are copied."""
    copied = computed = 0.0
    lanes = [0.0] * streams
    for turn, n in enumerate(sizes):
        lane = turn % streams
        copied = max(copied, lanes[lane]) + costs.copy(n)
        ready = copied + costs.copy_us
        behind = turn < streams and ready < computed
        computed = max(ready, computed) + costs.kernels(n, behind)
        lanes[lane] = computed + costs.copy_us
    return computed + costs.copy_us


def _sizes(images: int) -> Iterator[int]:
    """Chunks worth a look: equal parts, the last half as large, and what holds of many images."""
    for parts in range(1, _PARTS + 1):
        yield from (-(-images // parts), -(-2 * images // (2 * parts + 1)))
    yield from (2_500 << power for power in range(5))


def best_schedule(
    images: int,
    costs: Costs,
    streams: int | None = None,
    chunk: int | None = None,
    most: int = MOST_CHUNK,
) -> Schedule:
    """The schedule that takes least by the model, with `streams` or `chunk` as given.

    A given chunk is not tapered; others have at most `most` images. Of those that take as long to
    a percent, the one with the fewest images on the GPU. Kernels read the host's memory where that
    takes less, nothing is given, and there are no more than MOST_CHUNK images.
    """
    counts = range(1, MOST_STREAMS + 1) if streams is None else (streams,)
    most = min(images, most, MOST_CHUNK)
    sizes = {size for size in _sizes(images) if size <= most} if chunk is None else {chunk}
    rising = costs.image_ns > costs.image_bytes / costs.bus_gbs
    tapers = (EVEN, *(float(by) if rising else 1 / by for by in _TAPERS))
    found = [
        Schedule(count, size, predicted_ms(images, count, size, costs, taper), taper)
        for size in sorted(sizes or {most})
        for count in counts
        if streams is not None or count <= -(-images // size)
        for taper in (tapers if chunk is None and size < images else (EVEN,))
    ]
    if streams is None and chunk is None and images <= MOST_CHUNK:
        found.append(Schedule(1, most, costs.zero_copy_ms(images, most), zero_copy=True))
    least = min(schedule.predicted_ms for schedule in found)
    near = [schedule for schedule in found if schedule.predicted_ms <= _WORTH * least]
    return min(near, key=_images_held)


def _images_held(schedule: Schedule) -> tuple[int, int]:
    """How many images lie on the GPU at once, then how many streams there are."""
    held = 0 if schedule.zero_copy else schedule.streams * schedule.chunk
    return held, schedule.streams
