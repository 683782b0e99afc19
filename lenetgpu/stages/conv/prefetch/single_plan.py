"""How a single-channel convolution is divided: the Pascal paper's section 3.1, then its tiles.

Sizes are bytes. The paper writes K for both sides of a filter: here R rows and S columns; where it
has no padding, its map is the padded one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, hypot

from lenetgpu.gpu.machines import FLOAT, WARP, Machine
from lenetgpu.problems import Conv

# Outputs of a thread: rows below one another x neighbours x maps.
_OUTPUTS = (
    (1, 1, 4), (2, 1, 4), (4, 1, 4), (2, 1, 8), (4, 1, 8), (8, 1, 4),
    (1, 2, 4), (2, 2, 4), (4, 2, 4), (8, 2, 4),
)  # fmt: skip
_STRIPS = (1, 2, 4, 8, 16)
_THREADS = (128, 256)
_BLOCKS_EACH = 2
_CACHED = 64 << 20  # bytes of output that an L2 cache may take
_SECTOR, _SPLIT_STORES = 8, 1.3  # floats; what lines that start within a sector cost
_MOST_REGISTERS = 128
_UNROLLED_PAIRS, _ROLLED = 9, 1.3  # taps of the kernel's unrolled pairs; what a loop costs
_WIDEST_WINDOW = 26


def round_up(value: int, step: int) -> int:
    """Return the least multiple of `step` that is at least `value`."""
    return ceil(value / step) * step


@dataclass(frozen=True)
class SinglePlan:
    """Section 3.1 for one map: ranges of P and Q (None where empty), the values, the method.

    `division` is the method: 1 divides the filters among the multiprocessors and the map into P
    pieces, 2 divides the map among them and the filters into Q pieces.
    """

    d_filter: int
    d_map: int
    p_bounds: tuple[int | None, int]
    q_bounds: tuple[int | None, int]
    p: int
    q: int
    d1: int
    d2: int
    th1: int
    th2: int
    division: int
    hides: bool

    @property
    def pieces(self) -> int:
        """P or Q, whichever the method streams."""
        return self.p if self.division == 1 else self.q

    @property
    def approach(self) -> str:
        """Section 2.2's choice, in words."""
        if not self.hides:
            return "bulk loading: the operations on a part are fewer than N_FMA"
        if self.pieces == 1:
            return "all at once: one piece has the N_FMA operations"
        return f"prefetching: while one of {self.pieces} pieces is used, the next arrives"


def _pick(bounds: tuple[int | None, int]) -> int:
    lower, upper = bounds
    return lower if lower is not None and lower <= upper else 1


def plan_single(problem: Conv, machine: Machine) -> SinglePlan:
    """Steps 1 to 4 of section 3.1: equations (3) to (9) on this device."""
    taps, sms = problem.R * problem.S, machine.multiprocessors
    width, height = problem.W + 2 * problem.pad, problem.H + 2 * problem.pad
    filters, lines = ceil(problem.M / sms), ceil(height / sms)
    halo = problem.R - 1

    def least(data: int, room: int) -> int | None:
        return max(1, ceil(data / room)) if room > 0 else None

    p_bounds = (
        least(
            FLOAT * height * width,
            machine.shared_bytes - FLOAT * taps * filters - FLOAT * halo * width,
        ),
        min(taps * filters * height * width // machine.n_fma, height),
    )
    q_bounds = (
        least(FLOAT * problem.M * taps, machine.shared_bytes - FLOAT * width * (lines + halo)),
        min(taps * problem.M * lines * width // machine.n_fma, problem.M),
    )
    p, q = _pick(p_bounds), _pick(q_bounds)
    d1 = FLOAT * (taps * filters + (ceil(height / p) + halo) * width)
    d2 = FLOAT * (taps * ceil(problem.M / q) + (lines + halo) * width)
    th1 = taps * filters * ceil(height / p) * width
    th2 = taps * ceil(problem.M / q) * lines * width
    division = 1 if d1 < d2 else 2
    return SinglePlan(
        d_filter=FLOAT * taps * problem.M,
        d_map=FLOAT * height * width,
        p_bounds=p_bounds,
        q_bounds=q_bounds,
        p=p,
        q=q,
        d1=d1,
        d2=d2,
        th1=th1,
        th2=th2,
        division=division,
        hides=(th1 if division == 1 else th2) >= machine.n_fma,
    )


@dataclass(frozen=True)
class SingleTile:
    """A block keeps `rows` x `filters` of one method and streams `pieces` of the other's operand.

    `row_parts` x `filter_parts` blocks cover one image; a thread has `px` rows of `pc`
    neighbours in `fm` maps.
    """

    method: int
    rows: int
    filters: int
    pieces: int
    row_parts: int
    filter_parts: int
    px: int
    pc: int
    fm: int
    threads: int

    @property
    def outputs(self) -> int:
        """Sums of a thread."""
        return self.px * self.pc * self.fm

    def shared(self, problem: Conv) -> int:
        """Bytes of shared memory; what streams is double-buffered."""
        left = round_up(problem.pad, 4)
        pitch = round_up(left + problem.W + problem.pad, 4)
        lines = (self.rows - 1) * problem.stride + problem.R
        maps = 2 if self.method == 1 and self.pieces > 1 else 1
        sets = 2 if self.method == 2 and self.pieces > 1 else 1
        return FLOAT * (maps * lines * pitch + sets * problem.R * problem.S * self.filters)


def _candidates(
    problem: Conv, plan: SinglePlan, machine: Machine, streams: bool
) -> Iterator[SingleTile]:
    """Rectangles no larger than the plan's pieces, so many that each multiprocessor has some."""
    most_rows = ceil(problem.OH / plan.p) if plan.division == 1 else problem.OH
    most_filters = ceil(problem.M / plan.q) if plan.division == 2 else problem.M
    pairs = problem.stride == 1 and problem.OW % 2 == problem.pad % 2 == 0
    for px, pc, fm in _OUTPUTS:
        if px > 1 and (px - 1) * problem.stride + problem.R > _WIDEST_WINDOW:
            continue
        if pc > 1 and not pairs:
            continue
        for strips in _STRIPS:
            rows = strips * px
            if strips > 1 and rows >= most_rows + px:
                continue
            for blocks in (2, 3, 4):
                wanted = max(1, round(blocks * machine.multiprocessors / ceil(problem.OH / rows)))
                filters = round_up(min(ceil(problem.M / wanted), most_filters), fm)
                for threads in _THREADS:
                    parts = ceil(problem.OH / rows), ceil(problem.M / filters)
                    tile = SingleTile(plan.division, rows, filters, 1, *parts, px, pc, fm, threads)
                    yield _stream(tile, machine) if streams else tile


def _stream(tile: SingleTile, machine: Machine) -> SingleTile:
    """The tile's parts as pieces of longer ones, at least two, of which the device holds all."""
    room = _BLOCKS_EACH * machine.multiprocessors
    pieces = max(2, tile.row_parts * tile.filter_parts // room)
    if tile.method == 1:
        return replace(tile, pieces=pieces, row_parts=ceil(tile.row_parts / pieces))
    return replace(tile, pieces=pieces, filter_parts=ceil(tile.filter_parts / pieces))


def _clocks(tile: SingleTile, problem: Conv, machine: Machine) -> float:
    """Clocks by instructions issued, blocks at once, and the way of the first bytes."""
    shared = tile.shared(problem)
    window = (tile.px - 1) * problem.stride + problem.R
    registers = 40 + tile.outputs + window * (problem.S + 1 if tile.pc > 1 else 1)
    resident = machine.resident(tile.threads, min(_MOST_REGISTERS, registers), shared)
    if resident < 1:
        return float("inf")
    on_one = ceil(tile.row_parts * tile.filter_parts / machine.multiprocessors)
    at_once = min(on_one, resident)
    lanes = round_up(tile.rows // tile.px * problem.OW // tile.pc, WARP)
    items = ceil(lanes * (tile.filters // tile.fm) / tile.threads)
    multiply = problem.R * problem.S * (tile.outputs + max(1.0, tile.fm / 4))
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
    """The cheapest tile that fits the device, None where not even the smallest does.

    It streams pieces where the plan has several and two of them fit.
    """
    plan = plan_single(problem, machine)
    for streams in (True, False) if plan.pieces > 1 else (False,):
        tiles = _candidates(problem, plan, machine, streams)
        best = min(tiles, key=lambda tile: _clocks(tile, problem, machine))
        if _clocks(best, problem, machine) < float("inf"):
            return best
    return None
