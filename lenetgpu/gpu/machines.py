"""GPU parameters for planners: SMs, clocks and memory of the current GPU or of a known one."""

from dataclasses import dataclass
from functools import cache
from math import ceil

from lenetgpu.arrays import cupy
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
    """Parameters of a GPU (Chang, Table 1)."""

    name: str
    compute_capability: int
    multiprocessors: int
    cores: int  # per SM
    clock_mhz: float  # the maximum
    bandwidth_gbs: float  # of memory
    latency: int  # cycles of a load from memory
    shared_bytes: int  # per SM
    block_bytes: int  # most shared memory of a block
    cache_bytes: int  # of the L2 cache

    @property
    def limits(self) -> Processor:
        """Return an SM's limits; an unknown capability has those of the next lower known one."""
        return PROCESSORS[max(c for c in PROCESSORS if c <= self.compute_capability)]

    @property
    def bytes_per_clock(self) -> int:
        """Memory bandwidth of the whole device, in bytes per clock."""
        return int(1000 * self.bandwidth_gbs / self.clock_mhz)

    @property
    def n_fma(self) -> int:
        """Multiply-adds that hide the latency on one SM: latency x cores x 2."""
        return self.latency * self.cores * 2

    @property
    def data_requirement(self) -> int:
        """Bytes in flight that hide the latency."""
        return self.bytes_per_clock * self.latency

    @property
    def threads(self) -> int:
        """Threads per SM that request these bytes, four each, in whole warps."""
        words = ceil(self.data_requirement / FLOAT)
        return ceil(ceil(words / self.multiprocessors) / WARP) * WARP

    @property
    def v_s(self) -> int:
        """Minimum bytes of a bulk transfer to all SMs."""
        return self.threads * FLOAT * self.multiprocessors

    def blocks_per_sm(self, threads: int, registers: int, shared: int) -> int:
        """Return the blocks that an SM holds at once; 0 if not even one fits."""
        return residency(Demand(registers, threads, shared), self.limits).blocks


_KIB = 1 << 10
SM_90_BLOCK_BYTES = 227 * _KIB  # the most of a block; some wgmma kernels use all of it
GTX_1080_TI = Machine("GTX 1080Ti", 61, 28, 128, 1480, 484, 258, 96 * _KIB, 48 * _KIB, 2816 * _KIB)
# The paper gives no latency for its other GPU; this is the GTX 1080 Ti's. Base clocks, as there.
GTX_TITAN_X = Machine(
    "GTX Titan X", 52, 24, 128, 1000, 336.5, 258, 96 * _KIB, 48 * _KIB, 3072 * _KIB
)
H100 = Machine("H100", 90, 132, 128, 1980, 3352, 700, 228 * _KIB, SM_90_BLOCK_BYTES, 50 << 20)
H200 = Machine("H200", 90, 132, 128, 1980, 4814, 700, 228 * _KIB, SM_90_BLOCK_BYTES, 60 << 20)
KNOWN = {"gtx1080ti": GTX_1080_TI, "titanx": GTX_TITAN_X, "h100": H100, "h200": H200}
FULL_NAMES = {"NVIDIA H100 80GB HBM3": H100, "NVIDIA H200": H200}  # by the driver's names
USUAL = H200  # Default parameters without a GPU, and for values that a driver does not report.


def known(name: str) -> Machine:
    """Return the known machine `name`; raise LenetError with the known names if there is none."""
    if name not in KNOWN:
        raise LenetError(f"--as {name}: expected one of {', '.join(KNOWN)}")
    return KNOWN[name]


def twins(machine: Machine) -> tuple[str, ...]:
    """Return the driver's names of known GPUs with the same chip (memory, clocks may differ)."""
    chip = machine.compute_capability, machine.multiprocessors
    return tuple(
        name
        for name, known in FULL_NAMES.items()
        if (known.compute_capability, known.multiprocessors) == chip
    )


@cache
def _of_device(index: int) -> Machine:
    gpu, attributes = driver_gpus()[index], cupy.cuda.Device(index).attributes
    clock, memory_clock = attributes["ClockRate"] / 1e3, attributes["MemoryClockRate"] / 1e3
    return Machine(
        gpu.name,
        gpu.compute_capability,
        attributes["MultiProcessorCount"],
        _CORES.get(gpu.compute_capability, _USUAL_CORES),
        clock or USUAL.clock_mhz,
        2 * memory_clock * attributes["GlobalMemoryBusWidth"] / 8e3 or USUAL.bandwidth_gbs,
        _LATENCY.get(gpu.compute_capability, _USUAL_LATENCY),
        attributes["MaxSharedMemoryPerMultiprocessor"],
        attributes["MaxSharedMemoryPerBlockOptin"],
        attributes["L2CacheSize"],
    )


def current() -> Machine:
    """Return the current GPU's parameters from the driver's attributes; USUAL without a GPU."""
    has_gpu = driver_gpus() and cupy_installed()
    return _of_device(cupy.cuda.runtime.getDevice()) if has_gpu else USUAL


def multiprocessors() -> int:
    """Return the number of SMs of the current device."""
    return _of_device(cupy.cuda.runtime.getDevice()).multiprocessors
