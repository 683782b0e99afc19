"""Section 3.1 of the Pascal paper to the letter, with section 2.2's step 4: who gets which part.

`plan_single` has equations (3) to (9), P and Q; here they become parts of multiprocessors that two
blocks can hold, and where a part has fewer multiply-adds than N_FMA it is divided again until V_s
bytes move. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from lenetgpu.gpu.machines import FLOAT, Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.single_plan import SinglePlan, plan_single
from lenetgpu.stages.conv.prefetch.strict_plan import BLOCKS_EACH, REGISTERS, THREADS, met
from lenetgpu.stages.registry import Rows

_OTHER_REGISTERS = 40  # of a thread, beside the next piece and the pixels under a filter


@dataclass(frozen=True)
class StrictParts:
    """`row_parts` x `filter_parts` multiprocessors; each goes through `pieces` of its part.

    `streams` says what the pieces are of: "lines" of the map (method 1), "filters" (method 2). Two
    blocks share a piece out, half of its lines or filters each: the paper does not say how.
    """

    row_parts: int
    filter_parts: int
    streams: str
    pieces: int
    multiprocessors: int
    each: int = BLOCKS_EACH
    threads: int = THREADS

    def part_lines(self, problem: Conv) -> int:
        """Lines of a multiprocessor: ceil(W_y / row parts)."""
        return ceil((problem.H + 2 * problem.pad) / self.row_parts)

    def part_filters(self, problem: Conv) -> int:
        """Filters of a multiprocessor: ceil(M / filter parts)."""
        return ceil(problem.M / self.filter_parts)

    def piece_lines(self, problem: Conv) -> int:
        """Lines of a piece: ceil(W_y / P) by method 1."""
        return ceil(self.part_lines(problem) / (self.pieces if self.streams == "lines" else 1))

    def piece_filters(self, problem: Conv) -> int:
        """Filters of a piece: ceil(M / Q) by method 2."""
        return ceil(self.part_filters(problem) / (self.pieces if self.streams == "filters" else 1))

    def block_lines(self, problem: Conv) -> int:
        """Lines of outputs of a block at a time."""
        lines = self.piece_lines(problem)
        return ceil(lines / self.each) if self.streams == "lines" else lines

    def block_filters(self, problem: Conv) -> int:
        """Filters of a block at a time."""
        filters = self.piece_filters(problem)
        return ceil(filters / self.each) if self.streams == "filters" else filters

    def data(self, problem: Conv) -> int:
        """D of a multiprocessor: equation (5) or (8), and both of them where both are divided."""
        width = problem.W + 2 * problem.pad
        filters = problem.R * problem.S * self.piece_filters(problem)
        return FLOAT * (filters + (self.piece_lines(problem) + problem.R - 1) * width)

    def operations(self, problem: Conv) -> int:
        """Th of a multiprocessor: equation (6) or (9)."""
        width = problem.W + 2 * problem.pad
        taps = problem.R * problem.S
        return taps * self.piece_filters(problem) * self.piece_lines(problem) * width

    def busy(self, problem: Conv) -> int:
        """Multiprocessors that have a part."""
        rows = ceil((problem.H + 2 * problem.pad) / self.part_lines(problem))
        return rows * ceil(problem.M / self.part_filters(problem))

    def moved(self, problem: Conv) -> int:
        """Bytes of one piece for all multiprocessors: what step 4 compares with V_s."""
        return self.busy(problem) * self.data(problem)

    def shared(self, problem: Conv) -> int:
        """Bytes of shared memory of a block: its lines, K - 1 more, and its filters."""
        width = problem.W + 2 * problem.pad
        lines = self.block_lines(problem) + problem.R - 1
        filters = problem.R * problem.S * self.block_filters(problem)
        return FLOAT * (lines * width + filters)

    def held(self, problem: Conv) -> int:
        """Registers that a thread needs for the next piece: none where there is one."""
        if self.pieces == 1:
            return 0
        width, taps = problem.W + 2 * problem.pad, problem.R * problem.S
        lines = ceil((self.block_lines(problem) + problem.R - 1) * width / self.threads)
        filters = ceil(taps * self.block_filters(problem) / self.threads)
        return lines + (filters if self.streams == "filters" else 0)

    def fits(self, problem: Conv, machine: Machine) -> bool:
        """Whether two blocks, and so D, fit shared memory, and a thread has the registers."""
        shared = self.shared(problem)
        if shared > machine.block_bytes:
            return False
        if machine.resident(self.threads, 0, shared) < self.each:
            return False
        registers = self.held(problem) + problem.R * problem.S + _OTHER_REGISTERS
        return registers <= REGISTERS


@dataclass(frozen=True)
class StrictSingle:
    """The paper's `plan`, the `parts` that run, and what step 4 made of them.

    `redivided` says that the plan's parts have fewer multiply-adds than N_FMA and move fewer bytes
    than V_s, and others were taken; `most` is the most that any division would move.
    """

    plan: SinglePlan
    parts: StrictParts
    redivided: bool
    most: int


def _method(plan: SinglePlan, machine: Machine) -> StrictParts:
    """The multiprocessors' parts by the method that step 4 of section 3.1 chose."""
    every = machine.multiprocessors
    if plan.division == 1:
        return StrictParts(1, every, "lines", plan.p, every)
    return StrictParts(every, 1, "filters", plan.q, every)


def _fitting(parts: StrictParts, problem: Conv, machine: Machine) -> StrictParts | None:
    """`parts` in as many pieces as fit, no fewer than they have; None where none do."""
    lines = parts.streams == "lines"
    most = parts.part_lines(problem) if lines else parts.part_filters(problem)
    for pieces in range(parts.pieces, max(parts.pieces, most) + 1):
        if (found := replace(parts, pieces=pieces)).fits(problem, machine):
            return found
    return None


def divisions(problem: Conv, machine: Machine) -> Iterator[StrictParts]:
    """Whole parts for all multiprocessors, from map alone to filters alone (section 2.3)."""
    every = machine.multiprocessors
    for filter_parts in range(1, min(every, problem.M) + 1):
        row_parts = max(1, min(every // filter_parts, problem.H + 2 * problem.pad))
        parts = StrictParts(row_parts, filter_parts, "lines", 1, every)
        if parts.part_lines(problem) == 1 and parts.part_filters(problem) > 1:
            parts = replace(parts, streams="filters")
        if parts.fits(problem, machine):
            yield parts


def _filled(problem: Conv, machine: Machine) -> StrictParts | None:
    """Both divided so that most multiprocessors have a part, and then the least is moved."""
    found = divisions(problem, machine)
    return max(found, key=lambda p: (p.busy(problem), -p.moved(problem)), default=None)


@cache
def strict_single(problem: Conv, machine: Machine, both: bool = False) -> StrictSingle | None:
    """Section 3.1, then step 4 of section 2.2; None where no part fits two blocks.

    `both` departs: map and filters divided so that every multiprocessor has a part.
    """
    plan = plan_single(problem, machine)
    if both:
        parts = _filled(problem, machine)
        return None if parts is None else StrictSingle(plan, parts, False, 0)
    parts = _fitting(_method(plan, machine), problem, machine)
    if parts is None:
        other = replace(plan, division=3 - plan.division)
        parts = _fitting(_method(other, machine), problem, machine)
    if parts is None:
        return None
    if parts.operations(problem) >= machine.n_fma:
        return StrictSingle(plan, parts, False, 0)
    found = list(divisions(problem, machine))
    most = max((other.moved(problem) for other in found), default=0)
    enough = [other for other in found if other.moved(problem) >= machine.v_s]
    if parts.moved(problem) >= machine.v_s or not enough:
        return StrictSingle(plan, parts, False, most)
    return StrictSingle(plan, min(enough, key=lambda p: p.moved(problem)), True, most)


def _approach(found: StrictSingle, problem: Conv, machine: Machine) -> str:
    parts = found.parts
    if parts.operations(problem) >= machine.n_fma:
        if parts.pieces == 1:
            return "first: one piece has the N_FMA multiply-adds"
        return f"first: of {parts.pieces} pieces the next comes into registers meanwhile"
    moved = f"{parts.moved(problem):,} bytes move, V_s is {machine.v_s:,}"
    if found.redivided:
        return f"second: divided again until V_s is met; {moved}"
    if parts.moved(problem) >= machine.v_s:
        return f"second: V_s is met; {moved}"
    return f"second: V_s is NOT met; {moved}, any division moves at most {found.most:,}"


def parts_rows(found: StrictSingle, problem: Conv, machine: Machine) -> Rows:
    """(label, value) rows: P and Q, the approach of section 2.2, and each constraint's verdict."""
    plan, parts = found.plan, found.parts
    planned, name = plan.pieces, "P" if plan.division == 1 else "Q"
    rows = [
        ("P, Q", f"{plan.p}, {plan.q}, method {plan.division} (steps 1 to 4)"),
        ("D1, D2", f"{plan.d1:,} and {plan.d2:,} bytes (5), (8)"),
        ("Th1, Th2", f"{plan.th1:,} and {plan.th2:,} multiply-adds (6), (9)"),
        (
            f"D{plan.division} <= S_shared",
            f"{min(plan.d1, plan.d2):,} of {machine.shared_bytes:,} bytes: "
            f"{met(min(plan.d1, plan.d2) <= machine.shared_bytes)}",
        ),
        (
            f"Th{plan.division} >= N_FMA",
            f"{plan.th1 if plan.division == 1 else plan.th2:,} of {machine.n_fma:,}: "
            f"{met(plan.hides)}",
        ),
        ("approach (section 2.2)", _approach(found, problem, machine)),
    ]
    if not found.redivided and parts.pieces != planned:
        rows.append((f"{name} that two blocks hold", f"{parts.pieces}"))
    return [
        *rows,
        (
            "a multiprocessor's part",
            f"{parts.part_lines(problem)} lines x {parts.part_filters(problem)} filters in "
            f"{parts.pieces} pieces of {parts.streams}, {parts.data(problem):,} bytes at once",
        ),
        ("multiprocessors with a part", f"{parts.busy(problem)} of {parts.multiprocessors}"),
        (
            "blocks",
            f"{parts.multiprocessors * parts.each} of {parts.threads} threads, "
            f"{parts.shared(problem):,} bytes each",
        ),
    ]
