"""How many blocks a multiprocessor holds at once, and in how many waves a grid runs.

Equations (2) to (7) of the cuda-convnet2 paper: blocks by registers, by shared memory and by the
hardware, here with the units in which each is given out. Needs no GPU, but for `occupancy`,
`demand_of` and `processor_of`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from lenetgpu.errors import LenetError
from lenetgpu.gpu.launch import Launch, function, multiprocessors

_WARP = 32
_MOST_THREADS = 1024
_KIB = 1 << 10
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


def processor(compute_capability: int) -> Processor:
    """The limits of compute capability 90 (9.0), 89, ...; LenetError where they are not known."""
    if compute_capability not in PROCESSORS:
        known = ", ".join(f"{c // 10}.{c % 10}" for c in PROCESSORS)
        raise LenetError(
            f"occupancy: expected a compute capability of {known}, "
            f"found {compute_capability // 10}.{compute_capability % 10}"
        )
    return PROCESSORS[compute_capability]


@dataclass(frozen=True)
class Demand:
    """What a block asks for: registers a thread, threads, shared bytes (static and dynamic)."""

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
        return min(count for count, _ in self._limits())

    @property
    def limit(self) -> str:
        """What runs out first; where several do, the one that a kernel can change."""
        return min(self._limits(), key=lambda limit: limit[0])[1]

    def _limits(self) -> Iterator[tuple[int, str]]:
        if self.by_registers is not None:
            yield self.by_registers, "registers"
        if self.by_shared is not None:
            yield self.by_shared, "shared memory"
        yield self.by_threads, "threads"
        yield self.by_hardware, "blocks"


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def registers_per_block(demand: Demand, limits: Processor) -> int:
    """Registers a block takes, in whole units per warp."""
    return demand.warps * _up(demand.registers * _WARP, limits.register_unit)


def shared_per_block(demand: Demand, limits: Processor) -> int:
    """Shared bytes a block takes, the driver's among them, in whole units."""
    return _up(demand.shared_bytes + limits.reserved_bytes, limits.shared_unit)


def residency(demand: Demand, limits: Processor) -> Residency:
    """Equations (2), (3) and (4): the blocks that a multiprocessor holds at once.

    A register file is split between `partitions`, and a warp's registers lie in one of them.
    """
    by_registers = by_shared = None
    if demand.registers:
        per_warp = registers_per_block(demand, limits) // demand.warps
        warps = limits.registers // limits.partitions // per_warp * limits.partitions
        fits = per_warp * _up(demand.warps, limits.partitions) <= limits.registers
        by_registers = warps // demand.warps if fits else 0
    if shared_per_block(demand, limits):
        by_shared = limits.shared_bytes // shared_per_block(demand, limits)
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
    batches: int = 5,
) -> list[tuple[str, str]]:
    """(what, how much) lines: each equation with its numbers for one launch of `grid` blocks."""
    held = residency(demand, limits)
    file, shared = registers_per_block(demand, limits), shared_per_block(demand, limits)
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
    lines.append(
        (
            "waves",
            f"{grid:,} / ({held.blocks} x {processors}) = {ran.waves:.2f}, "
            f"the last {ran.last:.0%} full",
        )
    )
    if per_image:
        full = islice(filling_batches(per_image, ran.at_once), batches)
        lines.append(("full batches", ", ".join(f"{batch:,}" for batch in full)))
    return lines


def _quotient(blocks: int | None, have: int, each: int) -> str:
    return "no limit" if blocks is None else f"{blocks} ({have:,} / {each:,})"


def _product(dim: tuple[int, ...]) -> int:
    total = 1
    for extent in dim:
        total *= extent
    return total


def grid_of(launched: Launch) -> int:
    """Blocks of a recorded launch."""
    return _product(launched.grid)


def demand_of(launched: Launch) -> Demand:
    """What a block of a recorded launch asks for on the current device, by ptxas' report."""
    from lenetgpu.gpu.device import current_arch
    from lenetgpu.gpu.nvrtc import compile_kernel

    used = compile_kernel(launched.kernel, current_arch()).resources
    return Demand(used.registers, _product(launched.block), used.shared_bytes + launched.shared)


def current_processor() -> Processor:
    """The limits of the current device's multiprocessors; LenetError where they are not known."""
    import cupy

    from lenetgpu.gpu.device import driver_gpus

    return processor(driver_gpus()[cupy.cuda.runtime.getDevice()].compute_capability)


def binding_limit(launched: Launch) -> str | None:
    """What keeps more blocks of a recorded launch off a multiprocessor; None where not known."""
    try:
        return residency(demand_of(launched), current_processor()).limit
    except LenetError:
        return None


def active_blocks(launched: Launch) -> int:
    """Blocks per multiprocessor of a recorded launch, by the driver."""
    from cupy.cuda import driver

    count: int = driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function(launched.kernel).ptr, _product(launched.block), launched.shared
    )
    return count


def occupancy(launched: Launch) -> float:
    """Resident threads over the multiprocessor's limit for a recorded launch, 0 to 1."""
    import cupy

    limit = cupy.cuda.Device().attributes["MaxThreadsPerMultiProcessor"]
    share: float = active_blocks(launched) * _product(launched.block) / limit
    return share


def explain_launch(
    launched: Launch, per_image: Fraction | int | None = None
) -> list[tuple[str, str]]:
    """`explain_waves` of a recorded launch on the current device."""
    demand, limits = demand_of(launched), current_processor()
    return explain_waves(demand, limits, multiprocessors(), grid_of(launched), per_image)
