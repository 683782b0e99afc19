"""Work division: the Pascal paper's sections 2.2 to 3.2, and our own tiles derived from them.

The paper's filters are K x K, here R x S; its map is the padded map.

A data set of several channels is S bytes of each of M' filters, in their memory layout, and W'y
lines of W'x pixels, which continue from one line of the map to the next. S = 4 x `elements`, W'x =
`columns` pixels, M' = `filters`, W'y = `lines`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product as pairs
from math import ceil, hypot
from pathlib import Path
from typing import Any

from lenetgpu.gpu.machines import FLOAT, WARP, Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.registry import Rows

# Outputs per thread: consecutive rows x neighbours x maps.
_OUTPUTS = (
    (1, 1, 4), (2, 1, 4), (4, 1, 4), (2, 1, 8), (4, 1, 8), (8, 1, 4),
    (1, 2, 4), (2, 2, 4), (4, 2, 4), (8, 2, 4),
)  # fmt: skip
_STRIPS = (1, 2, 4, 8, 16)
_THREADS = (128, 256)
_BLOCKS_EACH = 2
_CACHED = 64 << 20  # bytes of output that an L2 cache may absorb
_SECTOR, _SPLIT_STORES = 8, 1.3  # floats; cost factor of lines that start within a sector
_MOST_REGISTERS = 128
_UNROLLED_PAIRS, _ROLLED = 9, 1.3  # most elements unrolled for pairs; cost factor of a loop
_WIDEST_WINDOW = 26
Bounds = tuple[int | None, int]


def _round_up(value: int, step: int) -> int:
    return ceil(value / step) * step


@dataclass(frozen=True)
class SinglePlan:
    """Section 3.1 for one map: P and Q, data and operations of both methods, and the choice."""

    p_bounds: Bounds  # the lower one is None if the range is empty
    q_bounds: Bounds
    p: int
    q: int
    d1: int
    d2: int
    th1: int
    th2: int
    division: int  # method 1 divides filters among the multiprocessors, 2 the map
    pieces: int  # P of the map by method 1, Q of the filters by method 2
    hides: bool


def plan_single(problem: Conv, machine: Machine) -> SinglePlan:
    """Evaluate steps 1 to 4 of section 3.1, equations (3) to (9), for this device."""
    elements, halo = problem.R * problem.S, problem.R - 1
    height, width = problem.padded
    filters = ceil(problem.M / machine.multiprocessors)
    lines = ceil(height / machine.multiprocessors)

    def bounds(data: int, resident: int, operations: int, most: int) -> Bounds:
        free = machine.shared_bytes - FLOAT * resident
        least = max(1, ceil(FLOAT * data / free)) if free > 0 else None
        return least, min(operations // machine.n_fma, most)

    def smallest(lower: int | None, upper: int) -> int:
        return lower if lower is not None and lower <= upper else 1

    def part(lines: int, filters: int) -> tuple[int, int]:
        data = FLOAT * (elements * filters + (lines + halo) * width)
        return data, elements * filters * lines * width

    of_map = elements * filters * height * width
    p_bounds = bounds(height * width, elements * filters + halo * width, of_map, height)
    of_filters = elements * problem.M * lines * width
    q_bounds = bounds(problem.M * elements, width * (lines + halo), of_filters, problem.M)
    p, q = smallest(*p_bounds), smallest(*q_bounds)
    d1, th1 = part(ceil(height / p), filters)
    d2, th2 = part(lines, ceil(problem.M / q))
    division, pieces, operations = (1, p, th1) if d1 < d2 else (2, q, th2)
    hides = operations >= machine.n_fma
    return SinglePlan(p_bounds, q_bounds, p, q, d1, d2, th1, th2, division, pieces, hides)


@dataclass(frozen=True)
class SingleTile:
    """A block of `rows` x `filters` that streams one method's operand in `pieces`."""

    method: int
    rows: int
    filters: int
    pieces: int
    row_parts: int  # row_parts x filter_parts blocks per image
    filter_parts: int
    px: int  # px x pc outputs of fm maps per thread
    pc: int
    fm: int
    threads: int

    def shared(self, problem: Conv) -> int:
        """Return the shared memory in bytes; the streamed operand is double-buffered."""
        left = _round_up(problem.pad, 4)
        pitch = _round_up(left + problem.W + problem.pad, 4)
        lines = (self.rows - 1) * problem.stride + problem.R
        maps = 2 if self.method == 1 and self.pieces > 1 else 1
        sets = 2 if self.method == 2 and self.pieces > 1 else 1
        return FLOAT * (maps * lines * pitch + sets * problem.R * problem.S * self.filters)


def _candidates(
    problem: Conv, plan: SinglePlan, machine: Machine, streams: bool
) -> Iterator[SingleTile]:
    """Yield tiles no larger than the plan's pieces, with enough blocks for every multiprocessor."""
    most_rows = ceil(problem.OH / plan.p) if plan.division == 1 else problem.OH
    most_filters = ceil(problem.M / plan.q) if plan.division == 2 else problem.M
    in_pairs = problem.stride == 1 and problem.OW % 2 == problem.pad % 2 == 0
    for (px, pc, fm), strips in pairs(_OUTPUTS, _STRIPS):
        rows = strips * px
        too_wide = px > 1 and (px - 1) * problem.stride + problem.R > _WIDEST_WINDOW
        too_high = strips > 1 and rows >= most_rows + px
        if too_wide or too_high or (pc > 1 and not in_pairs):
            continue
        for blocks, threads in pairs((2, 3, 4), _THREADS):
            groups = max(1, round(blocks * machine.multiprocessors / ceil(problem.OH / rows)))
            filters = _round_up(min(ceil(problem.M / groups), most_filters), fm)
            parts = ceil(problem.OH / rows), ceil(problem.M / filters)
            tile = SingleTile(plan.division, rows, filters, 1, *parts, px, pc, fm, threads)
            yield _stream(tile, machine) if streams else tile


def _stream(tile: SingleTile, machine: Machine) -> SingleTile:
    """Merge the tile's parts into at least two pieces per block, so that all blocks run at once."""
    blocks = _BLOCKS_EACH * machine.multiprocessors
    pieces = max(2, tile.row_parts * tile.filter_parts // blocks)
    if tile.method == 1:
        return replace(tile, pieces=pieces, row_parts=ceil(tile.row_parts / pieces))
    return replace(tile, pieces=pieces, filter_parts=ceil(tile.filter_parts / pieces))


def _cycles(tile: SingleTile, problem: Conv, machine: Machine) -> float:
    """Estimate the cycles from instructions issued, concurrent blocks and the initial load."""
    shared, sums = tile.shared(problem), tile.px * tile.pc * tile.fm
    window = (tile.px - 1) * problem.stride + problem.R
    registers = 40 + sums + window * (problem.S + 1 if tile.pc > 1 else 1)
    resident = machine.blocks_per_sm(tile.threads, min(_MOST_REGISTERS, registers), shared)
    if resident < 1:
        return float("inf")
    on_one = ceil(tile.row_parts * tile.filter_parts / machine.multiprocessors)
    at_once = min(on_one, resident)
    lanes = _round_up(tile.rows // tile.px * problem.OW // tile.pc, WARP)
    items = ceil(lanes * (tile.filters // tile.fm) / tile.threads)
    multiply = problem.R * problem.S * (sums + max(1.0, tile.fm / 4))
    multiply += window * (problem.S if tile.pc == 1 else (problem.S + 1) / 2)
    if tile.pc > 1 and problem.R * problem.S > _UNROLLED_PAIRS:
        multiply *= _ROLLED
    work = tile.pieces * items * (multiply + (5 + tile.pc) * tile.px * tile.fm + 50)
    load = shared / tile.threads / FLOAT * 1.2
    warps = at_once * tile.threads / WARP
    busy = ceil(on_one / at_once) * (max(work * warps / 4, 2 * work + machine.latency) + load)
    written = FLOAT * problem.M * problem.OH * problem.OW
    if written <= _CACHED:
        return busy
    split = _SPLIT_STORES if tile.pc == 1 and problem.OW % _SECTOR else 1
    return hypot(busy, split * written / machine.bytes_per_clock)


@cache
def single_tile(problem: Conv, machine: Machine) -> SingleTile | None:
    """Return the cheapest tile that fits the device, if any; it streams pieces if two fit."""
    plan = plan_single(problem, machine)
    for streams in (True, False) if plan.pieces > 1 else (False,):
        tiles = _candidates(problem, plan, machine, streams)
        best = min(tiles, key=lambda tile: _cycles(tile, problem, machine))
        if _cycles(best, problem, machine) < float("inf"):
            return best
    return None


# What section 2.3 divides among the multiprocessors -> its letter in Fig. 2
DIVISIONS = {"channels": "(b)", "filters": "(c)", "maps": "(d)", "both": "(e)"}
THREADS = 512
BLOCKS_EACH = 2
SEGMENTS = (32, 64)
FILTERS_AT_ONCE = 64
COLUMNS_AT_ONCE = 128
_MOST_PIXELS = 4  # per thread
_FEW_SUMS = 32  # per thread; up to this number M' may exceed what N_FMA requires
_OTHER_REGISTERS = 64  # per thread, without sums, the next round and operands
_MORE_REGISTERS = {"channels": 24, "maps": 16}  # by division
# per thread, the paper's limit: one block of 512 leaves 128 of 65,536, two blocks leave half
REGISTERS = 128


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


@dataclass(frozen=True)
class StrictTile:
    """Parameters of a kernel with `multiprocessors` x `each` blocks of `threads` threads."""

    division: str
    elements: int
    columns: int
    filters: int
    multiprocessors: int
    each: int = BLOCKS_EACH
    threads: int = THREADS
    cached: bool = False
    asynchronous: bool = False  # departs from the paper: copies past the registers
    packed: bool = False  # departs from the paper: filters packed by rounds
    spread: bool = False  # departs from the paper: a block per tile

    @property
    def groups(self) -> int:
        """Groups of threads that compute different filters of the same pixels."""
        return max(1, self.threads // self.columns)

    @property
    def _pixels(self) -> int:
        return max(1, self.columns // self.threads)

    @property
    def sums(self) -> int:
        """Sums per thread: its pixels x its filters."""
        return self._pixels * (self.filters // self.groups)

    def registers(self, problem: Conv) -> int:
        """Estimate the registers per thread: sums, its share of the next round, four weights."""
        fetched = ceil(self.filters / max(1, self.threads // self.elements))
        fetched += ceil(self.lines(problem) / self.groups) * (self._pixels + (problem.S > 1))
        others = _OTHER_REGISTERS + _MORE_REGISTERS.get(self.division, 0)
        return self.sums + fetched + 4 * (self._pixels + 1) + others

    def lines(self, problem: Conv) -> int:
        """Return W'y: the lines of the map that S bytes of a filter span."""
        return ceil(self.elements / problem.S)

    def channels(self, problem: Conv) -> int:
        """Return the channels per multiprocessor: C' = C / N_sm if channels are divided."""
        return ceil(problem.C / (self.multiprocessors if self.division == "channels" else 1))

    def rounds(self, problem: Conv) -> int:
        """Return the number of data sets per tile."""
        return ceil(self.channels(problem) * problem.R * problem.S / self.elements)

    def positions(self, problem: Conv) -> int:
        """Return the pixels of the padded map from the first output to the last, across lines."""
        return (problem.OH - 1) * problem.padded[1] + problem.OW

    def part_lines(self, problem: Conv) -> int:
        """Return the lines of the map per multiprocessor: all if the map is not divided."""
        return ceil(problem.padded[0] / (self.multiprocessors if self.division == "maps" else 1))

    def segments(self, problem: Conv) -> int:
        """Return the number of runs of W'x pixels in an image, or in one multiprocessor's lines."""
        part = self.part_lines(problem) * problem.padded[1]
        return ceil(min(part, self.positions(problem)) / self.columns)

    def tiles(self, problem: Conv) -> int:
        """Return the tiles per image over all multiprocessors: pixel runs x groups of filters."""
        parts = ceil(problem.OH / self.part_lines(problem))
        return parts * self.segments(problem) * ceil(problem.M / self.filters)

    def shared(self, problem: Conv) -> int:
        """Return the shared bytes per block: two data sets, a common line, a `cached` operand."""
        sets, lines = 2, 2 * self.lines(problem) + 1
        if self.cached and self.division == "filters":
            sets = self.rounds(problem)
        if self.cached and self.division == "maps":
            lines = max(lines, self.channels(problem) * problem.R)
        pitch = _round_up(self.columns + problem.S - 1, 4)
        return FLOAT * (sets * self.elements * self.filters + lines * pitch)

    def fits(self, problem: Conv, machine: Machine) -> bool:
        """Return True if there are enough threads for a segment, shared memory and registers."""
        shared = self.shared(problem)
        wide = max(self.elements, problem.S - 1) <= self.threads and self.columns >= problem.S
        held = shared <= machine.block_bytes and self.registers(problem) <= REGISTERS
        return wide and held and machine.blocks_per_sm(self.threads, 0, shared) >= self.each


@dataclass(frozen=True)
class StrictPlan:
    """A tile for a problem on a machine, with values that section 3.2 constrains."""

    problem: Conv
    machine: Machine
    tile: StrictTile

    @property
    def least_filters(self) -> int:
        """Least M' >= N_FMA x 4 / (S x W'x)."""
        return _least(self.machine, self.tile.elements, self.tile.columns)

    @property
    def data_set(self) -> int:
        """Bytes of a data set: S x M' + W'y x W'x x 4."""
        tile = self.tile
        return FLOAT * (tile.elements * tile.filters + tile.lines(self.problem) * tile.columns)


def _least(machine: Machine, elements: int, columns: int) -> int:
    return ceil(machine.n_fma / (elements * columns))


def _segment(machine: Machine, columns: int) -> int:
    """Return S in floats: 32 bytes if they hide the latency with 64 filters, else 64 bytes."""
    small, large = SEGMENTS
    enough = _least(machine, small // FLOAT, columns) <= FILTERS_AT_ONCE
    return (small if enough else large) // FLOAT


def _columns(tile: StrictTile, problem: Conv, machine: Machine, filters: int) -> int:
    """Return W'x: 128 pixels, doubled while `filters` filters have less than N_FMA operations."""
    most = min(_MOST_PIXELS * tile.threads, _power_of_two(tile.positions(problem)))
    if tile.division == "maps":  # all lines of one multiprocessor
        part = tile.part_lines(problem) * problem.padded[1]
        return max(WARP, min(most, tile.threads, _power_of_two(part)))
    columns = tile.columns
    while columns < most and _least(machine, tile.elements, columns) > filters:
        columns *= 2
    return columns


def _filters(tile: StrictTile, problem: Conv, machine: Machine) -> int:
    """Return M' >= 64 that N_FMA requires and registers hold; with few sums, the least wasteful."""
    groups = tile.groups
    if tile.division == "filters":
        return _round_up(ceil(problem.M / tile.multiprocessors), groups)
    required = max(FILTERS_AT_ONCE, _least(machine, tile.elements, tile.columns))
    multiples = range(groups, _round_up(problem.M, groups) + 1, groups)
    fit = [m for m in multiples if replace(tile, filters=m).registers(problem) <= REGISTERS]
    enough = [m for m in fit if m >= required]
    if not enough:
        return max(fit, default=groups)
    few = [m for m in enough if replace(tile, filters=m).sums <= _FEW_SUMS]
    return min(few, key=lambda m: (_round_up(problem.M, m), m), default=min(enough))


def _fitting(tile: StrictTile, problem: Conv, machine: Machine) -> StrictTile | None:
    """Halve W'x, then M' (if variable), until two blocks fit; None if the smallest does not."""
    while not tile.fits(problem, machine):
        fixed = tile.division == "filters"  # M' = M / N_sm
        if fixed or tile.columns > COLUMNS_AT_ONCE or tile.filters == tile.groups:
            if tile.columns == WARP:
                return None
            tile = replace(tile, columns=tile.columns // 2)
        filters = ceil(problem.M / tile.multiprocessors) if fixed else ceil(tile.filters / 2)
        tile = replace(tile, filters=_round_up(filters, tile.groups))
    return tile


@cache
def strict_plan(
    problem: Conv, machine: Machine, division: str = "both", segment: int | None = None
) -> StrictPlan | None:
    """Plan by section 3.2 for a division of 2.3 and S = `segment` bytes; None if too large."""
    elements = segment // FLOAT if segment else _segment(machine, COLUMNS_AT_ONCE)
    tile = StrictTile(division, elements, COLUMNS_AT_ONCE, 1, machine.multiprocessors)
    filters = ceil(problem.M / (tile.multiprocessors if division == "filters" else 1))
    tile = replace(tile, columns=_columns(tile, problem, machine, filters))
    fitting = _fitting(replace(tile, filters=_filters(tile, problem, machine)), problem, machine)
    if fitting is None:
        return None
    cached = replace(fitting, cached=True)
    reused = division == "filters" or (division == "maps" and fitting.segments(problem) == 1)
    if reused and cached.fits(problem, machine):
        fitting = cached
    return StrictPlan(problem, machine, fitting)


def filled(tile: StrictTile, problem: Conv) -> StrictTile:
    """Halve M', then W'x, until every block has a tile, even below N_FMA."""
    while tile.tiles(problem) < tile.multiprocessors * tile.each:
        fewer = _round_up(tile.filters // 2, tile.groups)
        if fewer < tile.filters and fewer // tile.groups >= 4:
            tile = replace(tile, filters=fewer)
        elif tile.columns > WARP:
            narrow = replace(tile, columns=tile.columns // 2)
            tile = replace(narrow, filters=_round_up(tile.filters, narrow.groups))
        else:
            break
    return tile


_TEXTS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text())


def _rows(table: str, **values: Any) -> Rows:
    """Return the rows of a table of plan.json: its labels and texts, formatted with `values`."""
    texts = _TEXTS[table].items()
    return [(label.format(**values), text.format(**values)) for label, text in texts]


def _met(holds: bool) -> str:
    return "met" if holds else "NOT met"


def _data_set_rows(plan: StrictPlan) -> Rows:
    """Return rows of section 3.2's values, and a verdict per constraint."""
    tile, problem, half = plan.tile, plan.problem, plan.machine.shared_bytes // 2
    segment, filter_bytes = FLOAT * tile.elements, FLOAT * problem.gemm_k
    sizes = {"segment": segment, "filter": filter_bytes, "half": half, "lines": tile.lines(problem)}
    verdicts = {"enough": _met(tile.filters >= plan.least_filters)}
    verdicts["fits"] = _met(plan.data_set <= half)
    verdicts["aligned"] = _met(segment % 32 == filter_bytes % 32 == 0)
    at_once = tile.elements * tile.columns * tile.filters
    return _rows("data set", plan=plan, tile=tile, at_once=at_once, **sizes, **verdicts)


def plan_rows(plan: StrictPlan) -> Rows:
    """Return (label, value) rows: the division, section 3.2's values, a verdict per constraint."""
    tile, problem = plan.tile, plan.problem
    tiles, rounds = tile.tiles(problem), tile.rounds(problem)
    useful = problem.OH * problem.OW * problem.M / (tiles * tile.columns * tile.filters)
    blocks = tiles if tile.spread else tile.multiprocessors * tile.each
    counts = {"blocks": blocks, "tiles": tiles, "rounds": rounds, "useful": useful}
    rows = _rows("division", tile=tile, letter=DIVISIONS[tile.division]) + _data_set_rows(plan)
    rows += _rows("tiles", tile=tile, shared=tile.shared(problem), **counts)
    if tile.division in ("filters", "maps"):
        storage = "held in shared memory" if tile.cached else "fetched again for each tile"
        rows.append((f"{tile.division} of a multiprocessor", storage))
    return rows


VECTOR = 4
_BANKS = 32
_SPLITS = (1, 2, 4, 8, 16)
# Outputs per thread: quads of pixels x maps.
_MULTI_OUTPUTS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8))
_MOST_THREADS = 512
_MULTI_REGISTERS = 250
# Clocks: an instruction, a warp's waits for a unit and a round, a sum, a block's first data.
# Fitted to 900 tiles of the paper's shapes on an H200.
_ISSUE, _UNIT_WAIT, _ROUND_WAIT, _SUM, _START = 1.3, 258, 809, 0.046, 2060
_OVERLAP = 3.74
_LEAST_UNIT, _MOST_UNIT = 8, 25


def plan_multi(problem: Conv, machine: Machine) -> StrictPlan:
    """Plan S, W'x, M' and W'y by section 3.2; if 64 filters are too few, M' grows by warps."""
    elements = _segment(machine, COLUMNS_AT_ONCE)
    filters = max(FILTERS_AT_ONCE, _round_up(_least(machine, elements, COLUMNS_AT_ONCE), WARP))
    tile = StrictTile("both", elements, COLUMNS_AT_ONCE, filters, machine.multiprocessors)
    return StrictPlan(problem, machine, tile)


@dataclass(frozen=True)
class MultiTile:
    """`rows` lines of `row_quads` x 4 outputs in `fm` x `groups` maps; S = 4 x `elements` bytes."""

    elements: int
    rows: int
    row_quads: int
    quads: int  # a thread computes quads x 4 outputs of fm maps
    fm: int
    groups: int
    splits: int  # parts of the channels
    stages: int = 2

    @property
    def filters(self) -> int:
        """M'."""
        return self.fm * self.groups

    @property
    def columns(self) -> int:
        """W'x."""
        return VECTOR * self.row_quads

    @property
    def threads(self) -> int:
        """Threads per block, in whole warps."""
        strips = ceil(self.rows * self.row_quads / self.quads)
        return _round_up(strips * self.groups * self.splits, WARP)

    def blocks(self, problem: Conv) -> int:
        """Return the number of blocks per image."""
        tiles = ceil(problem.OH / self.rows) * ceil(problem.OW / self.columns)
        return tiles * ceil(problem.M / self.filters)

    def unit_rows(self, problem: Conv) -> int:
        """Return the filter rows per unrolled step: whole channels if their rows are few."""
        per_channel = problem.R * problem.S
        return 1 if per_channel > _MOST_UNIT else problem.R * max(1, _LEAST_UNIT // per_channel)

    def rounds(self, problem: Conv) -> int:
        """Return the number of segments in a filter's part of the channels."""
        rows = _round_up(ceil(problem.C / self.splits) * problem.R, self.unit_rows(problem))
        return ceil(rows * problem.S / self.elements)

    def lines(self, problem: Conv) -> int:
        """Return the lines of the map that the tile reads in one channel."""
        return (self.rows - 1) * problem.stride + problem.R

    def vectors(self, problem: Conv) -> int:
        """Return the number of copies per line."""
        vector = VECTOR if problem.W % VECTOR == 0 else 1
        pixels = -problem.pad % vector + (self.columns - 1) * problem.stride + problem.S
        return ceil(pixels / vector)

    def pitch(self, problem: Conv) -> int:
        """Return the floats between lines; padded so that quads of several rows differ in banks."""
        vector = VECTOR if problem.W % VECTOR == 0 else 1
        span = _round_up(-problem.pad % vector + 3 * problem.stride + problem.S, VECTOR)
        copied = self.vectors(problem) * vector
        pitch = _round_up(max(copied, (self.columns - VECTOR) * problem.stride + span), VECTOR)
        if self.rows > 1 and problem.stride == 1:
            pitch += (self.columns - pitch) % _BANKS
        return pitch

    def shared(self, problem: Conv) -> int:
        """Return the bytes of shared memory: pipelines of filters and lines, later the sums."""
        unit_rows, per_channel = self.unit_rows(problem), problem.R * problem.S
        unit = unit_rows * problem.S
        window = self.stages * self.elements + (unit - 1 if self.elements % unit else 0)
        together = max(1, unit_rows // problem.R)
        channels = _round_up((window + per_channel - 2) // per_channel + 1, together)
        pipeline = _round_up(window, unit) * self.filters
        pipeline += channels * self.lines(problem) * self.pitch(problem)
        return FLOAT * self.splits * max(pipeline, self.filters * self.rows * self.columns)


def flat(problem: Conv) -> Conv:
    """Return a 1x1 convolution with its map as one line, if padding and stride permit."""
    if problem.R == problem.S == problem.stride == 1 and problem.pad == 0:
        return replace(problem, H=1, W=problem.H * problem.W)
    return problem


def _multi_candidates(problem: Conv, machine: Machine) -> Iterator[MultiTile]:
    planned = plan_multi(problem, machine).tile
    all_quads = ceil(problem.OW / VECTOR)
    widths = {min(all_quads, q) for q in (2, 4, 8, 12, 16, 20, 24, 28, 32)}
    widths |= {ceil(all_quads / k) for k in range(1, 9)}
    heights = {*range(1, 9), 10, 12, 14, *(ceil(problem.OH / k) for k in range(1, 5))}
    divisions = [
        (quads, maps, groups, splits)
        for (quads, maps), groups, splits in pairs(_MULTI_OUTPUTS, (1, 2, 4, 8, 16, 32), _SPLITS)
        if maps * groups in range(VECTOR, planned.filters + 1, VECTOR) and splits <= problem.C
    ]
    for row_quads, rows in pairs(sorted(widths), sorted(heights)):
        if row_quads * VECTOR <= planned.columns and rows <= problem.OH and rows * row_quads <= 256:
            for division in divisions:
                yield MultiTile(planned.elements, rows, row_quads, *division)


def _window(problem: Conv) -> int:
    """Return the pixels of a line under four outputs."""
    return _round_up(3 * problem.stride + problem.S, VECTOR)


def _at_once(tile: MultiTile, problem: Conv, machine: Machine) -> int:
    """Return the blocks of one image that run concurrently on a multiprocessor; 0 if none fits."""
    registers = VECTOR * tile.quads * tile.fm + tile.fm + tile.quads * _window(problem) + 32
    if registers > _MULTI_REGISTERS or tile.threads > _MOST_THREADS:
        return 0
    resident = machine.blocks_per_sm(tile.threads, registers, tile.shared(problem))
    return min(resident, ceil(tile.blocks(problem) / machine.multiprocessors))


def _multi_cycles(tile: MultiTile, problem: Conv, machine: Machine) -> float:
    """Estimate the cycles from instructions, single-warp latency, rounds and concurrent blocks."""
    at_once = _at_once(tile, problem, machine)
    if at_once < 1:
        return float("inf")
    on_one = ceil(tile.blocks(problem) / machine.multiprocessors)
    waves = ceil(on_one / at_once) if on_one < 3 * at_once else on_one / at_once
    threads, fetchers = tile.threads, tile.threads // tile.splits

    rounds, channels = tile.rounds(problem), ceil(problem.C / tile.splits)
    units = channels * problem.R / tile.unit_rows(problem)
    vectors = tile.lines(problem) * tile.vectors(problem)
    window = _window(problem)
    loads = tile.quads * (window // VECTOR if problem.stride == 1 else window)
    row = problem.S * (VECTOR * tile.quads * tile.fm + max(tile.fm // VECTOR, 1)) + loads
    work = channels * problem.R * row + 12 * units
    work += rounds * (6 * ceil(tile.filters * tile.elements / VECTOR / fetchers) + 30)
    work += channels * (8 * ceil(vectors / fetchers) + 15 / max(1, fetchers // vectors))
    alone = work + _UNIT_WAIT * units + _ROUND_WAIT * rounds
    issued = _ISSUE * ceil(at_once * threads // WARP / 4) * work
    sums = tile.splits * tile.filters * tile.rows * tile.columns * at_once
    busy = (issued**_OVERLAP + alone**_OVERLAP) ** (1 / _OVERLAP)
    return float(waves * (busy + _SUM * sums + _START))


@cache
def multi_tile(problem: Conv, machine: Machine) -> MultiTile | None:
    """Return the cheapest tile that fits the device; None if not even the smallest does."""
    problem = flat(problem)
    tiles = _multi_candidates(problem, machine)
    best = min(tiles, key=lambda tile: _multi_cycles(tile, problem, machine))
    at_once = _at_once(best, problem, machine)
    if at_once < 1:
        return None
    deeper = (replace(best, stages=stages) for stages in (4, 3))
    return next((tile for tile in deeper if _at_once(tile, problem, machine) >= at_once), best)


@dataclass(frozen=True)
class StrictParts:
    """Parts for `row_parts` x `filter_parts` multiprocessors, each processed in `pieces`."""

    row_parts: int
    filter_parts: int
    streams: str  # "lines" (method 1) or "filters" (2); how two blocks share them is our reading
    pieces: int
    multiprocessors: int
    each: int = BLOCKS_EACH
    threads: int = THREADS

    def part_lines(self, problem: Conv) -> int:
        """Return the lines per multiprocessor: ceil(W_y / row parts)."""
        return ceil(problem.padded[0] / self.row_parts)

    def part_filters(self, problem: Conv) -> int:
        """Return the filters per multiprocessor: ceil(M / filter parts)."""
        return ceil(problem.M / self.filter_parts)

    def _piece(self, problem: Conv, shared_by: int = 1) -> tuple[int, int]:
        """Return the lines and filters of a piece, or of one of the blocks that share it."""
        lines, filters = self.part_lines(problem), self.part_filters(problem)
        if self.streams == "lines":
            return ceil(ceil(lines / self.pieces) / shared_by), filters
        return lines, ceil(ceil(filters / self.pieces) / shared_by)

    def _floats(self, problem: Conv, lines: int, filters: int) -> tuple[int, int]:
        """Return the input pixels of `lines` lines of outputs, and the floats of `filters`."""
        return (lines + problem.R - 1) * problem.padded[1], problem.R * problem.S * filters

    def data(self, problem: Conv) -> int:
        """Return D of a multiprocessor: equation (5) or (8), or their generalization to both."""
        return FLOAT * sum(self._floats(problem, *self._piece(problem)))

    def operations(self, problem: Conv) -> int:
        """Return Th of a multiprocessor: equation (6) or (9)."""
        lines, filters = self._piece(problem)
        return problem.R * problem.S * filters * lines * problem.padded[1]

    def busy(self, problem: Conv) -> int:
        """Return the number of multiprocessors that have a part."""
        rows = ceil(problem.padded[0] / self.part_lines(problem))
        return rows * ceil(problem.M / self.part_filters(problem))

    def moved(self, problem: Conv) -> int:
        """Return the bytes of one piece for all multiprocessors, which step 4 compares with V_s."""
        return self.busy(problem) * self.data(problem)

    def shared(self, problem: Conv) -> int:
        """Return the bytes of shared memory per block."""
        return FLOAT * sum(self._floats(problem, *self._piece(problem, self.each)))

    def prefetched(self, problem: Conv) -> int:
        """Return the registers per thread for the next piece; 0 if there is only one piece."""
        if self.pieces == 1:
            return 0
        pixels, filters = self._floats(problem, *self._piece(problem, self.each))
        more = ceil(filters / self.threads) if self.streams == "filters" else 0
        return ceil(pixels / self.threads) + more

    def fits(self, problem: Conv, machine: Machine) -> bool:
        """Return True if two blocks, so also D, fit shared memory and the registers suffice."""
        shared = self.shared(problem)
        together = machine.blocks_per_sm(self.threads, 0, shared)
        if shared > machine.block_bytes or together < self.each:
            return False
        # 40: registers per thread without the next piece and a filter's pixels
        return self.prefetched(problem) + problem.R * problem.S + 40 <= REGISTERS


@dataclass(frozen=True)
class StrictSingle:
    """The paper's `plan`, the `parts` that run, and the result of step 4."""

    plan: SinglePlan
    parts: StrictParts
    redivided: bool = False  # `parts` replace the plan's, which move fewer bytes than V_s
    most: int = 0  # bytes that any division moves at most


def _by_method(
    method: int, plan: SinglePlan, problem: Conv, machine: Machine
) -> StrictParts | None:
    """Return parts by a method of section 3.1 in at least the planned pieces; None if none fit."""
    count = machine.multiprocessors
    if method == 1:
        parts = StrictParts(1, count, "lines", plan.p, count)
        most = parts.part_lines(problem)
    else:
        parts = StrictParts(count, 1, "filters", plan.q, count)
        most = parts.part_filters(problem)
    for pieces in range(parts.pieces, max(parts.pieces, most) + 1):
        divided = replace(parts, pieces=pieces)
        if divided.fits(problem, machine):
            return divided
    return None


def divisions(problem: Conv, machine: Machine) -> Iterator[StrictParts]:
    """Yield whole parts for all multiprocessors, from map only to filters only (section 2.3)."""
    count = machine.multiprocessors
    for filter_parts in range(1, min(count, problem.M) + 1):
        row_parts = max(1, min(count // filter_parts, problem.padded[0]))
        parts = StrictParts(row_parts, filter_parts, "lines", 1, count)
        if parts.part_lines(problem) == 1 and parts.part_filters(problem) > 1:
            parts = replace(parts, streams="filters")
        if parts.fits(problem, machine):
            yield parts


@cache
def strict_single(problem: Conv, machine: Machine, both: bool = False) -> StrictSingle | None:
    """Apply section 3.1, then step 4 of section 2.2; return None if no part fits two blocks."""
    plan = plan_single(problem, machine)
    if both:  # departs from the paper: the most busy multiprocessors, then the fewest bytes
        busiest = max(
            divisions(problem, machine),
            key=lambda parts: (parts.busy(problem), -parts.moved(problem)),
            default=None,
        )
        return StrictSingle(plan, busiest) if busiest else None
    parts = _by_method(plan.division, plan, problem, machine)
    parts = parts or _by_method(3 - plan.division, plan, problem, machine)
    if parts is None:
        return None
    if parts.operations(problem) >= machine.n_fma:
        return StrictSingle(plan, parts)
    moved = {other: other.moved(problem) for other in divisions(problem, machine)}
    most = max(moved.values(), default=0)
    enough = [other for other in moved if moved[other] >= machine.v_s]
    if parts.moved(problem) >= machine.v_s or not enough:
        return StrictSingle(plan, parts, False, most)
    return StrictSingle(plan, min(enough, key=lambda p: moved[p]), True, most)


def _approach(single: StrictSingle, problem: Conv, machine: Machine) -> str:
    parts = single.parts
    if parts.operations(problem) >= machine.n_fma:
        if parts.pieces == 1:
            return "first: one piece has the N_FMA multiply-adds"
        return f"first: of {parts.pieces} pieces the next is loaded to registers meanwhile"
    moved = f"{parts.moved(problem):,} bytes move, V_s is {machine.v_s:,}"
    if single.redivided:
        return f"second: divided again until V_s is met; {moved}"
    if parts.moved(problem) >= machine.v_s:
        return f"second: V_s is met; {moved}"
    return f"second: V_s is NOT met; {moved}, any division moves at most {single.most:,}"


def _piece_rows(plan: SinglePlan) -> Rows:
    return _rows("pieces", plan=plan, method=_TEXTS["methods"][str(plan.division)])


def parts_rows(single: StrictSingle, problem: Conv, machine: Machine) -> Rows:
    """Return (label, value) rows: P and Q, the approach of section 2.2, verdicts per constraint."""
    plan, parts, shared = single.plan, single.parts, machine.shared_bytes
    name, data = ("P", plan.d1) if plan.division == 1 else ("Q", plan.d2)
    verdicts = {"fits": _met(data <= shared), "hides": _met(plan.hides)}
    verdicts["approach"] = _approach(single, problem, machine)
    limits = {"plan": plan, "machine": machine, "data": data, "shared": shared}
    rows = _piece_rows(plan) + _rows("constraints", **limits, **verdicts)
    if not single.redivided and parts.pieces != plan.pieces:
        rows += _rows("more pieces", name=name, parts=parts)
    part = {"lines": parts.part_lines(problem), "filters": parts.part_filters(problem)}
    part |= {"data": parts.data(problem), "shared": parts.shared(problem)}
    part |= {"busy": parts.busy(problem), "blocks": parts.multiprocessors * parts.each}
    return rows + _rows("parts", parts=parts, **part)


def explain_machine(machine: Machine) -> Rows:
    """Return (label, value) rows: Table 1 for the machine."""
    return _rows("machine", machine=machine, kib=machine.shared_bytes >> 10)


def _range(lower: int | None, upper: int) -> str:
    if lower is None:
        return "none: the other operand alone is larger than shared memory"
    return f"{lower:,} to {upper:,}" + ("" if lower <= upper else ", which is empty")


NO_TWO = ("blocks", "two do not fit a multiprocessor")
_NO_BLOCK = ("block", "none fits this device's shared memory")


def explain_single(problem: Conv, batch: int, machine: Machine) -> Rows:
    """Return (label, value) rows: Table 1 for the machine, then section 3.1."""
    plan, tile = plan_single(problem, machine), single_tile(problem, machine)
    height, width = problem.padded
    filters, pixels = FLOAT * problem.R * problem.S * problem.M, FLOAT * height * width
    approach = "prefetching: each piece is loaded while the previous one is used"
    if not plan.hides:
        approach = "bulk loading: the operations on a part are fewer than N_FMA"
    elif plan.pieces == 1:
        approach = "all at once: one piece has the N_FMA operations"
    p, q = _range(*plan.p_bounds), _range(*plan.q_bounds)
    rows = explain_machine(machine) + _rows(
        "steps 1 and 2", filters=filters, pixels=pixels, p=p, q=q
    )
    rows += [*_piece_rows(plan), ("approach", approach)]
    if tile is None:
        return [*rows, _NO_BLOCK]
    pieces = f", {tile.pieces} after each other" if tile.pieces > 1 else ""
    outputs = tile.px * tile.pc
    all_bytes = tile.row_parts * tile.filter_parts * tile.shared(problem)
    sizes = {"pieces": pieces, "outputs": outputs, "all_bytes": all_bytes}
    return rows + _rows("single block", tile=tile, **sizes)


def explain_multi(problem: Conv, batch: int, machine: Machine) -> Rows:
    """Return (label, value) rows: Table 1 for the machine, then section 3.2."""
    plan, tile = plan_multi(problem, machine), multi_tile(problem, machine)
    rows = explain_machine(machine) + _data_set_rows(plan)
    if tile is None:
        return [*rows, _NO_BLOCK]
    blocks, shared = tile.blocks(flat(problem)), tile.shared(flat(problem))
    sizes = {"outputs": VECTOR * tile.quads, "blocks": blocks, "shared": shared}
    return rows + _rows("multi block", tile=tile, **sizes)
