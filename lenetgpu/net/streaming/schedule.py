"""Choice of streams and chunk sizes by a cost model of the bus, the kernels and launches.

Copies are serialised on the bus, kernels on the GPU. A chunk's kernels wait for its copy; a copy
waits for the kernels that last read its stream's buffer. Small chunks let kernels start early and
finish soon after the last copy; large ones pay the fixed costs less often. So chunks shrink towards
the end if the bus is slower, and grow from the start if the kernels are. With zero-copy, kernels
read host memory directly, at a lower bus rate.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from math import ceil

MOST_STREAMS, MOST_CHUNK = 6, 40_000
_PARTS = 12
_FOLLOWED = 32  # chunks simulated one by one; the rest are extrapolated from the last half
EVEN = 1.0
NEVER = 1e12  # us; time of something unavailable
_MOST_GBS, _LARGE = 1e9, 1 << 20
_TAPERS = (2, 3, 4)
LEAST = 500  # images of a tapered chunk, at least
_WORTH = 1.01  # schedules within this factor of the best: the one with the least memory wins


@dataclass(frozen=True)
class Costs:
    """Measured costs of one plan and pixel type on one machine."""

    bus_gbs: float  # GB/s
    copy_us: float  # per copy, and per wait between streams
    image_ns: float  # of kernels, per image
    chunk_us: float  # of kernels, per chunk
    overlapped_us: float  # the same, while another chunk's kernels run
    call_us: float  # to launch a recorded pass and see its end, on the host
    image_bytes: int
    zero_copy_gbs: float  # bus rate while kernels read host memory
    zero_copy_us: float  # per pass of such kernels

    @property
    def sound(self) -> bool:
        """True if all figures are plausible: positive rates, non-negative times."""
        times = [time for name, time in asdict(self).items() if name.endswith(("_us", "_ns"))]
        return (
            all(1 / _MOST_GBS <= rate <= _MOST_GBS for rate in (self.bus_gbs, self.zero_copy_gbs))
            and all(0 <= time <= NEVER for time in times)
            and 0 < self.image_bytes < _LARGE
        )

    def copy(self, images: int) -> float:
        """Return the microseconds of a chunk's copy."""
        return self.copy_us + images * self.image_bytes / self.bus_gbs / 1e3

    def kernels(self, images: int, overlapped: bool = False) -> float:
        """Return the microseconds of a chunk's kernels, alone or overlapped with another's."""
        return (self.overlapped_us if overlapped else self.chunk_us) + images * self.image_ns / 1e3

    def zero_copy_ms(self, images: int, chunk: int | None = None) -> float:
        """Return the milliseconds of a zero-copy pass, chunk after chunk."""
        each = max(self.image_ns, self.image_bytes / self.zero_copy_gbs)
        starts = ceil(images / (chunk or images)) * self.zero_copy_us
        return (self.call_us + starts + images * each / 1e3) / 1e3


@dataclass(frozen=True)
class Schedule:
    """Streams and chunks of a pass."""

    streams: int
    chunk: int  # images of the largest chunk
    taper: float = EVEN  # ratio of consecutive chunk sizes
    zero_copy: bool = False  # kernels read host memory
    # milliseconds by the cost model ("predicted", "bare_copy"); None if it was not used
    model: dict[str, float] | None = field(default=None, compare=False)


def chunk_sizes(images: int, chunk: int, taper: float = EVEN) -> list[int]:
    """Split `images` into chunks of at most `chunk`, and at least LEAST or half of it if tapered.

    With `taper` above 1 sizes grow to `chunk` by about that factor, below 1 they shrink from it.
    """
    if taper == EVEN:
        return [min(chunk, images - lo) for lo in range(0, images, chunk)]
    share = 1 - min(taper, 1 / taper)
    sizes, left = [], images
    while left:
        size = min(left, chunk, max(LEAST, ceil(share * left)))
        if left - size < LEAST // 2 and left <= chunk:
            size = left
        sizes.append(size)
        left -= size
    return sizes if taper < EVEN else sizes[::-1]


def predicted_ms(images: int, streams: int, chunk: int, costs: Costs, taper: float = EVEN) -> float:
    """Predict the milliseconds from page-locked images to labels in host memory."""
    chunks = -(-images // chunk)
    if chunks <= _FOLLOWED:
        sizes = chunk_sizes(images, chunk, taper)
        return (costs.call_us + _ends(sizes, streams, costs)) / 1e3
    half, sizes = _FOLLOWED // 2, chunk_sizes(_FOLLOWED * chunk, chunk, taper)
    most = _ends([chunk] * _FOLLOWED, streams, costs)
    each = (most - _ends([chunk] * half, streams, costs)) / (_FOLLOWED - half)
    followed = _ends(sizes, streams, costs)
    return (costs.call_us + followed + (images / chunk - _FOLLOWED) * each) / 1e3


def _ends(sizes: list[int], streams: int, costs: Costs) -> float:
    """Return the microseconds until the labels of the last chunk are copied."""
    copied = computed = 0.0
    ends = [0.0] * streams
    for turn, n in enumerate(sizes):
        stream = turn % streams
        copied = max(copied, ends[stream]) + costs.copy(n)
        ready = copied + costs.copy_us
        overlapped = turn < streams and ready < computed
        computed = max(ready, computed) + costs.kernels(n, overlapped)
        ends[stream] = computed + costs.copy_us
    return computed + costs.copy_us


def _sizes(images: int) -> Iterator[int]:
    """Yield candidate chunk sizes: equal parts, parts with a half-sized last one, powers of two."""
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
    """Return the fastest schedule by the model, with `streams` or `chunk` fixed if given.

    A given chunk is not tapered; others have at most `most` images. Among schedules within one
    percent, the one with the fewest images on the GPU wins.
    """
    counts = range(1, MOST_STREAMS + 1) if streams is None else (streams,)
    most = min(images, most, MOST_CHUNK)
    sizes = {size for size in _sizes(images) if size <= most} if chunk is None else {chunk}
    rising = costs.image_ns > costs.image_bytes / costs.bus_gbs
    tapers = (EVEN, *(float(by) if rising else 1 / by for by in _TAPERS))
    candidates = [
        (predicted_ms(images, count, size, costs, taper), Schedule(count, size, taper))
        for size in sorted(sizes or {most})
        for count in counts
        if streams is not None or count <= -(-images // size)
        for taper in (tapers if chunk is None and size < images else (EVEN,))
    ]
    if streams is None and chunk is None and images <= MOST_CHUNK:
        candidates.append((costs.zero_copy_ms(images, most), Schedule(1, most, zero_copy=True)))
    least = min(ms for ms, _ in candidates)
    near = [(ms, schedule) for ms, schedule in candidates if ms <= _WORTH * least]
    # fewest images held on the GPU, then fewest streams
    ms, schedule = min(
        near, key=lambda at: (0 if at[1].zero_copy else at[1].streams * at[1].chunk, at[1].streams)
    )
    return replace(schedule, model={"predicted": ms, "bare_copy": costs.copy(images) / 1e3})
