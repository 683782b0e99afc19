"""The cuda-convnet2 paper's kernels as a warp's instructions, and the machine that it simulated.

Sums are written down as figures 9 and 13 list them, loads as figures 26, 27, 29, 30, 32 and 33 say
them in C, an engine as figure 19 calls it. What no figure lists is counted as plainly as PTX has
it: an element's address is three instructions (figure 9's add, mul, add), a comparison is two and a
jump, a loop's end two and a jump. Nothing before the first chunk is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from statistics import fmean

from lenetgpu.papers.warps import Core, Instruction, Listing, Op
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2.ladder import Loads, Tile

CONVERSION, IMAGES, FILTERS = "index conversion", "images", "filters"
COMPUTE, WRITE = "compute", "write"
PARTS = (CONVERSION, IMAGES, FILTERS, COMPUTE, WRITE)
_INDEX, _REDUCED_INDEX, _ADDRESS, _COMPARED = 2, 1, 3, 2

_WARPS_OF_THE_RUN = 240
_CACHED_PIXELS, _PAIRS, _FILTERS_PER_THREAD = 4, 12, 4
FILTER_SIDE = 5
"""Of the run that figures 9 and 13 list, as they tell it; Table 1 prints 32."""
# "latency" of the lines, in the figures' order
FIGURE_9 = (
    ("add", 900_003), ("mul", 825_928), ("add", 909_892), ("ld.shared", 92_553),
    ("ld.local", 25_725_679), ("mad", 1_059_732), ("st.local", 84_348),
    ("ld.local", 26_358_148), ("mad", 1_059_915), ("st.local", 84_135),
    ("ld.local", 26_520_275), ("mad", 1_061_173), ("st.local", 84_381),
    ("ld.local", 26_074_621), ("mad", 1_062_764), ("st.local", 80_641),
    ("add", 168_702), ("add", 650_839),
)  # fmt: skip
FIGURE_13 = (
    ("ld.shared", 189_822), ("ld.shared", 1_681), ("mov", 17_345), ("mad", 25_172), ("mov", 8_650),
    ("ld.shared", 1_681), ("mov", 18_890), ("mad", 24_716), ("mov", 6_933),
    ("ld.shared", 1_699), ("mov", 17_569), ("mad", 24_335), ("mov", 5_724),
    ("ld.shared", 1_684), ("mov", 17_055), ("mad", 24_019), ("mov", 192_675),
    ("ld.shared", 1_707), ("mov", 16_959),
)  # fmt: skip


def executions(rolled: bool, side: int = FILTER_SIDE) -> int:
    """How often the run's 240 warps (section 2.3) run a line of figure 9 (rolled) or of figure 13.

    A chunk is 4 of the filter's side x side pixels. Figure 9's lines stand in the loop over 4
    filters, that in the loop over a chunk's 12 (pixel, channel) pairs; figure 13's lines run once a
    chunk, both loops being unrolled there.
    """
    chunks = -(-side * side // _CACHED_PIXELS)
    return _WARPS_OF_THE_RUN * chunks * (_PAIRS * _FILTERS_PER_THREAD if rolled else 1)


def line_cycles(
    figure: tuple[tuple[str, int], ...], name: str = "", side: int = FILTER_SIDE
) -> list[float]:
    """Cycles from a line's issue to its warp's next, of the figure's lines `name`, or of all."""
    count = executions(figure is FIGURE_9, side)
    return [latency / count for line, latency in figure if name in ("", line)]


# GPGPU-Sim, configs/GTX480/gpgpusim.config: ptx_opcode_latency_int and _fp (add 4, mad 5, div 145),
# gpgpu_smem_latency 3, num_sched_per_core 2, one memory unit, il1 4:128:4 with 8-byte instructions
_ADD, _MAD, _DIVIDE, _SHARED = 4, 5, 145, 3
_PIPELINE = round(fmean(line_cycles(FIGURE_9, "add")[:2] + line_cycles(FIGURE_9, "mul"))) - _ADD
"""Cycles that an instruction takes besides its own latency: figure 9's chain of add, mul, add."""
_LOCAL = round(fmean(line_cycles(FIGURE_9, "ld.local")))
_REFILL = 4
"""Fetch, decode and issue behind a jump, which drops what was read ahead."""
_FLIT, _LINE = 32, 128
GTX_480 = Core(
    "GTX 480 in GPGPU-Sim",
    schedulers=2,
    arithmetic=_ADD + _PIPELINE,
    mad=_MAD + _PIPELINE,
    divide=_DIVIDE + _PIPELINE,
    branch=_REFILL,
    shared=_SHARED + _PIPELINE,
    local=_LOCAL,
    far=_LOCAL,
    port=1,
    line=_LINE // _FLIT + 1,
    fetch=round(line_cycles(FIGURE_13, "ld.shared")[0]) - 1,
    fetch_line=_LINE // 8,
    fetched=4 * 4 * _LINE // 8,
)
"""Latencies by figure 9 and the simulator's configuration; a load from global memory is taken to
cost what figure 9's from local memory does, both missing the first cache."""


class Sums(Enum):
    """How a chunk is summed: sections 3.1.1, 3.1.2, 3.2 and 3.3."""

    ROLLED = "rolled"
    UNROLLED = "unrolled"
    INNER = "inner"
    OUTER = "outer"


@dataclass(frozen=True)
class Kernel:
    """A step of the paper as it would run there; `converter` is section 4.3's instruction.

    `engines_hold` says that an engine keeps the memory unit while it reads shared memory; the paper
    has an engine a thread and lets all of them read at once. `together` loads are under way before
    the first of them is stored; figures 26 to 30 store each one before they ask for the next.
    """

    sums: Sums
    loads: Loads
    converter: bool = False
    engines_hold: bool = False
    together: int = 1


def inner_latency(elements: int) -> int:
    """Cycles of the inner product engine for `elements` pairs (section 3.2): 2 * N."""
    return 2 * elements


def outer_latency(images: int, elements: int) -> int:
    """Cycles of the outer product engine (section 3.3): L + 2 * N - 2.

    L is the image array's length and N "the number of elements to compute", read here as the
    filter elements of a chunk: it loads one an iteration.
    """
    return images + 2 * elements - 2


def _compared(to: Listing, *reads: int) -> None:
    to.emit(Op.BRANCH, to.chain(_COMPARED, *reads))


def _element(to: Listing, index: int, op: Op, *reads: int, lines: int = 1) -> int:
    """An access to an array's element: its address, then the access."""
    return to.emit(op, to.chain(_ADDRESS, index), *reads, lines=lines)


def _load(to: Listing, kernel: Kernel, count: int, lines: int, checked: bool) -> None:
    """`count` floats from global to shared memory: figure 26 with 29's check, or what is left."""

    def some(_: int) -> None:
        found = []
        for _ in range(together):
            if checked:
                _compared(to)
            if kernel.loads is Loads.PLAIN:
                first, second = to.emit(Op.ARITHMETIC), to.emit(Op.ARITHMETIC)
                index = to.chain(_INDEX, first, second)
            else:
                index = to.chain(_REDUCED_INDEX)
            found.append((index, _element(to, index, Op.GLOBAL, lines=lines)))
        for index, value in found:
            _element(to, index, Op.STORE, value)

    together = next(n for n in range(min(kernel.together, count), 0, -1) if count % n == 0)
    to.repeat(count // together, some)


def _converted(to: Listing, kernel: Kernel) -> None:
    """From a filter pixel to an image pixel: figure 32 lines 2 to 7, or figure 33's instruction."""
    if kernel.converter:
        _compared(to, to.emit(Op.ARITHMETIC))
        return
    pixel = to.chain(2)
    x = to.chain(2, to.emit(Op.DIVIDE, pixel))
    y = to.chain(2, to.emit(Op.DIVIDE, pixel))
    for bound in (y, y, x, x):
        to.emit(Op.BRANCH, to.emit(Op.ARITHMETIC, bound))
    to.chain(3, x, y)


def _images(to: Listing, kernel: Kernel, tile: Tile) -> None:
    to.part = IMAGES
    hoisted = kernel.loads >= Loads.HOISTED
    lines = -(-32 // tile.threads_x)
    if hoisted:
        _compared(to)

    def channel(_: int) -> None:
        _load(to, kernel, tile.images_per_thread, lines, not hoisted)
        if kernel.loads is not Loads.PLAIN:
            to.chain(2)

    def pixel(_: int) -> None:
        to.part = CONVERSION
        _converted(to, kernel)
        to.part = IMAGES
        to.repeat(tile.cached_channels, channel)

    to.repeat(-(-tile.cached_pixels // tile.threads_y), pixel)


def _filters(to: Listing, kernel: Kernel, tile: Tile) -> None:
    to.part = FILTERS
    threads = tile.threads_x * tile.threads_y
    columns = min(tile.filters, threads)
    lines = -(-32 // columns)

    def pixel(_: int) -> None:
        _compared(to)
        _load(to, kernel, tile.cached_channels * (tile.filters // columns), lines, False)

    to.repeat(-(-tile.cached_pixels * columns // threads), pixel)


def _rolled(to: Listing, tile: Tile) -> None:
    """Figure 9's lines, one (pixel, channel) pair and filter at a time."""

    def each_filter(images: list[int]) -> None:
        found = _element(to, to.emit(Op.ARITHMETIC), Op.SHARED)
        for image in images:
            before = to.emit(Op.LOCAL)
            to.emit(Op.STORE, to.emit(Op.MAD, image, found, before))
        to.emit(Op.ARITHMETIC)

    def pair(_: int) -> None:
        index = to.chain(1)
        address = to.chain(_ADDRESS, index)
        images = [to.emit(Op.SHARED, address) for _ in range(tile.images_per_thread)]
        to.repeat(tile.filters_per_thread, lambda _: each_filter(images))

    to.repeat(tile.cached_pixels * tile.cached_channels, pair)


def _unrolled(to: Listing, tile: Tile) -> None:
    """Figure 13's lines: every sum moved, multiplied and added to, moved back."""
    for _ in range(tile.cached_pixels * tile.cached_channels):
        images: list[int] = []
        for f in range(tile.filters_per_thread):
            found = -1
            for g in range(tile.images_per_thread):
                if f == 0:
                    images.append(to.emit(Op.SHARED))
                if g == 0:
                    found = to.emit(Op.SHARED)
                moved = to.emit(Op.ARITHMETIC)
                to.emit(Op.ARITHMETIC, to.emit(Op.MAD, images[g], found, moved))


def _inner(to: Listing, kernel: Kernel, tile: Tile) -> None:
    """Figure 19: a filter's address, then an image's, the result read, added as in figure 13."""
    cycles = inner_latency(tile.cached_pixels * tile.cached_channels)
    held = cycles if kernel.engines_hold else None
    for _ in range(tile.filters_per_thread):
        to.emit(Op.STORE, to.emit(Op.ARITHMETIC))
        for _ in range(tile.images_per_thread):
            address = to.emit(Op.STORE, to.emit(Op.ARITHMETIC))
            partial = to.emit(Op.ENGINE, address, cycles=cycles, held=held)
            moved = to.emit(Op.ARITHMETIC)
            to.emit(Op.ARITHMETIC, to.emit(Op.ARITHMETIC, partial, moved))


def _outer(to: Listing, kernel: Kernel, tile: Tile) -> None:
    """Two addresses stored, then one call a chunk; the sums stay in the engine."""
    elements = tile.cached_pixels * tile.cached_channels * tile.filters_per_thread
    cycles = outer_latency(tile.images_per_thread, elements)
    for _ in range(2):
        address = to.emit(Op.STORE, to.emit(Op.ARITHMETIC))
    done = to.emit(Op.ENGINE, address, cycles=cycles, held=cycles if kernel.engines_hold else None)
    to.emit(Op.ARITHMETIC, done)


def _write(to: Listing, kernel: Kernel, tile: Tile) -> None:
    to.part = WRITE
    for _ in range(tile.images_per_thread * tile.filters_per_thread):
        held_in = {Sums.ROLLED: Op.LOCAL, Sums.OUTER: Op.SHARED}.get(kernel.sums)
        reads = [to.emit(held_in)] if held_in else []
        _element(to, to.chain(_INDEX), Op.STORE, *reads)


@cache
def listing(kernel: Kernel, tile: Tile, chunks: int) -> list[Instruction]:
    """A warp's program: `chunks` times loads, barrier, sums, barrier; then its outputs written."""
    to = Listing()

    def chunk(_: int) -> None:
        _images(to, kernel, tile)
        _filters(to, kernel, tile)
        to.emit(Op.BARRIER)
        to.part = COMPUTE
        if kernel.sums is Sums.ROLLED:
            _rolled(to, tile)
        elif kernel.sums is Sums.UNROLLED:
            _unrolled(to, tile)
        elif kernel.sums is Sums.INNER:
            _inner(to, kernel, tile)
        else:
            _outer(to, kernel, tile)
        to.emit(Op.BARRIER)

    to.repeat(chunks, chunk)
    _write(to, kernel, tile)
    return to.program


def chunks_of(problem: Conv, tile: Tile) -> int:
    """Chunks of a block: filter pixels by `cached_pixels`, channels by `cached_channels`."""
    return -(-problem.R * problem.S // tile.cached_pixels) * -(-problem.C // tile.cached_channels)
