"""Use of the current device by recorded launches: occupancy, its limit, waves."""

from __future__ import annotations

from fractions import Fraction
from math import prod

from lenetgpu.gpu import machines
from lenetgpu.gpu.device import current_arch
from lenetgpu.gpu.launch import Launch, function
from lenetgpu.gpu.nvrtc import compile_kernel
from lenetgpu.gpu.occupancy import Demand, explain_waves, residency


def grid_of(launched: Launch) -> int:
    """Blocks of a recorded launch."""
    return prod(launched.grid)


def demand_of(launched: Launch) -> Demand:
    """The demand of a recorded launch's block on the current device, by ptxas' report."""
    used = compile_kernel(launched.kernel, current_arch()).resources
    return Demand(used.registers, prod(launched.block), used.shared_bytes + launched.shared)


def binding_limit(launched: Launch) -> str:
    """The resource that keeps more blocks of a recorded launch off a multiprocessor."""
    return residency(demand_of(launched), machines.current().limits).limit


def active_blocks(launched: Launch) -> int:
    """Blocks per multiprocessor of a recorded launch, by the driver."""
    from cupy.cuda import driver

    count: int = driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function(launched.kernel).ptr, prod(launched.block), launched.shared
    )
    return count


def occupancy(launched: Launch) -> float:
    """Resident threads over the multiprocessor's limit for a recorded launch, 0 to 1."""
    import cupy

    limit = cupy.cuda.Device().attributes["MaxThreadsPerMultiProcessor"]
    share: float = active_blocks(launched) * prod(launched.block) / limit
    return share


def explain_launch(
    launched: Launch, per_image: Fraction | int | None = None
) -> list[tuple[str, str]]:
    """`explain_waves` of a recorded launch on the current device."""
    machine, demand = machines.current(), demand_of(launched)
    grid = grid_of(launched)
    return explain_waves(demand, machine.limits, machine.multiprocessors, grid, per_image)
