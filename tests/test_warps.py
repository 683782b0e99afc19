"""The warp-level timing model on schedules worked out by hand, and its invariants."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lenetgpu.papers.warps import Core, Instruction, Listing, Op, fetch_stalls, run

CORE = Core(
    "by hand",
    schedulers=1,
    arithmetic=4,
    mad=6,
    divide=20,
    branch=3,
    shared=5,
    local=50,
    far=100,
    port=1,
    line=5,
    fetch=30,
    fetch_line=16,
    fetched=64,
)
BOUND = replace(CORE, fetch=0)


def cycles(program, core=BOUND, blocks=1, warps=1):
    return run(core, program, blocks, warps).cycles


def independent(op, count):
    return [Instruction(op, at=index) for index in range(count)]


def dependent(op, count):
    return [Instruction(op, (index - 1,) * (index > 0), index) for index in range(count)]


TWO_LINES = [Instruction(Op.GLOBAL, at=index, lines=2) for index in range(2)]
ENGINE = [Instruction(Op.ENGINE, cycles=24)]
HELD = [Instruction(Op.ENGINE, cycles=24, held=24)]
JUMP = [Instruction(Op.BRANCH), Instruction(Op.ARITHMETIC, at=1)]


@pytest.mark.parametrize(
    ("program", "core", "warps", "expected"),
    [
        (dependent(Op.ARITHMETIC, 3), {}, 1, 12),  # issued at 0, 4, 8; ready at 12
        (dependent(Op.MAD, 3), {}, 1, 18),
        (dependent(Op.DIVIDE, 2), {}, 1, 40),
        (JUMP, {}, 1, 3 + 4),
        (dependent(Op.ARITHMETIC, 3), {}, 5, 14 + 4),  # 15 instructions, one a cycle
        (independent(Op.ARITHMETIC, 3), {"schedulers": 2}, 6, 8 + 4),
        # one memory unit serves all schedulers: the sixth load goes at 20
        (independent(Op.SHARED, 2), {"schedulers": 3, "port": 4}, 3, 20 + 5),
        (independent(Op.ARITHMETIC, 2), {"schedulers": 3, "port": 4}, 3, 1 + 4),
        # lines from beyond the first cache come one by one: the second load's start at 10, not at 1
        (TWO_LINES, {}, 1, 110),
        (independent(Op.LOCAL, 3), {}, 1, 2 * 5 + 50),
        # an engine's own cycles on top of a load's 5; two at once, or one after the other
        (ENGINE, {}, 1, 29),
        (ENGINE, {}, 2, 30),
        (HELD, {}, 2, 24 + 29),
    ],
)
def test_schedules_by_hand(program, core, warps, expected):
    assert cycles(program, replace(BOUND, **core), warps=warps) == expected


def test_barrier_waits_only_for_its_block():
    """Warp 1 divides; warps 2 and 3, of another block, continue at once. All run one program."""
    program = [
        Instruction(Op.SHARED, part="load"),
        Instruction(Op.BARRIER, (0,), 1, "load"),
        Instruction(Op.ARITHMETIC, (), 2, "sum"),
    ]
    core = replace(BOUND, port=10, schedulers=4)
    found = run(core, program, 2, 2)  # loads at 0, 10, 20, 30; barriers left at 16 and at 36
    assert found.cycles == 36 + 4
    alone = run(core, program, 1, 2)
    assert alone.cycles == 16 + 4
    assert alone.parts == {"load": 16 + 16, "sum": 8}


def test_stalls_are_charged_to_the_waiting_instruction():
    program = [Instruction(Op.LOCAL, part="load"), Instruction(Op.MAD, (0,), 1, "sum")]
    found = run(BOUND, program, 1, 1)
    assert found.parts == {"load": 50, "sum": 6} and found.warps == 1


def test_cached_instruction_line_is_fetched_once():
    """20 instructions take two lines; a loop of 64 stays cached, one of 80 never does."""
    assert cycles(independent(Op.ARITHMETIC, 20), CORE) == 30 + 15 + 31 + 3 + 4
    held, lost = ([i % size for i in range(3 * size)] for size in (64, 80))
    stalls = [fetch_stalls(CORE, [Instruction(Op.MAD, at=at) for at in a]) for a in (held, lost)]
    assert sum(stalls[0]) == 4 * 30
    assert sum(stalls[1]) == 3 * 5 * 30
    assert stalls[0][:17] == [30, *[0] * 15, 30]


def test_listing_reuses_addresses_and_checks_dependencies():
    to = Listing()
    to.repeat(2, lambda _: to.emit(Op.MAD))
    assert [said.at for said in to.program] == [0, 1, 2, 3] * 2
    assert [said.op for said in to.program[:4]] == [
        Op.MAD, Op.ARITHMETIC, Op.ARITHMETIC, Op.BRANCH,
    ]  # fmt: skip
    assert to.program[3].reads == (2,)
    with pytest.raises(ValueError, match="below 8"):
        to.emit(Op.MAD, 8)


KINDS = [op for op in Op if op is not Op.BARRIER]


@st.composite
def programs(draw):
    count = draw(st.integers(1, 24))
    found = []
    for index in range(count):
        reads = draw(st.lists(st.integers(0, index - 1), max_size=2)) if index else []
        op = draw(st.sampled_from(KINDS))
        found.append(Instruction(op, tuple(reads), index, cycles=7 * (op is Op.ENGINE)))
    return found


def critical_path(core, program):
    """Return the cycles of the longest dependency chain, in order, on an unlimited machine."""
    done, at = [], 0
    stalls, latencies = fetch_stalls(core, program), core.latencies()
    for index, said in enumerate(program):
        at = max([at + stalls[index], *(done[read] for read in said.reads)])
        done.append(at + latencies[said.op] + said.cycles)
        at += core.branch if said.op is Op.BRANCH else 1
    return max(done)


@settings(deadline=None, max_examples=150)
@given(programs(), st.integers(1, 6), st.integers(1, 3))
def test_runs_respect_lower_bounds(program, warps, schedulers):
    core = replace(CORE, schedulers=schedulers, port=2)
    found = cycles(program, core, warps=warps)
    on_memory = sum(
        said.op in {Op.SHARED, Op.LOCAL, Op.GLOBAL, Op.STORE, Op.ENGINE} for said in program
    )
    assert found >= critical_path(core, program)
    assert found >= len(program) * -(-warps // schedulers)
    assert found >= 2 * (on_memory * warps - 1) + 1 if on_memory else True
    latencies = core.latencies()
    assert found <= warps * sum(
        core.fetch + core.branch + 2 * core.line + latencies[said.op] + said.cycles
        for said in program
    )


@settings(deadline=None, max_examples=150)
@given(programs(), st.sampled_from(["arithmetic", "mad", "shared", "local", "far", "fetch"]))
def test_single_warp_runs_at_its_critical_path(program, field):
    free = replace(CORE, line=0)
    assert cycles(program, free) == critical_path(free, program)
    slower = replace(free, **{field: getattr(free, field) + 3})
    assert cycles(program, slower) >= cycles(program, free)


@settings(deadline=None, max_examples=150)
@given(programs(), st.integers(1, 5), st.integers(1, 3))
def test_parts_sum_within_total_and_grow_with_warps(program, warps, blocks):
    found = run(CORE, program, blocks, warps)
    assert sum(found.parts.values()) <= found.cycles * found.warps
    assert found.cycles >= run(CORE, program, 1, 1).cycles
