"""A small timing model of warps on one multiprocessor, which runs without a GPU.

Warps issue in order. An instruction waits for the registers that it reads (a scoreboard), for its
scheduler, which issues one instruction a cycle, for the memory unit if it accesses memory, and for
its line of instructions. Only instructions are cached: a load's latency decides whether it models a
hit or a miss.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

# Kind of an instruction, which decides its latency and units; MAD is a multiply-add
Op = Enum("Op", "ARITHMETIC MAD DIVIDE BRANCH SHARED LOCAL GLOBAL STORE ENGINE BARRIER")
_MEMORY = {Op.SHARED, Op.LOCAL, Op.GLOBAL, Op.STORE, Op.ENGINE}


@dataclass(frozen=True)
class Core:
    """One multiprocessor; in cycles, latencies from an issue until a dependent one is possible."""

    name: str
    schedulers: int  # each issues an instruction a cycle; warp w belongs to w mod `schedulers`
    arithmetic: int
    mad: int
    divide: int
    branch: int  # holds its warp
    shared: int
    local: int
    far: int
    port: int  # of the one memory unit, between instructions
    line: int  # per line of 128 bytes from beyond the first-level cache
    fetch: int  # wait of a warp that enters a line outside its last `fetched` instructions
    fetch_line: int  # instructions per line
    fetched: int  # instructions

    def latencies(self) -> dict[Op, int]:
        """Return the cycles until a result may be read; 1 for operations without a result."""
        named = (Op.ARITHMETIC, Op.MAD, Op.DIVIDE, Op.SHARED, Op.LOCAL)
        own = {op: getattr(self, op.name.lower()) for op in named}
        return {**dict.fromkeys(Op, 1), **own, Op.ENGINE: self.shared, Op.GLOBAL: self.far}


@dataclass(frozen=True)
class Instruction:
    """One instruction of a warp's program."""

    op: Op
    reads: tuple[int, ...] = ()  # indices of its operands' producers
    at: int = 0  # address
    part: str = ""  # that its time is charged to
    cycles: int = 0  # an engine's own, on top of a shared load's
    lines: int = 1  # fetched from beyond the first-level cache
    held: int | None = None  # cycles that it occupies the memory unit, if not the core's `port`


class Listing:
    """Builder of a warp's program: `emit` returns the index that later instructions read."""

    def __init__(self) -> None:
        self.program: list[Instruction] = []
        self.part = ""
        self._at = 0

    def emit(
        self, op: Op, *reads: int, cycles: int = 0, lines: int = 1, held: int | None = None
    ) -> int:
        """Append an instruction; return its index."""
        if any(not 0 <= index < len(self.program) for index in reads):
            raise ValueError(f"expected indices below {len(self.program)}, found {reads}")
        self.program.append(Instruction(op, reads, self._at, self.part, cycles, lines, held))
        self._at += 1
        return len(self.program) - 1

    def chain(self, count: int, *reads: int) -> int:
        """Append `count` dependent arithmetic instructions; return the last one's index."""
        for _ in range(count):
            reads = (self.emit(Op.ARITHMETIC, *reads),)
        return reads[0]

    def repeat(self, times: int, body: Callable[[int], None]) -> None:
        """Append a loop: `body` at the same addresses in each pass, then an add, a test, a jump."""
        start = self._at
        for index in range(times):
            self._at = start
            body(index)
            self.emit(Op.BRANCH, self.chain(2))


@dataclass(frozen=True)
class Timing:
    """Result of a run."""

    cycles: int  # from the first issue until the last result is available
    warps: int
    parts: dict[str, int]  # summed over warps, from each instruction's issue to the warp's next one


def fetch_stalls(core: Core, program: list[Instruction]) -> list[int]:
    """Return the cycles that each instruction waits for its line, with LRU eviction of lines."""
    cached: list[int] = []  # lines, the latest last
    stalls = []
    for instruction in program:
        line = instruction.at // core.fetch_line
        stalls.append(0 if line in cached else core.fetch)
        if line in cached:
            cached.remove(line)
        cached = [*cached, line][-(core.fetched // core.fetch_line) :]
    return stalls


def run(core: Core, program: list[Instruction], blocks: int, warps: int) -> Timing:
    """Run `blocks` blocks of `warps` warps on `core` at once; every warp runs all of `program`."""
    count, latencies, stalls = blocks * warps, core.latencies(), fetch_stalls(core, program)
    results = [[0] * len(program) for _ in range(count)]
    issued_at, at, free = [0] * count, [0] * count, [0] * core.schedulers
    port = line = end = 0
    parts: dict[str, int] = defaultdict(int)
    arrived: dict[int, list[int]] = defaultdict(list)
    waiting = [(stalls[0], warp) for warp in range(count)]

    def go_on(warp: int, earliest: int) -> None:
        at[warp] += 1
        operands = (results[warp][read] for read in program[at[warp]].reads)
        heapq.heappush(waiting, (max([earliest + stalls[at[warp]], *operands]), warp))

    while waiting:
        ready, warp = heapq.heappop(waiting)  # the first to be ready; of several, the lowest
        index = at[warp]
        instruction, scheduler = program[index], warp % core.schedulers
        cycle = max(ready, free[scheduler])
        if instruction.op in _MEMORY:
            if port > cycle:
                heapq.heappush(waiting, (port, warp))
                continue
            port = cycle + (core.port if instruction.held is None else instruction.held)
        free[scheduler] = cycle + 1
        parts[program[max(index - 1, 0)].part] += cycle - issued_at[warp]
        issued_at[warp] = begun = cycle
        if instruction.op in (Op.LOCAL, Op.GLOBAL):
            begun = max(cycle, line)
            line = begun + instruction.lines * core.line
        results[warp][index] = done = begun + latencies[instruction.op] + instruction.cycles
        end = max(end, done)
        if index + 1 == len(program):
            parts[instruction.part] += done - cycle
        elif instruction.op is Op.BARRIER:
            block = arrived[warp // warps]
            block.append(warp)
            if len(block) == warps:
                for other in block:
                    go_on(other, cycle + 1)
                block.clear()
        else:
            go_on(warp, cycle + (core.branch if instruction.op is Op.BRANCH else 1))
    return Timing(end, count, dict(parts))
