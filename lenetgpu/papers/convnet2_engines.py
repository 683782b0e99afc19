"""What the cuda-convnet2 paper's engines would have done, by a timing model of a multiprocessor.

The paper simulated them (GPGPU-Sim, GTX 480). Here its kernels are a warp's instructions, run on
the model of `warps` as stated and with one assumption changed at a time. Sums are written down as
figures 9 and 13 list them, loads as figures 26, 27, 29, 30, 32 and 33 say them in C, an engine as
figure 19 calls it. What no figure lists is counted as plainly as PTX has it: an element's address
is three instructions (figure 9's add, mul, add), a comparison is two and a jump, a loop's end two
and a jump. Nothing before the first chunk is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from math import ceil
from statistics import fmean
from typing import Any

from lenetgpu.gpu.occupancy import PROCESSORS, Demand, residency
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.warps import Core, Instruction, Listing, Op, run
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2.ladder import Loads, Tile, ladder_tile

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


MULTIPROCESSORS, FERMI, REGISTERS = 15, 20, 28
"""Section 2.3: 15 SMs of a GTX 480, and the registers a thread that its compiler gave."""
_ARGUMENTS = 60
"""Shared bytes of a block besides its tile: section 2.3's 3,900 are 3,840 and these."""
WHOLE_CHUNKS = 7
"""So many chunks are simulated at most; the time of more is in proportion to the last of them."""


@dataclass(frozen=True)
class Simulated:
    """A step on the whole GPU: `cycles`, and a warp's mean cycles in each part."""

    cycles: float
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """A warp's mean cycles in all."""
        return sum(self.parts.values())


Results = Callable[[str], Simulated]
"""A step's result by the step's name."""


@dataclass(frozen=True)
class Step:
    """One step of the paper, simulated."""

    name: str
    section: str
    kernel: Kernel


STEPS = (
    Step("rolled", "3.1.1", Kernel(Sums.ROLLED, Loads.PLAIN)),
    Step("unrolled", "3.1.2", Kernel(Sums.UNROLLED, Loads.PLAIN)),
    Step("inner product engine", "3.2", Kernel(Sums.INNER, Loads.PLAIN)),
    Step("outer product engine", "3.3", Kernel(Sums.OUTER, Loads.PLAIN)),
    Step("strength reduced", "4.1", Kernel(Sums.INNER, Loads.REDUCED)),
    Step("conditionals extracted", "4.2", Kernel(Sums.INNER, Loads.HOISTED)),
    Step("index converter", "4.3", Kernel(Sums.INNER, Loads.HOISTED, converter=True)),
)
"""Section 4's steps with the inner product engine: "after improvements" (figure 25)."""


@dataclass(frozen=True)
class Assumption:
    """One thing that the model takes for granted, changed: fields of the core, of the kernels."""

    name: str
    what: str
    core: dict[str, Any] = field(default_factory=dict)
    kernel: dict[str, Any] = field(default_factory=dict)


CHANGED = (
    Assumption(
        "first cache hit", "a global load takes what a shared one does",
        core={"far": GTX_480.shared},
    ),
    Assumption(
        "four loads under way", "from strength reduction on, four are asked for before one is kept",
        kernel={"together": 4},
    ),
    Assumption(
        "instructions held", "no line of instructions is ever waited for", core={"fetch": 0},
    ),
    Assumption(
        "one reader at a time", "an engine keeps the memory unit while it reads shared memory",
        kernel={"engines_hold": True},
    ),
    Assumption("one scheduler", "one instruction a cycle instead of two", core={"schedulers": 1}),
)  # fmt: skip


def _step_saves(results: Results, name: str, before: str) -> float:
    return 1 - results(name).cycles / results(before).cycles


@dataclass(frozen=True)
class Claim:
    """A figure of the paper and the model's own: `unit` is cycles, share or times.

    `told` is None where the paper draws it only. `reproduced` claims that the model comes within
    `WITHIN` of it at Table 1; of the other figures that it does not.
    """

    name: str
    section: str
    unit: str
    told: float | None
    of: Callable[[Results], float]
    reproduced: bool = False
    remark: str = ""


WITHIN = {"cycles": 0.2, "share": 0.5, "times": 0.2}
"""How far from the paper's figure still agrees, in proportion to it."""
MOST_APART = 0.05
"""And how far a share may be from it at most."""
CLAIMS = (
    Claim(
        "rolled, cycles", "3.1.2", "cycles", 524_000, lambda r: r("rolled").cycles, True,
    ),
    Claim(
        "rolled, computation's share", "3, fig. 8", "share", 0.97,
        lambda r: r("rolled").parts[COMPUTE] / r("rolled").total, remark="over 97 %",
    ),
    Claim(
        "unrolled, cycles", "3.1.2", "cycles", 148_000, lambda r: r("unrolled").cycles, True,
    ),
    Claim(
        "unrolling saves", "3.1.2", "share", 0.71,
        lambda r: _step_saves(r, "unrolled", "rolled"), remark="1 - 148/524 is 0.718",
    ),
    Claim(
        "unrolled, computation's share", "3.2", "share", 0.69,
        lambda r: r("unrolled").parts[COMPUTE] / r("unrolled").total,
    ),
    Claim(
        "inner product engine saves, of the computation", "3.2", "share", 0.88,
        lambda r: 1 - r("inner product engine").parts[COMPUTE] / r("unrolled").parts[COMPUTE], True,
    ),
    Claim(
        "inner product engine saves", "3.2", "share", 0.66,
        lambda r: _step_saves(r, "inner product engine", "unrolled"),
        remark="0.88 of 0.69 is 0.61 only",
    ),
    Claim(
        "outer product engine saves", "3.3, fig. 24", "share", None,
        lambda r: _step_saves(r, "outer product engine", "unrolled"), remark="drawn, no number",
    ),
    Claim(
        "index conversion, share of image loading", "4.3", "share", 1 / 3,
        lambda r: _conversion(r("conditionals extracted").parts), remark="about a third",
    ),
    Claim(
        "strength reduction saves", "4.1", "share", 0.259,
        lambda r: _step_saves(r, "strength reduced", "inner product engine"),
    ),
    Claim(
        "extracted conditionals save", "4.2", "share", 0.026,
        lambda r: _step_saves(r, "conditionals extracted", "strength reduced"), True,
    ),
    Claim(
        "index converter saves", "4.3", "share", 0.05,
        lambda r: _step_saves(r, "index converter", "conditionals extracted"), True,
    ),
    Claim(
        "all of it, times faster than unrolled", "abstract, 6", "times", 4.4,
        lambda r: r("unrolled").cycles / r("index converter").cycles,
        remark="the paper's own savings multiply to this",
    ),
)  # fmt: skip


def _conversion(parts: dict[str, float]) -> float:
    return parts[CONVERSION] / (parts[CONVERSION] + parts[IMAGES])


def agrees(claim: Claim, found: float) -> bool:
    """Whether `found` is as near to the paper's figure as said; ValueError where it gives none."""
    if claim.told is None:
        raise ValueError(f"{claim.name}: expected a figure of the paper, found none")
    apart = abs(found - claim.told)
    near = apart <= WITHIN[claim.unit] * claim.told
    return near and (claim.unit != "share" or apart <= MOST_APART)


def claim_rows(problem: Conv, batch: int) -> Iterator[dict[str, Any]]:
    """A row a figure: the model's, under each change too; of Table 1's run the paper's as well.

    `paper` and `agrees` are None for another shape, and where the paper gives no number.
    """
    there = (replace(problem, reads="NCHW", writes="NCHW"), batch) == (TABLE_1, TABLE_1_BATCH)
    stated = results(problem, batch)
    changed = {one.name: results(problem, batch, assumption=one) for one in CHANGED}
    for claim in CLAIMS:
        found = claim.of(stated)
        told = there and claim.told is not None
        yield {
            "figure": claim.name,
            "section": claim.section,
            "unit": claim.unit,
            "paper": claim.told if told else None,
            "model": found,
            "agrees": agrees(claim, found) if told else None,
            "remark": claim.remark,
            "changed": {name: claim.of(under) for name, under in changed.items()},
        }


def resident(tile: Tile) -> int:
    """Blocks of a GTX 480's multiprocessor at once: equations (2) to (4) of the paper."""
    depth = tile.cached_pixels * tile.cached_channels
    shared = 4 * depth * (tile.images + tile.filters) + _ARGUMENTS
    demand = Demand(REGISTERS, tile.threads_x * tile.threads_y, shared)
    return residency(demand, PROCESSORS[FERMI]).blocks


@cache
def _chunks(core: Core, kernel: Kernel, tile: Tile, blocks: int, chunks: int) -> Simulated:
    """`blocks` blocks of `chunks` chunks on one multiprocessor."""
    warps = ceil(tile.threads_x * tile.threads_y / 32)
    found = run(core, listing(kernel, tile, chunks), blocks, warps)
    parts = {part: cycles / found.warps for part, cycles in found.parts.items()}
    return Simulated(found.cycles, parts)


def simulate(
    kernel: Kernel, problem: Conv, batch: int, core: Core = GTX_480, most: int = WHOLE_CHUNKS
) -> Simulated:
    """`kernel` on `batch` images of `problem`: full waves of blocks, then the rest in one more.

    The tile is the paper's for the shape (Table 1), for an engine too: it holds as many sums.
    """
    tile = ladder_tile(problem, batch)
    blocks, chunks = tile.blocks(problem, batch), chunks_of(problem, tile)
    at_once = resident(tile)
    waves, rest = divmod(blocks, at_once * MULTIPROCESSORS)

    def whole(blocks: int) -> Simulated:
        """Of more than `most` chunks by the time of the last half of these."""
        found = _chunks(core, kernel, tile, blocks, min(chunks, most))
        if chunks <= most:
            return found
        before = _chunks(core, kernel, tile, blocks, most // 2)
        more = (chunks - most) / (most - most // 2)
        return Simulated(
            found.cycles + more * (found.cycles - before.cycles),
            {part: own + more * (own - before.parts[part]) for part, own in found.parts.items()},
        )

    runs = [(waves, whole(at_once))] if waves else []
    if rest:
        runs.append((1, whole(ceil(rest / MULTIPROCESSORS))))
    parts = {part: sum(times * one.parts[part] for times, one in runs) for part in runs[0][1].parts}
    return Simulated(sum(times * one.cycles for times, one in runs), parts)


def results(
    problem: Conv,
    batch: int,
    core: Core = GTX_480,
    assumption: Assumption | None = None,
    most: int = WHOLE_CHUNKS,
) -> Results:
    """Every step's simulation, with `assumption` changed, each made when it is first asked for."""
    kernels = {step.name: step.kernel for step in STEPS}
    changed = replace(core, **assumption.core) if assumption else core

    @cache
    def found(name: str) -> Simulated:
        kernel = kernels[name]
        if assumption and ("together" not in assumption.kernel or kernel.loads > Loads.PLAIN):
            kernel = replace(kernel, **assumption.kernel)
        return simulate(kernel, problem, batch, changed, most)

    return found


def step_rows(problem: Conv, batch: int) -> list[dict[str, Any]]:
    """A row a step: cycles, and a warp's mean cycles in each part."""
    found = results(problem, batch)
    return [
        {"step": step.name, "section": step.section, "cycles": round(found(step.name).cycles)}
        | {part: round(cycles) for part, cycles in found(step.name).parts.items()}
        for step in STEPS
    ]
