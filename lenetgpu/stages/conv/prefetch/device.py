"""What the Pascal paper's Table 1 says of a GPU: of the paper's, of an H200, of the one here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

from lenetgpu.gpu.device import driver_gpus

FLOAT = 4
WARP = 32
_RESERVED = 1 << 10
# Clocks of a load from global memory: 9.0 measured on an H200 by pointer chasing, others published.
_LATENCY = {75: 434, 80: 466, 89: 541, 90: 700}
_USUAL_LATENCY = 600
_CORES = {75: 64, 80: 64}
_USUAL_CORES = 128


@dataclass(frozen=True)
class DeviceFacts:
    """Table 1: cores and shared memory of one multiprocessor, `latency` of a load in clocks."""

    name: str
    multiprocessors: int
    cores: int
    clock_mhz: float
    bandwidth_gb: float
    latency: int
    shared_bytes: int

    @property
    def bytes_per_clock(self) -> int:
        """Transmission rate of the whole device."""
        return int(1000 * self.bandwidth_gb / self.clock_mhz)

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
        by_registers = (64 << 10) // (threads * ceil(registers / 8) * 8)
        by_shared = self.shared_bytes // (shared + _RESERVED)
        return min(by_registers, by_shared, 2048 // threads, 32)


GTX_1080_TI = DeviceFacts("GTX 1080Ti", 28, 128, 1480, 484, 258, 96 << 10)
H200 = DeviceFacts("H200", 132, 128, 1980, 4814, 700, 228 << 10)
NAMED = {"gtx1080ti": GTX_1080_TI, "h200": H200}


@cache
def _of_device(index: int) -> DeviceFacts:
    import cupy

    gpu, read = driver_gpus()[index], cupy.cuda.Device(index).attributes
    clock, memory_clock = read["ClockRate"] / 1e3, read["MemoryClockRate"] / 1e3
    return DeviceFacts(
        gpu.name,
        read["MultiProcessorCount"],
        _CORES.get(gpu.compute_capability, _USUAL_CORES),
        clock or H200.clock_mhz,
        2 * memory_clock * read["GlobalMemoryBusWidth"] / 8e3 or H200.bandwidth_gb,
        _LATENCY.get(gpu.compute_capability, _USUAL_LATENCY),
        read["MaxSharedMemoryPerMultiprocessor"],
    )


def device_facts() -> DeviceFacts:
    """The current GPU's facts by the driver's attributes; an H200's where there is none."""
    from lenetgpu.gpu.device import cupy_installed

    if not driver_gpus() or not cupy_installed():
        return H200
    import cupy

    return _of_device(cupy.cuda.runtime.getDevice())
