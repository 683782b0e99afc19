"""How a convolution of many channels is divided: the Pascal paper's section 3.2, then its tiles.

S bytes of each of M' filters and W'y lines of W'x pixels are one data set; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from lenetgpu.gpu.machines import FLOAT, WARP, Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.single_plan import round_up

VECTOR = 4
_BANKS = 32
SEGMENTS = (32, 64)
FILTERS_AT_ONCE = 64
COLUMNS_AT_ONCE = 128
_SPLITS = (1, 2, 4, 8, 16)
# Outputs of a thread: quads of pixels x maps.
_OUTPUTS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8))
_MOST_THREADS = 512
_MOST_REGISTERS = 250
# Clocks: an instruction, waits of a warp for a unit and a round, a sum, a block's first data.
_ISSUE, _UNIT_WAIT, _ROUND_WAIT, _SUM, _START = 1.3, 258, 809, 0.046, 2060
_OVERLAP = 3.74
_LEAST_UNIT, _MOST_UNIT = 8, 25


@dataclass(frozen=True)
class MultiPlan:
    """Section 3.2: S bytes of each of M' filters and W'y lines of W'x pixels make one data set."""

    segment: int
    columns: int
    least_filters: int
    filters: int
    lines: int
    data_set: int
    fits: bool


def plan_multi(problem: Conv, machine: Machine) -> MultiPlan:
    """S, W'x, M' and W'y: the smaller S whose M' x W'x = 64 x 128 hides the latency, else S = 64.

    Where 64 filters are too few even then, M' grows by warps of filters.
    """
    segment, least = 0, 0
    for segment in SEGMENTS:
        least = ceil(machine.n_fma * FLOAT / (segment * COLUMNS_AT_ONCE))
        if least <= FILTERS_AT_ONCE:
            break
    filters = max(FILTERS_AT_ONCE, ceil(least / WARP) * WARP)
    lines = ceil(segment / (FLOAT * problem.S))
    data_set = segment * filters + lines * COLUMNS_AT_ONCE * FLOAT
    fits = data_set <= machine.shared_bytes // 2
    return MultiPlan(segment, COLUMNS_AT_ONCE, least, filters, lines, data_set, fits)


@dataclass(frozen=True)
class MultiTile:
    """`rows` lines of `row_quads` x 4 outputs in `fm` x `groups` maps; S = 4 x `taps` bytes.

    A thread has `quads` x 4 outputs of `fm` maps of one of `splits` parts of the channels;
    `stages` rounds are in shared memory or on their way to it.
    """

    taps: int
    rows: int
    row_quads: int
    quads: int
    fm: int
    groups: int
    splits: int
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
        """Threads of a block, in whole warps."""
        strips = ceil(self.rows * self.row_quads / self.quads)
        return round_up(strips * self.groups * self.splits, WARP)

    @property
    def accumulators(self) -> int:
        """Sums of a thread."""
        return VECTOR * self.quads * self.fm

    def blocks(self, problem: Conv) -> int:
        """Blocks of one image."""
        tiles = ceil(problem.OH / self.rows) * ceil(problem.OW / self.columns)
        return tiles * ceil(problem.M / self.filters)

    def unit_rows(self, problem: Conv) -> int:
        """Filter rows that are used without a test between them: a channel's where they are few."""
        per_channel = problem.R * problem.S
        if per_channel > _MOST_UNIT:
            return 1
        return problem.R * max(1, _LEAST_UNIT // per_channel)

    def rounds(self, problem: Conv) -> int:
        """Segments of a filter's part of the channels."""
        unit = self.unit_rows(problem)
        rows = round_up(ceil(problem.C / self.splits) * problem.R, unit)
        return ceil(rows * problem.S / self.taps)

    def lines(self, problem: Conv) -> int:
        """Lines of the map that the tile meets in one channel."""
        return (self.rows - 1) * problem.stride + problem.R

    def vectors(self, problem: Conv) -> int:
        """Copies of a line."""
        vector = VECTOR if problem.W % VECTOR == 0 else 1
        shift = -problem.pad % VECTOR if vector == VECTOR else 0
        return ceil((shift + (self.columns - 1) * problem.stride + problem.S) / vector)

    def pitch(self, problem: Conv) -> int:
        """Floats from line to line; with several rows, so that their quads meet different banks."""
        aligned = problem.W % VECTOR == 0
        shift = -problem.pad % VECTOR if aligned else 0
        span = round_up(shift + 3 * problem.stride + problem.S, VECTOR)
        held = self.vectors(problem) * (VECTOR if aligned else 1)
        pitch = round_up(max(held, (self.columns - VECTOR) * problem.stride + span), VECTOR)
        if self.rows > 1 and problem.stride == 1:
            pitch += (self.columns - pitch) % _BANKS
        return pitch

    def shared(self, problem: Conv) -> int:
        """Bytes of shared memory: the rings of filters and lines, later the sums."""
        unit_rows, per_channel = self.unit_rows(problem), problem.R * problem.S
        unit = unit_rows * problem.S
        window = self.stages * self.taps + (unit - 1 if self.taps % unit else 0)
        together = max(1, unit_rows // problem.R)
        channels = round_up((window + per_channel - 2) // per_channel + 1, together)
        ring = round_up(window, unit) * self.filters
        ring += channels * self.lines(problem) * self.pitch(problem)
        return FLOAT * self.splits * max(ring, self.filters * self.rows * self.columns)


def flat(problem: Conv) -> Conv:
    """A 1x1 convolution's map as one line, where nothing keeps its lines apart."""
    if problem.R == problem.S == problem.stride == 1 and problem.pad == 0:
        return replace(problem, H=1, W=problem.H * problem.W)
    return problem


def _candidates(problem: Conv, machine: Machine) -> Iterator[MultiTile]:
    plan = plan_multi(problem, machine)
    whole = ceil(problem.OW / VECTOR)
    most = plan.columns // VECTOR
    widths = {min(whole, q) for q in (2, 4, 8, 12, 16, 20, 24, 28, 32)}
    widths |= {ceil(whole / k) for k in range(1, 9)}
    heights = {*range(1, 9), 10, 12, 14, *(ceil(problem.OH / k) for k in range(1, 5))}
    for row_quads in sorted(q for q in widths if q <= most):
        for rows in sorted(r for r in heights if r <= problem.OH and r * row_quads <= 256):
            for quads, fm in _OUTPUTS:
                for groups in (1, 2, 4, 8, 16, 32):
                    if fm * groups % VECTOR or fm * groups > plan.filters:
                        continue
                    for splits in _SPLITS:
                        if splits > problem.C:
                            break
                        yield MultiTile(
                            plan.segment // FLOAT, rows, row_quads, quads, fm, groups, splits
                        )


def _window(problem: Conv) -> int:
    """Pixels that four neighbouring outputs need of a line."""
    return round_up(3 * problem.stride + problem.S, VECTOR)


def _at_once(tile: MultiTile, problem: Conv, machine: Machine) -> int:
    """Blocks of one image that a multiprocessor works on at once; 0 where none fits."""
    registers = tile.accumulators + tile.fm + tile.quads * _window(problem) + 32
    if registers > _MOST_REGISTERS:
        return 0
    resident = machine.resident(tile.threads, registers, tile.shared(problem))
    return min(resident, ceil(tile.blocks(problem) / machine.multiprocessors))


def _clocks(tile: MultiTile, problem: Conv, machine: Machine) -> float:
    """Clocks by instructions issued, the waits of a lone warp, rounds, and blocks at once.

    The constants were fitted to 900 tiles of the paper's shapes on an H200.
    """
    threads, fetchers = tile.threads, tile.threads // tile.splits
    if threads > _MOST_THREADS:
        return float("inf")
    at_once = _at_once(tile, problem, machine)
    if at_once < 1:
        return float("inf")
    on_one = ceil(tile.blocks(problem) / machine.multiprocessors)
    waves = ceil(on_one / at_once) if on_one < 3 * at_once else on_one / at_once

    rounds, channels = tile.rounds(problem), ceil(problem.C / tile.splits)
    units = channels * problem.R / tile.unit_rows(problem)
    patch = tile.lines(problem) * tile.vectors(problem)
    window = _window(problem)
    loads = tile.quads * (window // VECTOR if problem.stride == 1 else window)
    row = problem.S * (tile.accumulators + max(tile.fm // VECTOR, 1)) + loads
    work = channels * problem.R * row + 12 * units
    work += rounds * (6 * ceil(tile.filters * tile.taps / VECTOR / fetchers) + 30)
    work += channels * (8 * ceil(patch / fetchers) + 15 / max(1, fetchers // patch))
    alone = work + _UNIT_WAIT * units + _ROUND_WAIT * rounds
    issued = _ISSUE * ceil(at_once * threads // WARP / 4) * work
    sums = tile.splits * tile.filters * tile.rows * tile.columns * at_once
    busy = (issued**_OVERLAP + alone**_OVERLAP) ** (1 / _OVERLAP)
    return float(waves * (busy + _SUM * sums + _START))


@cache
def multi_tile(problem: Conv, machine: Machine) -> MultiTile | None:
    """The cheapest tile that fits the device, None where not even the smallest does."""
    problem = flat(problem)
    best = min(_candidates(problem, machine), key=lambda tile: _clocks(tile, problem, machine))
    if _clocks(best, problem, machine) == float("inf"):
        return None
    deeper = (replace(best, stages=stages) for stages in (4, 3))
    wanted = _at_once(best, problem, machine)
    return next((tile for tile in deeper if _at_once(tile, problem, machine) >= wanted), best)
