"""Timing model of the cuda-convnet2 paper's proposed engines on a multiprocessor.

The paper simulated the engines (GPGPU-Sim, GTX 480). Here its kernels are instruction listings of a
warp, run on the model of `warps` as stated and with one assumption changed at a time. Sums follow
the listings of figures 9 and 13, loads the C code of figures 26, 27, 29, 30, 32 and 33, and an
engine call figure 19. Code that no figure lists is counted as plain PTX: an element's address takes
three instructions (figure 9's add, mul, add), a comparison two and a jump, a loop's end two and a
jump. Code before the first chunk is not counted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from math import ceil
from statistics import fmean
from typing import Any

from lenetgpu.gpu.occupancy import PROCESSORS, Demand, residency
from lenetgpu.papers import data_of
from lenetgpu.papers.convnet2 import is_table_1, rows_of
from lenetgpu.papers.warps import Core, Instruction, Listing, Op, run
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2.ladder import Loads, Tile, ladder_tile

CONVERSION, IMAGES, FILTERS = "index conversion", "images", "filters"
COMPUTE, WRITE = "compute", "write"
PARTS = (CONVERSION, IMAGES, FILTERS, COMPUTE, WRITE)
_INDEX, _REDUCED_INDEX, _ADDRESS, _COMPARED = 2, 1, 3, 2

_WARPS_OF_THE_RUN = 240
_CACHED_PIXELS, _PAIRS, _FILTERS_PER_THREAD = 4, 12, 4
# Filter side of the run that figures 9 and 13 list, as their counts imply; Table 1 prints 32.
FILTER_SIDE = 5
Figure = tuple[tuple[str, int], ...]  # per line: instruction, "latency" in cycles over the run
FIGURE_9: Figure = tuple(map(tuple, data_of("convnet2")["figure 9"]))
FIGURE_13: Figure = tuple(map(tuple, data_of("convnet2")["figure 13"]))


def executions(rolled: bool, side: int = FILTER_SIDE) -> int:
    """Return how often the 240 warps of section 2.3 execute a line of figure 9 or 13."""
    chunks = -(-side * side // _CACHED_PIXELS)
    # figure 9's lines (`rolled`) are in loops over pairs and filters, 13's run once a chunk
    return _WARPS_OF_THE_RUN * chunks * (_PAIRS * _FILTERS_PER_THREAD if rolled else 1)


def line_cycles(figure: Figure, name: str = "", side: int = FILTER_SIDE) -> list[float]:
    """Return cycles between issues of a warp, for lines of instruction `name` or all lines."""
    count = executions(figure is FIGURE_9, side)
    return [latency / count for line, latency in figure if name in ("", line)]


# GPGPU-Sim, configs/GTX480/gpgpusim.config: ptx_opcode_latency_int and _fp (add 4, mad 5, div 145),
# gpgpu_smem_latency 3, num_sched_per_core 2, one memory unit, il1 4:128:4 with 8-byte instructions
_ADD, _MAD, _DIVIDE, _SHARED = 4, 5, 145, 3
# Cycles of an instruction in addition to its own latency, from figure 9's chain of add, mul, add.
_PIPELINE = round(fmean(line_cycles(FIGURE_9, "add")[:2] + line_cycles(FIGURE_9, "mul"))) - _ADD
_LOCAL = round(fmean(line_cycles(FIGURE_9, "ld.local")))
# Cycles of fetch, decode and issue after a jump, which discards prefetched instructions.
_REFILL = 4
_FLIT, _LINE = 32, 128
# Latencies from figure 9 and the simulator's configuration. A load from global memory is assumed to
# cost as much as figure 9's from local memory, since both miss the first-level cache.
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


Sums = Enum("Sums", "ROLLED UNROLLED INNER OUTER")  # of a chunk: sections 3.1.1, 3.1.2, 3.2 and 3.3


@dataclass(frozen=True)
class Kernel:
    """A modelled step of the paper."""

    sums: Sums
    loads: Loads
    converter: bool = False  # section 4.3's instruction
    engines_hold: bool = False  # only one engine reads shared memory at a time; in the paper all do
    together: int = 1  # loads in flight before the first is stored; one in figures 26 to 30


def _compared(to: Listing, *reads: int) -> None:
    to.emit(Op.BRANCH, to.chain(_COMPARED, *reads))


def _element(to: Listing, index: int, op: Op, *reads: int, lines: int = 1) -> int:
    """Emit the address computation of an array element and its access."""
    return to.emit(op, to.chain(_ADDRESS, index), *reads, lines=lines)


def _load(to: Listing, kernel: Kernel, count: int, lines: int, checked: bool) -> None:
    """Load `count` floats from global to shared memory: figure 26, with 29's check if `checked`."""

    def batch(_: int) -> None:
        loaded = []
        for _ in range(together):
            if checked:
                _compared(to)
            if kernel.loads is Loads.PLAIN:
                first, second = to.emit(Op.ARITHMETIC), to.emit(Op.ARITHMETIC)
                index = to.chain(_INDEX, first, second)
            else:
                index = to.chain(_REDUCED_INDEX)
            loaded.append((index, _element(to, index, Op.GLOBAL, lines=lines)))
        for index, value in loaded:
            _element(to, index, Op.STORE, value)

    together = next(n for n in range(min(kernel.together, count), 0, -1) if count % n == 0)
    to.repeat(count // together, batch)


def _converted(to: Listing, kernel: Kernel) -> None:
    """Convert a filter pixel to an image pixel: figure 32 lines 2 to 7, or figure 33."""
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

    def pixel(_: int) -> None:
        _compared(to)
        _load(
            to, kernel, tile.cached_channels * (tile.filters // columns), -(-32 // columns), False
        )

    to.repeat(-(-tile.cached_pixels * columns // threads), pixel)


def _rolled(to: Listing, kernel: Kernel, tile: Tile) -> None:
    """Emit figure 9's lines, one (pixel, channel) pair and filter at a time."""

    def each_filter(images: list[int]) -> None:
        weight = _element(to, to.emit(Op.ARITHMETIC), Op.SHARED)
        for image in images:
            to.emit(Op.STORE, to.emit(Op.MAD, image, weight, to.emit(Op.LOCAL)))
        to.emit(Op.ARITHMETIC)

    def pair(_: int) -> None:
        address = to.chain(_ADDRESS, to.chain(1))
        images = [to.emit(Op.SHARED, address) for _ in range(tile.images_per_thread)]
        to.repeat(tile.filters_per_thread, lambda _: each_filter(images))

    to.repeat(tile.cached_pixels * tile.cached_channels, pair)


def _unrolled(to: Listing, kernel: Kernel, tile: Tile) -> None:
    """Emit figure 13's lines: each sum is moved, multiplied and added to, and moved back."""
    for _ in range(tile.cached_pixels * tile.cached_channels):
        images: list[int] = []
        for f in range(tile.filters_per_thread):
            weight = -1
            for g in range(tile.images_per_thread):
                if f == 0:
                    images.append(to.emit(Op.SHARED))
                if g == 0:
                    weight = to.emit(Op.SHARED)
                total = to.emit(Op.MAD, images[g], weight, to.emit(Op.ARITHMETIC))
                to.emit(Op.ARITHMETIC, total)


def _inner(to: Listing, kernel: Kernel, tile: Tile) -> None:
    """Emit figure 19: filter address, image address, result read, then added as in figure 13."""
    cycles = 2 * tile.cached_pixels * tile.cached_channels  # 2 * N for N pairs (section 3.2)
    held = cycles if kernel.engines_hold else None
    for _ in range(tile.filters_per_thread):
        to.emit(Op.STORE, to.emit(Op.ARITHMETIC))
        for _ in range(tile.images_per_thread):
            address = to.emit(Op.STORE, to.emit(Op.ARITHMETIC))
            partial = to.emit(Op.ENGINE, address, cycles=cycles, held=held)
            to.emit(Op.ARITHMETIC, to.emit(Op.ARITHMETIC, partial, to.emit(Op.ARITHMETIC)))


def _outer(to: Listing, kernel: Kernel, tile: Tile) -> None:
    """Emit two stored addresses, then one call a chunk; the sums stay in the engine."""
    # L + 2 * N - 2 cycles (section 3.3) for L images and N elements: a chunk's of the filters
    elements = tile.cached_pixels * tile.cached_channels * tile.filters_per_thread
    cycles = tile.images_per_thread + 2 * elements - 2
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
    """Return a warp's program: per chunk loads, barrier, sums, barrier; then output stores."""
    to = Listing()
    on_cores = {Sums.ROLLED: _rolled, Sums.UNROLLED: _unrolled}
    emit_sums = on_cores.get(kernel.sums) or (_inner if kernel.sums is Sums.INNER else _outer)

    def chunk(_: int) -> None:
        _images(to, kernel, tile)
        _filters(to, kernel, tile)
        to.emit(Op.BARRIER)
        to.part = COMPUTE
        emit_sums(to, kernel, tile)
        to.emit(Op.BARRIER)

    to.repeat(chunks, chunk)
    _write(to, kernel, tile)
    return to.program


def chunks_of(problem: Conv, tile: Tile) -> int:
    """Return the chunks of a block, each `cached_pixels` filter pixels x `cached_channels`."""
    return -(-problem.R * problem.S // tile.cached_pixels) * -(-problem.C // tile.cached_channels)


# Section 2.3: SMs of a GTX 480; compute capability 2.0; registers a thread from its compiler.
MULTIPROCESSORS, FERMI, REGISTERS = 15, 20, 28
# Shared bytes of a block for arguments: 3,900 in section 2.3, of which the tile takes 3,840.
_ARGUMENTS = 60
# Maximum simulated chunks; the time of further chunks is extrapolated.
WHOLE_CHUNKS = 7


@dataclass(frozen=True)
class Simulated:
    """A step on the whole GPU: `cycles`, and a warp's mean cycles in each part."""

    cycles: float
    parts: dict[str, float]

    def share(self, part: str, among: Sequence[str] = PARTS) -> float:
        """Return the cycles of a part over those of the parts `among`."""
        return self.parts[part] / sum(self.parts[name] for name in among)

    def plus(self, times: float, other: "Simulated") -> "Simulated":
        """Return the sum of this result and `times` x `other`."""
        parts = {part: self.parts.get(part, 0) + times * n for part, n in other.parts.items()}
        return Simulated(self.cycles + times * other.cycles, parts)


Results = Callable[[str], Simulated]  # Maps a step's name to its result.


@dataclass(frozen=True)
class Step:
    """One simulated step of the paper."""

    name: str
    section: str
    kernel: Kernel


# Section 4's steps have the inner product engine: "after improvements" (figure 25).
STEPS = (
    Step("rolled", "3.1.1", Kernel(Sums.ROLLED, Loads.PLAIN)),
    Step("unrolled", "3.1.2", Kernel(Sums.UNROLLED, Loads.PLAIN)),
    Step("inner product engine", "3.2", Kernel(Sums.INNER, Loads.PLAIN)),
    Step("outer product engine", "3.3", Kernel(Sums.OUTER, Loads.PLAIN)),
    Step("strength reduced", "4.1", Kernel(Sums.INNER, Loads.REDUCED)),
    Step("conditionals extracted", "4.2", Kernel(Sums.INNER, Loads.HOISTED)),
    Step("index converter", "4.3", Kernel(Sums.INNER, Loads.HOISTED, converter=True)),
)


@dataclass(frozen=True)
class Assumption:
    """One changed assumption of the model: fields of the core and of the kernels."""

    name: str
    what: str
    core: dict[str, Any] = field(default_factory=dict)
    kernel: dict[str, Any] = field(default_factory=dict)


CHANGED = (
    Assumption("first cache hit", "a global load takes as long as a shared one",
               core={"far": GTX_480.shared}),
    Assumption("four loads under way", "from strength reduction on, four loads are in flight "
               "before the first is stored", kernel={"together": 4}),
    Assumption("instructions held", "no instruction fetch ever misses", core={"fetch": 0}),
    Assumption("one reader at a time", "an engine occupies the memory unit while it reads shared "
               "memory", kernel={"engines_hold": True}),
    Assumption("one scheduler", "one instruction a cycle instead of two", core={"schedulers": 1}),
)  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """A figure of the paper and the model's value for it."""

    name: str
    section: str
    unit: str  # cycles, share or times
    printed: float | None  # the paper's value, None if the paper only plots it
    step: str
    before: str | None = None  # the step that it is compared with
    part: str = ""  # of the step's cycles
    among: Sequence[str] = PARTS  # parts that a share refers to
    reproduced: bool = False  # the model agrees with the paper at Table 1
    remark: str = ""

    def of(self, results: Results) -> float:
        """Return the model's value: cycles, a part's share, or a comparison with `before`."""

        def cycles(step: str) -> float:
            return results(step).parts[self.part] if self.part else results(step).cycles

        if self.before is None:
            share = self.unit == "share"
            return results(self.step).share(self.part, self.among) if share else cycles(self.step)
        times = cycles(self.before) / cycles(self.step)
        return times if self.unit == "times" else 1 - cycles(self.step) / cycles(self.before)


# Largest relative difference from the paper's figure that still agrees, by unit.
WITHIN = {"cycles": 0.2, "share": 0.5, "times": 0.2}
MOST_APART = 0.05  # Largest absolute difference of a share that still agrees.
CLAIMS = rows_of("claims", Claim)


def agrees(claim: Claim, value: float) -> bool | None:
    """Return True if `value` agrees with the paper, None if the paper has no number."""
    if claim.printed is None:
        return None
    apart = abs(value - claim.printed)
    near = apart <= WITHIN[claim.unit] * claim.printed
    return near and (claim.unit != "share" or apart <= MOST_APART)


def claim_rows(problem: Conv, batch: int) -> Iterator[dict[str, Any]]:
    """Yield a row per figure; `paper` and `agrees` are None if the paper has no number for it."""
    at_table_1 = is_table_1(problem, batch)
    stated = results(problem, batch)
    changed = {change.name: results(problem, batch, change) for change in CHANGED}
    for claim in CLAIMS:
        value = claim.of(stated)
        yield {
            "figure": claim.name,
            **{name: getattr(claim, name) for name in ("section", "unit", "remark")},
            "paper": claim.printed if at_table_1 else None,
            "model": value,
            "agrees": agrees(claim, value) if at_table_1 else None,
            "changed": {name: claim.of(under) for name, under in changed.items()},
        }


def blocks_per_sm(tile: Tile) -> int:
    """Return the blocks that fit a GTX 480's multiprocessor: equations (2) to (4) of the paper."""
    depth = tile.cached_pixels * tile.cached_channels
    shared = 4 * depth * (tile.images + tile.filters) + _ARGUMENTS
    demand = Demand(REGISTERS, tile.threads_x * tile.threads_y, shared)
    return residency(demand, PROCESSORS[FERMI]).blocks


@cache
def _chunks(core: Core, kernel: Kernel, tile: Tile, blocks: int, chunks: int) -> Simulated:
    """Simulate `blocks` blocks of `chunks` chunks on one multiprocessor."""
    warps = ceil(tile.threads_x * tile.threads_y / 32)
    timing = run(core, listing(kernel, tile, chunks), blocks, warps)
    parts = {part: cycles / timing.warps for part, cycles in timing.parts.items()}
    return Simulated(timing.cycles, parts)


def simulate(
    kernel: Kernel, problem: Conv, batch: int, core: Core = GTX_480, most: int = WHOLE_CHUNKS
) -> Simulated:
    """Simulate `kernel` on `batch` images of `problem`: full waves of blocks, then the rest."""
    tile = ladder_tile(problem, batch)  # also for an engine, which holds the same number of sums
    blocks, chunks = tile.blocks(problem, batch), chunks_of(problem, tile)
    concurrent = blocks_per_sm(tile)
    waves, remaining = divmod(blocks, concurrent * MULTIPROCESSORS)

    def wave(blocks: int) -> Simulated:
        """Simulate blocks; beyond `most` chunks, extrapolate linearly from the second half."""
        last = _chunks(core, kernel, tile, blocks, min(chunks, most))
        if chunks <= most:
            return last
        half = _chunks(core, kernel, tile, blocks, most // 2)
        return last.plus((chunks - most) / (most - most // 2), last.plus(-1, half))

    full = wave(concurrent) if waves else Simulated(0, {})
    total = Simulated(0, {}).plus(waves, full)
    return total.plus(1, wave(ceil(remaining / MULTIPROCESSORS))) if remaining else total


def results(
    problem: Conv, batch: int, assumption: Assumption | None = None, most: int = WHOLE_CHUNKS
) -> Results:
    """Return the simulations of all steps, with `assumption` changed; each runs on first use."""
    kernels = {step.name: step.kernel for step in STEPS}
    core = replace(GTX_480, **assumption.core) if assumption else GTX_480

    @cache
    def result(name: str) -> Simulated:
        kernel = kernels[name]
        if assumption and ("together" not in assumption.kernel or kernel.loads > Loads.PLAIN):
            kernel = replace(kernel, **assumption.kernel)
        return simulate(kernel, problem, batch, core, most)

    return result


def step_rows(problem: Conv, batch: int) -> list[dict[str, Any]]:
    """Return a row per step: cycles, and a warp's mean cycles in each part."""
    result = results(problem, batch)
    return [
        {"step": step.name, "section": step.section, "cycles": round(result(step.name).cycles)}
        | {part: round(cycles) for part, cycles in result(step.name).parts.items()}
        for step in STEPS
    ]
