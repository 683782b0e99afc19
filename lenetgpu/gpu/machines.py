"""A GPU's figures, which planners plan with: the current one's, or a known one's by name.

The only place that knows how many multiprocessors, which clocks and how much memory a GPU has;
what one multiprocessor holds at once, by capability, is in gpu/occupancy.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import cupy_installed, driver_gpus
from lenetgpu.gpu.occupancy import PROCESSORS, Demand, Processor, residency

FLOAT = 4
WARP = 32
# Clocks of a load from global memory: 9.0 measured on an H200 by pointer chasing, others published.
_LATENCY, _USUAL_LATENCY = {75: 434, 80: 466, 89: 541, 90: 700}, 600
_CORES, _USUAL_CORES = {75: 64, 80: 64}, 128


@dataclass(frozen=True)
class Machine:
    """Figures of one GPU; cores and shared memory are one multiprocessor's (Chang, Table 1).

    `clock_mhz` is the highest, `bandwidth_gbs` the memory's, `latency` a load's in clocks,
    `block_bytes` the shared memory that one block may ask for, `cache_bytes` the L2 cache.
    """

    name: str
    compute_capability: int
    multiprocessors: int
    cores: int
    clock_mhz: float
    bandwidth_gbs: float
    latency: int
    shared_bytes: int
    block_bytes: int
    cache_bytes: int

    @property
    def limits(self) -> Processor:
        """A multiprocessor's limits; for an unknown capability those of the one before it."""
        return PROCESSORS[max(c for c in PROCESSORS if c <= self.compute_capability)]

    @property
    def bytes_per_clock(self) -> int:
        """Transmission rate of the whole device."""
        return int(1000 * self.bandwidth_gbs / self.clock_mhz)

    @property
    def n_fma(self) -> int:
        """Multiply-adds that hide the latency in one multiprocessor: latency x cores x 2."""
        return self.latency * self.cores * 2

    @property
    def data_requirement(self) -> int:
        """Bytes under way that hide the latency."""
        return self.bytes_per_clock * self.latency

    @property
    def threads(self) -> int:
        """Threads of a multiprocessor that ask for these bytes, four each, in whole warps."""
        words = ceil(self.data_requirement / FLOAT)
        return ceil(ceil(words / self.multiprocessors) / WARP) * WARP

    @property
    def v_s(self) -> int:
        """Least bytes of one bulk transfer to all multiprocessors."""
        return self.threads * FLOAT * self.multiprocessors

    def resident(self, threads: int, registers: int, shared: int) -> int:
        """Blocks that one multiprocessor holds at once; 0 where not even one fits."""
        return residency(Demand(registers, threads, shared), self.limits).blocks


_KIB = 1 << 10
SM_90_BLOCK_BYTES = 227 * _KIB
"""Shared memory that one block may ask for on capability 9.0; some wgmma kernels take it all."""
GTX_1080_TI = Machine("GTX 1080Ti", 61, 28, 128, 1480, 484, 258, 96 * _KIB, 48 * _KIB, 2816 * _KIB)
# The paper gives no latency for its other GPU: the GTX 1080 Ti's. Clocks are base clocks, as its.
GTX_TITAN_X = Machine(
    "GTX Titan X", 52, 24, 128, 1000, 336.5, 258, 96 * _KIB, 48 * _KIB, 3072 * _KIB
)
H100 = Machine("H100", 90, 132, 128, 1980, 3352, 700, 228 * _KIB, SM_90_BLOCK_BYTES, 50 << 20)
H200 = Machine("H200", 90, 132, 128, 1980, 4814, 700, 228 * _KIB, SM_90_BLOCK_BYTES, 60 << 20)
KNOWN = {"gtx1080ti": GTX_1080_TI, "titanx": GTX_TITAN_X, "h100": H100, "h200": H200}
FULL_NAMES = {"NVIDIA H100 80GB HBM3": H100, "NVIDIA H200": H200}
"""Those that measured rows are of, by the driver's names."""
USUAL = H200
"""Whose figures stand in where there is no GPU, and for what a driver does not say."""


def known(name: str) -> Machine:
    """The known machine called `name`; LenetError with their names where there is none."""
    if name not in KNOWN:
        raise LenetError(f"--as {name}: expected one of {', '.join(KNOWN)}")
    return KNOWN[name]


def full_names(machine: Machine) -> tuple[str, ...]:
    """The driver's names of a known machine; none for others, whose name is the driver's."""
    return tuple(full for full, found in FULL_NAMES.items() if found.name == machine.name)


def twins(machine: Machine) -> tuple[str, ...]:
    """Full names of known GPUs with the multiprocessors of `machine`: as many, of its capability.

    One chip, with other memory or at other clocks.
    """

    def size(of: Machine) -> tuple[int, int]:
        return of.compute_capability, of.multiprocessors

    return tuple(full for full, known in FULL_NAMES.items() if size(known) == size(machine))


@cache
def _of_device(index: int) -> Machine:
    import cupy

    gpu, read = driver_gpus()[index], cupy.cuda.Device(index).attributes
    clock, memory_clock = read["ClockRate"] / 1e3, read["MemoryClockRate"] / 1e3
    return Machine(
        gpu.name,
        gpu.compute_capability,
        read["MultiProcessorCount"],
        _CORES.get(gpu.compute_capability, _USUAL_CORES),
        clock or USUAL.clock_mhz,
        2 * memory_clock * read["GlobalMemoryBusWidth"] / 8e3 or USUAL.bandwidth_gbs,
        _LATENCY.get(gpu.compute_capability, _USUAL_LATENCY),
        read["MaxSharedMemoryPerMultiprocessor"],
        read["MaxSharedMemoryPerBlockOptin"],
        read["L2CacheSize"],
    )


def current() -> Machine:
    """The current GPU's figures by the driver's attributes; USUAL's where there is none."""
    return _current() if driver_gpus() and cupy_installed() else USUAL


def _current() -> Machine:
    import cupy

    return _of_device(cupy.cuda.runtime.getDevice())


def multiprocessors() -> int:
    """Multiprocessors of the current device."""
    return _current().multiprocessors
