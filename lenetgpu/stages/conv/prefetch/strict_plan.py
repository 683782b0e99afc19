"""Section 3.2 of the Pascal paper to the letter: S, W'x, M' and W'y, and who gets which part.

A data set is S bytes of each of M' filters, as they lie in memory, and W'y lines of W'x pixels. The
paper fetches W'x pixels of maps of any width, so W'x runs on from line to line of the (padded) map.
Sizes are bytes; S = 4 x `taps`, W'x = `columns` pixels, M' = `filters`, W'y = `lines`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from lenetgpu.gpu.machines import FLOAT, WARP, Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.single_plan import round_up
from lenetgpu.stages.registry import Rows

DIVISIONS = {"channels": "(b)", "filters": "(c)", "maps": "(d)", "both": "(e)"}
"""Section 2.3's divisions: what the multiprocessors share out, and its letter in Fig. 2."""
THREADS = 512
BLOCKS_EACH = 2
SEGMENTS = (32, 64)
FILTERS_AT_ONCE = 64
COLUMNS_AT_ONCE = 128
_MOST_PIXELS = 4  # of a thread
_FEW_SUMS = 32  # of a thread: up to there M' may exceed what N_FMA asks for
_OTHER_REGISTERS = 64  # of a thread, beside its sums, the next round and what it multiplies
_MORE_REGISTERS = {"channels": 24, "maps": 16}  # by division
REGISTERS = 128
"""The paper's limit of a thread: what one block of 512 leaves it of 65,536, two leave it half."""


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


@dataclass(frozen=True)
class StrictTile:
    """What the kernel is compiled for; `multiprocessors` x `each` blocks of `threads`.

    `asynchronous` copies past the registers, `packed` filters lie round by round, and `spread`
    gives each tile a block: departures from the paper.
    """

    division: str
    taps: int
    columns: int
    filters: int
    multiprocessors: int
    each: int = BLOCKS_EACH
    threads: int = THREADS
    cached: bool = False
    asynchronous: bool = False
    packed: bool = False
    spread: bool = False

    @property
    def groups(self) -> int:
        """Groups of threads that share the filters of the same pixels."""
        return max(1, self.threads // self.columns)

    @property
    def sums(self) -> int:
        """Sums of a thread: its pixels x its filters."""
        return max(1, self.columns // self.threads) * (self.filters // self.groups)

    def registers(self, problem: Conv) -> int:
        """Registers of a thread, about: its sums, its share of the next round, four taps."""
        pixels = max(1, self.columns // self.threads)
        held = ceil(self.filters / max(1, self.threads // self.taps))
        held += ceil(self.lines(problem) / self.groups) * (pixels + (problem.S > 1))
        others = _OTHER_REGISTERS + _MORE_REGISTERS.get(self.division, 0)
        return self.sums + held + 4 * (pixels + 1) + others

    def lines(self, problem: Conv) -> int:
        """W'y: lines of the map that S bytes of a filter meet."""
        return ceil(self.taps / problem.S)

    def pitch(self, problem: Conv) -> int:
        """Floats of a line of a data set: W'x pixels, and what the last one's filter row meets."""
        return round_up(self.columns + problem.S - 1, 4)

    def channels(self, problem: Conv) -> int:
        """Channels of a multiprocessor: C' = C / N_sm where they are divided."""
        if self.division == "channels":
            return ceil(problem.C / self.multiprocessors)
        return problem.C

    def rounds(self, problem: Conv) -> int:
        """Data sets of a tile."""
        return ceil(self.channels(problem) * problem.R * problem.S / self.taps)

    def positions(self, problem: Conv) -> int:
        """Pixels of the padded map from its first output to its last, running on over lines."""
        return (problem.OH - 1) * (problem.W + 2 * problem.pad) + problem.OW

    def part_lines(self, problem: Conv) -> int:
        """Lines of the map that a multiprocessor has: all where they are not divided."""
        height = problem.H + 2 * problem.pad
        return ceil(height / self.multiprocessors) if self.division == "maps" else height

    def segments(self, problem: Conv) -> int:
        """Runs of W'x pixels of an image, or of one multiprocessor's lines of it."""
        part = self.part_lines(problem) * (problem.W + 2 * problem.pad)
        return ceil(min(part, self.positions(problem)) / self.columns)

    def tiles(self, problem: Conv) -> int:
        """Tiles of one image: runs of pixels times groups of filters, of all multiprocessors."""
        parts = ceil(problem.OH / self.part_lines(problem))
        return parts * self.segments(problem) * ceil(problem.M / self.filters)

    def shared(self, problem: Conv) -> int:
        """Bytes of shared memory of a block: two data sets, and a line that both meet.

        What `cached` keeps is there whole.
        """
        rounds, lines = self.rounds(problem), self.lines(problem)
        sets = rounds if self.cached and self.division == "filters" else 2
        held = 2 * lines + 1
        if self.cached and self.division == "maps":
            held = max(held, self.channels(problem) * problem.R)
        return FLOAT * (sets * self.taps * self.filters + held * self.pitch(problem))

    def fits(self, problem: Conv, machine: Machine) -> bool:
        """Whether a multiprocessor's memory holds its blocks, and a thread its registers.

        A segment's floats, and the pixels beyond W'x, have a thread each.
        """
        shared = self.shared(problem)
        if max(self.taps, problem.S - 1) > self.threads or self.columns < problem.S:
            return False
        if shared > machine.block_bytes or self.registers(problem) > REGISTERS:
            return False
        return machine.resident(self.threads, 0, shared) >= self.each


@dataclass(frozen=True)
class StrictPlan:
    """A tile for a problem on a machine, and whether it is what section 3.2 asks for."""

    problem: Conv
    machine: Machine
    tile: StrictTile

    @property
    def least_filters(self) -> int:
        """M' >= N_FMA x 4 / (S x W'x)."""
        segment = FLOAT * self.tile.taps
        return ceil(self.machine.n_fma * FLOAT / (segment * self.tile.columns))

    @property
    def enough(self) -> bool:
        """Whether a data set has the N_FMA multiply-adds."""
        return self.tile.filters >= self.least_filters

    @property
    def data_set(self) -> int:
        """S x M' + W'y x W'x x 4."""
        tile = self.tile
        return FLOAT * (tile.taps * tile.filters + tile.lines(self.problem) * tile.columns)

    @property
    def halves(self) -> bool:
        """Whether a data set is at most half of the shared memory."""
        return self.data_set <= self.machine.shared_bytes // 2

    @property
    def whole_segments(self) -> bool:
        """Whether S, and where each filter begins, are multiples of 32 bytes."""
        each = FLOAT * self.problem.C * self.problem.R * self.problem.S
        return FLOAT * self.tile.taps % 32 == 0 and each % 32 == 0

    @property
    def useful(self) -> float:
        """Share of the tiles' multiply-adds that belong to an output."""
        p, tile = self.problem, self.tile
        return p.OH * p.OW * p.M / (tile.tiles(p) * tile.columns * tile.filters)


def _least(machine: Machine, taps: int, columns: int) -> int:
    return ceil(machine.n_fma / (taps * columns))


def _segment(machine: Machine, columns: int) -> int:
    """The smaller S of 32 and 64 with which 64 filters hide the latency, else 64: its floats."""
    enough = (s for s in SEGMENTS if _least(machine, s // FLOAT, columns) <= FILTERS_AT_ONCE)
    return next(enough, SEGMENTS[-1]) // FLOAT


def _columns(tile: StrictTile, problem: Conv, machine: Machine, filters: int) -> int:
    """W'x: 128 pixels, doubled while that many `filters` do not have N_FMA multiply-adds.

    No more than the map's, nor a thread's most. Lines of one multiprocessor are taken whole.
    """
    most = min(_MOST_PIXELS * tile.threads, _power_of_two(tile.positions(problem)))
    if tile.division == "maps":
        part = tile.part_lines(problem) * (problem.W + 2 * problem.pad)
        return max(WARP, min(most, tile.threads, _power_of_two(part)))
    columns = tile.columns
    while columns < most and _least(machine, tile.taps, columns) > filters:
        columns *= 2
    return columns


def _filters(tile: StrictTile, problem: Conv, machine: Machine) -> int:
    """M': at least 64 and what N_FMA asks for, no more than M or the registers hold.

    Where a thread has few sums, with as few of them without a filter as can be.
    """
    groups = tile.groups
    if tile.division == "filters":
        return round_up(ceil(problem.M / tile.multiprocessors), groups)
    wanted = max(FILTERS_AT_ONCE, _least(machine, tile.taps, tile.columns))
    every = range(groups, round_up(problem.M, groups) + 1, groups)
    held = [m for m in every if replace(tile, filters=m).registers(problem) <= REGISTERS]
    enough = [m for m in held if m >= wanted]
    if not enough:
        return max(held, default=groups)
    few = [m for m in enough if replace(tile, filters=m).sums <= _FEW_SUMS]
    return min(few, key=lambda m: (round_up(problem.M, m), m), default=min(enough))


def _fitting(tile: StrictTile, problem: Conv, machine: Machine) -> StrictTile | None:
    """`tile` with W'x, then M', halved until two blocks fit; None where the least does not.

    M' = M / N_sm stays where the filters are divided.
    """
    while not tile.fits(problem, machine):
        kept = tile.division == "filters"
        if kept or tile.columns > COLUMNS_AT_ONCE or tile.filters == tile.groups:
            if tile.columns == WARP:
                return None
            tile = replace(tile, columns=tile.columns // 2)
        filters = ceil(problem.M / tile.multiprocessors) if kept else ceil(tile.filters / 2)
        tile = replace(tile, filters=round_up(filters, tile.groups))
    return tile


@cache
def strict_plan(
    problem: Conv, machine: Machine, division: str = "both", segment: int | None = None
) -> StrictPlan | None:
    """Section 3.2 for one `division` of section 2.3; None where two blocks do not fit.

    `segment` is S in bytes, by default 32 or 64 as `_segment` chooses.
    """
    columns = COLUMNS_AT_ONCE
    taps = segment // FLOAT if segment else _segment(machine, columns)
    tile = StrictTile(division, taps, columns, 1, machine.multiprocessors)
    shared_out = tile.multiprocessors if division == "filters" else 1
    columns = _columns(tile, problem, machine, ceil(problem.M / shared_out))
    tile = replace(tile, columns=columns)
    fitting = _fitting(replace(tile, filters=_filters(tile, problem, machine)), problem, machine)
    if fitting is None:
        return None
    tile = fitting
    cached = replace(tile, cached=True)
    alone = division == "filters" or (division == "maps" and tile.segments(problem) == 1)
    if alone and cached.fits(problem, machine):
        tile = cached
    return StrictPlan(problem, machine, tile)


def filled(plan: StrictPlan) -> StrictPlan:
    """The plan with M', then W'x, halved until there is a tile for each block: below N_FMA."""
    tile, problem = plan.tile, plan.problem
    wanted = tile.multiprocessors * tile.each
    while tile.tiles(problem) < wanted:
        fewer = round_up(tile.filters // 2, tile.groups)
        if fewer < tile.filters and fewer // tile.groups >= 4:
            tile = replace(tile, filters=fewer)
        elif tile.columns > WARP:
            narrow = replace(tile, columns=tile.columns // 2)
            tile = replace(narrow, filters=round_up(tile.filters, narrow.groups))
        else:
            break
    return replace(plan, tile=tile)


def met(holds: bool) -> str:
    """Return the verdict on a constraint."""
    return "met" if holds else "NOT met"


def plan_rows(plan: StrictPlan) -> Rows:
    """(label, value) rows: the division, section 3.2's values, each constraint and its verdict."""
    tile, problem, machine = plan.tile, plan.problem, plan.machine
    segment, lines = FLOAT * tile.taps, tile.lines(problem)
    blocks = tile.tiles(problem) if tile.spread else tile.multiprocessors * tile.each
    rows = [
        ("division", f"{DIVISIONS[tile.division]}: {tile.division} divided (section 2.3)"),
        ("S", f"{segment} bytes of each filter, filters (m, c, r, s)"),
        ("W'x", f"{tile.columns} pixels"),
        ("M'", f"{tile.filters} filters"),
        ("W'y", f"{lines} lines = ceil(S / 4K)"),
        (
            "M' >= N_FMA x 4 / (S x W'x)",
            f"{plan.least_filters:,}: {met(plan.enough)}, "
            f"{tile.taps * tile.columns * tile.filters:,} multiply-adds a data set",
        ),
        (
            "S x M' + 4 x W'y x W'x <= S_shared / 2",
            f"{plan.data_set:,} of {machine.shared_bytes // 2:,} bytes: {met(plan.halves)}",
        ),
        (
            "S and filters multiples of 32 bytes",
            f"{segment} and {FLOAT * problem.C * problem.R * problem.S:,}: "
            f"{met(plan.whole_segments)}",
        ),
        ("blocks", f"{blocks} of {tile.threads} threads, {tile.shared(problem):,} bytes each"),
        ("thread", f"{tile.sums} sums; {tile.rounds(problem)} data sets a tile"),
        ("tiles", f"{tile.tiles(problem):,} an image, {plan.useful:.0%} of their sums wanted"),
    ]
    if tile.division in ("filters", "maps"):
        kept = "kept whole in shared memory" if tile.cached else "fetched again for each tile"
        rows.append((f"{tile.division} of a multiprocessor", kept))
    return rows
