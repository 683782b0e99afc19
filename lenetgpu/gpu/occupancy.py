"""Blocks that a multiprocessor holds at once, and waves in which a grid runs.

Equations (2) to (7) of the cuda-convnet2 paper: blocks by registers, by shared memory and by the
hardware, here with the units in which each is given out. Needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import islice

_WARP, _MOST_THREADS, _KIB = 32, 1024, 1 << 10
_FULL = 0.9


@dataclass(frozen=True)
class Processor:
    """A multiprocessor's limits; registers come in units per warp, shared bytes per block.

    `reserved_bytes` of shared memory go to the driver in each block.
    """

    warps: int
    blocks: int
    shared_bytes: int
    registers: int = 65_536
    register_unit: int = 256
    shared_unit: int = 128
    reserved_bytes: int = 1024
    partitions: int = 4


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
    """A block's demand: registers a thread, threads, shared bytes (static and dynamic)."""

    registers: int
    threads: int
    shared_bytes: int

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return _up(self.threads, _WARP) // _WARP


@dataclass(frozen=True)
class Residency:
    """Blocks a multiprocessor can hold by each resource; None where it sets no limit."""

    by_registers: int | None
    by_shared: int | None
    by_threads: int
    by_hardware: int

    @property
    def blocks(self) -> int:
        """Equation (4): the least of them."""
        return self._least()[0]

    @property
    def limit(self) -> str:
        """The resource that runs out first; of several, the one that a kernel can change."""
        return self._least()[1]

    def _least(self) -> tuple[int, str]:
        counts = (self.by_registers, self.by_shared, self.by_threads, self.by_hardware)
        named = zip(counts, ("registers", "shared memory", "threads", "blocks"), strict=True)
        limits = [(count, name) for count, name in named if count is not None]
        return min(limits, key=lambda limit: limit[0])


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _per_block(demand: Demand, limits: Processor) -> tuple[int, int]:
    """Registers and shared bytes that a block takes, the driver's among them, in whole units."""
    registers = demand.warps * _up(demand.registers * _WARP, limits.register_unit)
    return registers, _up(demand.shared_bytes + limits.reserved_bytes, limits.shared_unit)


@cache
def residency(demand: Demand, limits: Processor) -> Residency:
    """Equations (2), (3) and (4): the blocks that a multiprocessor holds at once.

    A register file is split between `partitions`, and a warp's registers lie in one of them.
    """
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
    return Residency(by_registers, by_shared, by_threads, limits.blocks)


@dataclass(frozen=True)
class Waves:
    """A grid of `grid` blocks on a GPU that holds `at_once` of them."""

    grid: int
    at_once: int

    @property
    def waves(self) -> float:
        """Grid over blocks at once: how often the GPU is filled."""
        return self.grid / self.at_once

    @property
    def last(self) -> float:
        """Share of the last wave that has blocks."""
        return (self.grid - 1) % self.at_once / self.at_once + 1 / self.at_once

    @property
    def used(self) -> float:
        """Share of all waves' places that have blocks."""
        return self.waves / -(-self.grid // self.at_once)


def grid_blocks(images: int, outputs: int, images_per_block: int, outputs_per_block: int) -> int:
    """Equation (5): blocks of cuda-convnet2's kernel, `outputs` being width x height x filters."""
    return -(-images // images_per_block) * -(-outputs // outputs_per_block)


def filling_batches(per_image: Fraction | int, at_once: int) -> Iterator[int]:
    """Batches, ascending, whose last wave is full or lacks a tenth at most (section 2.3).

    `per_image` is the blocks of one image, a fraction where a block takes several.
    """
    batch, wave = 0, 0
    while True:
        wave = max(wave + 1, int(-(-(batch + 1) * per_image // at_once)))
        batch = int(wave * at_once / Fraction(per_image))
        if Waves(int(-(-batch * per_image // 1)), at_once).last >= _FULL:
            yield batch


def explain_waves(
    demand: Demand,
    limits: Processor,
    processors: int,
    grid: int,
    per_image: Fraction | int | None = None,
) -> list[tuple[str, str]]:
    """(what, how much) lines: each equation with its numbers for one launch of `grid` blocks."""
    held = residency(demand, limits)
    file, shared = _per_block(demand, limits)
    lines = [
        ("by registers (2)", _quotient(held.by_registers, limits.registers, file)),
        ("by shared memory (3)", _quotient(held.by_shared, limits.shared_bytes, shared)),
        ("by threads", _quotient(held.by_threads, limits.warps, demand.warps)),
        ("by hardware", str(held.by_hardware)),
        ("blocks/SM (4)", f"{held.blocks}, limited by {held.limit}"),
        ("occupancy", f"{held.blocks * demand.warps / limits.warps:.0%}"),
    ]
    if not held.blocks:
        return lines
    ran = Waves(grid, held.blocks * processors)
    waves = f"{grid:,} / ({held.blocks} x {processors}) = {ran.waves:.2f}"
    lines.append(("waves", f"{waves}, the last {ran.last:.0%} full"))
    if per_image:
        full = islice(filling_batches(per_image, ran.at_once), 5)
        lines.append(("full batches", ", ".join(f"{batch:,}" for batch in full)))
    return lines


def _quotient(blocks: int | None, have: int, each: int) -> str:
    return "no limit" if blocks is None else f"{blocks} ({have:,} / {each:,})"
