"""How many streams, and chunks of how many images: a model of the bus, the kernels and a launch.

Copies follow each other over the bus, kernels over the GPU. A chunk's kernels wait for its copy, a
copy for the kernels that last read its lane's images. Small chunks let kernels begin early and end
soon after the last copy; large ones pay what a copy and a launch cost less often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_STREAMS, MOST_CHUNK = 4, 40_000
_PARTS = 16
_FOLLOWED = 32
"""Chunks that are followed one by one; the rest repeat the last half of them."""
_WORTH = 1.005
"""How much longer the schedule may take that holds the fewest images on the GPU at once."""


@dataclass(frozen=True)
class Costs:
    """A machine's figures for one plan and type of pixels.

    The bus in GB/s and us a copy, which is also what one stream's waiting for another takes;
    kernels in ns an image and us a chunk; us that the host takes to launch a recorded pass and to
    see its end; bytes of an image.
    """

    bus_gbs: float
    copy_us: float
    image_ns: float
    chunk_us: float
    call_us: float
    image_bytes: int

    def copy(self, images: int) -> float:
        """Microseconds that a chunk's copy takes."""
        return self.copy_us + images * self.image_bytes / self.bus_gbs / 1e3

    def kernels(self, images: int) -> float:
        """Microseconds that a chunk's kernels take."""
        return self.chunk_us + images * self.image_ns / 1e3

    def bare_copy_ms(self, images: int) -> float:
        """Milliseconds that all images take over the bus in one copy."""
        return self.copy(images) / 1e3


@dataclass(frozen=True)
class Schedule:
    """Streams, images a chunk, and the milliseconds that the model says for them."""

    streams: int
    chunk: int
    predicted_ms: float


def predicted_ms(images: int, streams: int, chunk: int, costs: Costs) -> float:
    """Milliseconds from page-locked images to labels in host memory."""
    chunks = -(-images // chunk)
    if chunks <= _FOLLOWED:
        return (costs.call_us + _ends(images, streams, chunk, costs)) / 1e3
    half = _FOLLOWED // 2
    whole = _ends(_FOLLOWED * chunk, streams, chunk, costs)
    each = (whole - _ends(half * chunk, streams, chunk, costs)) / (_FOLLOWED - half)
    return (costs.call_us + whole + (images / chunk - _FOLLOWED) * each) / 1e3


def _ends(images: int, streams: int, chunk: int, costs: Costs) -> float:
    """Microseconds until the labels of the last chunk are copied."""
    copied = computed = 0.0
    lanes = [0.0] * streams
    for turn, lo in enumerate(range(0, images, chunk)):
        n, lane = min(chunk, images - lo), turn % streams
        copied = max(copied, lanes[lane]) + costs.copy(n)
        computed = max(copied + costs.copy_us, computed) + costs.kernels(n)
        lanes[lane] = computed + costs.copy_us
    return computed + costs.copy_us


def _sizes(images: int) -> Iterator[int]:
    """Chunks worth a look: equal parts, and those whose last is smaller, which ends sooner."""
    for parts in range(1, _PARTS + 1):
        yield -(-images // parts)
        if parts > 1:
            yield -(-2 * images // (2 * parts - 1))
    yield from (2_500 << power for power in range(5))


def best_schedule(
    images: int, costs: Costs, streams: int | None = None, chunk: int | None = None
) -> Schedule:
    """The schedule that takes least by the model, with `streams` or `chunk` as given.

    Of those that take as long to half a percent, the one with the fewest images on the GPU.
    """
    counts = range(1, MOST_STREAMS + 1) if streams is None else (streams,)
    most = min(images, MOST_CHUNK)
    sizes = {size for size in _sizes(images) if size <= most} if chunk is None else {chunk}
    found = [
        Schedule(count, size, predicted_ms(images, count, size, costs))
        for size in sorted(sizes or {most})
        for count in counts
        if streams is not None or count <= -(-images // size)
    ]
    least = min(schedule.predicted_ms for schedule in found)
    near = [schedule for schedule in found if schedule.predicted_ms <= _WORTH * least]
    return min(near, key=lambda schedule: (schedule.streams * schedule.chunk, schedule.streams))
