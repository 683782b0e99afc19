"""Blocks that an SM holds at once, and waves of a grid: equations (2) to (7) of convnet2's paper.

Registers and shared memory are counted in their allocation units. Needs no GPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import islice

_WARP, _MOST_THREADS, _KIB = 32, 1024, 1 << 10
_FULL = 0.9


@dataclass(frozen=True)
class Processor:
    """An SM's limits and allocation units."""

    warps: int
    blocks: int
    shared_bytes: int
    registers: int = 65_536
    register_unit: int = 256  # per warp
    shared_unit: int = 128  # bytes per block
    reserved_bytes: int = 1024  # of shared memory per block, for the driver
    partitions: int = 4  # of the register file; a warp's registers are in one of them


PROCESSORS = {
    20: Processor(48, 8, 48 * _KIB, 32_768, 64, 128, reserved_bytes=0, partitions=1),
    52: Processor(64, 32, 96 * _KIB, shared_unit=256, reserved_bytes=0),
    61: Processor(64, 32, 96 * _KIB, shared_unit=256, reserved_bytes=0),
    75: Processor(32, 16, 64 * _KIB, shared_unit=256, reserved_bytes=0),
    80: Processor(64, 32, 164 * _KIB),
    86: Processor(48, 16, 100 * _KIB),
    87: Processor(48, 16, 164 * _KIB),
    89: Processor(48, 24, 100 * _KIB),
    90: Processor(64, 32, 228 * _KIB),
    100: Processor(64, 32, 228 * _KIB),
    103: Processor(64, 32, 228 * _KIB),
    120: Processor(48, 24, 100 * _KIB),
    121: Processor(48, 24, 100 * _KIB),
}


@dataclass(frozen=True)
class Demand:
    """Resources of a block: registers per thread, threads, shared bytes (static and dynamic)."""

    registers: int
    threads: int
    shared_bytes: int

    @property
    def warps(self) -> int:
        """Warps per block."""
        return _up(self.threads, _WARP) // _WARP


@dataclass(frozen=True)
class Residency:
    """Blocks that an SM can hold by each resource; None if a resource sets no limit."""

    by_registers: int | None
    by_shared: int | None
    by_threads: int
    by_hardware: int
    blocks: int  # their minimum, equation (4)
    limit: str  # the resource that runs out first; on a tie one that a kernel can change


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _per_block(demand: Demand, limits: Processor) -> tuple[int, int]:
    """Return a block's registers and shared bytes (with the driver's), in allocation units."""
    registers = demand.warps * _up(demand.registers * _WARP, limits.register_unit)
    return registers, _up(demand.shared_bytes + limits.reserved_bytes, limits.shared_unit)


@cache
def residency(demand: Demand, limits: Processor) -> Residency:
    """Return the resident blocks per SM by equations (2), (3) and (4)."""
    by_registers = by_shared = None
    registers, shared = _per_block(demand, limits)
    if demand.registers:
        per_warp = registers // demand.warps
        warps = limits.registers // limits.partitions // per_warp * limits.partitions
        fits = per_warp * _up(demand.warps, limits.partitions) <= limits.registers
        by_registers = warps // demand.warps if fits else 0
    if shared:
        by_shared = limits.shared_bytes // shared
    by_threads = limits.warps // demand.warps if demand.threads <= _MOST_THREADS else 0
    counts = (by_registers, by_shared, by_threads, limits.blocks)
    names = ("registers", "shared memory", "threads", "blocks")
    known = [(count, name) for count, name in zip(counts, names, strict=True) if count is not None]
    return Residency(*counts, *min(known, key=lambda pair: pair[0]))


@dataclass(frozen=True)
class Waves:
    """A grid of `grid` blocks on a GPU that holds `concurrent` blocks."""

    grid: int
    concurrent: int

    @property
    def waves(self) -> float:
        """Number of waves: blocks of the grid / resident blocks."""
        return self.grid / self.concurrent

    @property
    def last(self) -> float:
        """Occupied fraction of the last wave."""
        return (self.grid - 1) % self.concurrent / self.concurrent + 1 / self.concurrent


def filling_batches(per_image: Fraction | int, concurrent: int) -> Iterator[int]:
    """Yield ascending batches whose last wave is at least 90 % full; `per_image`: blocks."""
    batch, wave = 0, 0
    while True:
        wave = max(wave + 1, int(-(-(batch + 1) * per_image // concurrent)))
        batch = int(wave * concurrent / Fraction(per_image))
        if Waves(int(-(-batch * per_image // 1)), concurrent).last >= _FULL:
            yield batch


def explain_waves(
    demand: Demand,
    limits: Processor,
    processors: int,
    grid: int,
    per_image: Fraction | int | None = None,
) -> list[tuple[str, str]]:
    """Return (quantity, value) lines: the equations' numbers for a launch of `grid` blocks."""
    resident = residency(demand, limits)
    registers, shared = _per_block(demand, limits)
    lines = [
        ("by registers (2)", _quotient(resident.by_registers, limits.registers, registers)),
        ("by shared memory (3)", _quotient(resident.by_shared, limits.shared_bytes, shared)),
        ("by threads", _quotient(resident.by_threads, limits.warps, demand.warps)),
        ("by hardware", str(resident.by_hardware)),
        ("blocks/SM (4)", f"{resident.blocks}, limited by {resident.limit}"),
        ("occupancy", f"{resident.blocks * demand.warps / limits.warps:.0%}"),
    ]
    if not resident.blocks:
        return lines
    waves = Waves(grid, resident.blocks * processors)
    count = f"{grid:,} / ({resident.blocks} x {processors}) = {waves.waves:.2f}"
    lines.append(("waves", f"{count}, the last {waves.last:.0%} full"))
    if per_image:
        full = islice(filling_batches(per_image, waves.concurrent), 5)
        lines.append(("full batches", ", ".join(f"{batch:,}" for batch in full)))
    return lines


def _quotient(blocks: int | None, have: int, each: int) -> str:
    return "no limit" if blocks is None else f"{blocks} ({have:,} / {each:,})"
