"""Peak rates of the device, measured once and cached, and the share of them reached."""

import datetime
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.cpu.jit import addresses, native
from lenetgpu.cpu.threads import core_count, machine_load, parallel_ranges
from lenetgpu.errors import LenetError
from lenetgpu.gpu import nvml
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.measure.timing import cpu_ms, gpu_ms, hold_events
from lenetgpu.store import entries

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_CHAINS, _STEPS, _THREADS = 8, 4096, 256
_DEFINES = (("CHAINS", _CHAINS), ("STEPS", _STEPS), ("THREADS", _THREADS))
FMA_RATE = Kernel(_SOURCE, "fma_rate", _DEFINES)
MMA_RATE = Kernel(_SOURCE, "mma_rate", _DEFINES)
_MMA_FLOP_PER_WARP = 2 * 16 * 8 * 8
_COPY_BYTES = 1 << 30
_CPU_COPY_BYTES = 1 << 28
_REPEATS = {"cuda": 7, "cpu": 25}
_KIND, _LOADED = "ceilings", 0.5
_TENSOR_PRECISIONS = ("fp16", "fp16x3", "tf32x3", "fp16w", "int8", "int8s", "tf32")

_CAUSES = {
    "compute": "another clock or load, or fewer operations than are counted, as Winograd needs",
    "memory": "a cache is faster than the memory copy that measures it",
}


@dataclass(frozen=True)
class Ceilings:
    """Measured peaks of a device, with the date and the conditions of the measurement."""

    device: str
    copy_gbs: float  # read plus written
    fma_tflops: float
    tensor_tflops: float  # of mma.sync with fp32 sums; 0 without tensor cores
    date: str = ""  # ISO
    cores: int = 0  # of a CPU
    driver: int = 0  # CUDA's
    confirmed: bool = False  # measured again by `infer` or `profile` for a share above 1
    load: float = 0.0  # as `load_on`

    def sound(self) -> bool:
        """Return True if all rates are finite, copy and FMA above 0, and tensor not below 0."""
        positive = 0 < self.copy_gbs < inf and 0 < self.fma_tflops < inf
        return positive and 0 <= self.tensor_tflops < inf

    def share(self, flop: float, moved: float, seconds: float, precision: str) -> tuple[float, str]:
        """Return the share of the roofline reached, and its bound, compute or memory."""
        on_tensor_cores = precision in _TENSOR_PRECISIONS and self.tensor_tflops
        peak = self.tensor_tflops if on_tensor_cores else self.fma_tflops
        compute, memory = flop / (peak * 1e12), moved / (self.copy_gbs * 1e9)
        bound = "compute" if compute >= memory else "memory"
        return (max(compute, memory) / seconds if seconds else 0.0), bound


def _timed(device: str, work: Callable[[], Any]) -> float:
    """Return the best time of `work` in seconds, after one warm-up pass."""
    elapsed_ms = gpu_ms if device == "cuda" else cpu_ms
    elapsed_ms(work)
    return min(elapsed_ms(work) for _ in range(_REPEATS[device])) / 1e3


def _measure_gpu(name: str) -> Ceilings:
    blocks = 8 * multiprocessors()
    out = cupy.empty(blocks * _THREADS, cupy.float32)
    numbers = (out, np.float32(0.999), np.float32(0.001))
    seconds = _timed("cuda", lambda: launch(FMA_RATE, (blocks,), (_THREADS,), numbers))
    fma = 2 * blocks * _THREADS * _CHAINS * _STEPS / seconds / 1e12
    ones = (out, np.uint32(0x3C003C00), np.uint32(0x3C003C00))
    seconds = _timed("cuda", lambda: launch(MMA_RATE, (blocks,), (_THREADS,), ones))
    products = blocks * _THREADS // 32 * _CHAINS * _STEPS
    tensor = _MMA_FLOP_PER_WARP * products / seconds / 1e12
    runtime = cupy.cuda.runtime
    size = min(_COPY_BYTES, runtime.memGetInfo()[0] // 4)
    source, target = cupy.ones(size, cupy.uint8), cupy.empty(size, cupy.uint8)

    def copy() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(target.data.ptr, source.data.ptr, size, kind, stream)

    return Ceilings(name, float(2 * size / _timed("cuda", copy) / 1e9), fma, tensor)


def _measure_cpu(name: str) -> Ceilings:
    from lenetgpu.cpu.tile import ROWS_TIMES_MATRIX, Lines, pack_weights
    from lenetgpu.cpu.vector import CHANNELS, PIXELS

    source = np.ones(_CPU_COPY_BYTES, np.uint8)
    target = np.empty_like(source)

    def copy() -> None:
        parallel_ranges(len(source), lambda lo, hi: np.copyto(target[lo:hi], source[lo:hi]))

    copy_gbs = 2 * len(source) / _timed("cpu", copy) / 1e9
    k, passes = 128, 4000
    x = np.ones(PIXELS * k, np.float32)
    lines = Lines(pack_weights(np.ones((1, k, CHANNELS), np.float32)), native(ROWS_TIMES_MATRIX))
    geometry = (passes, 0, 0, k, k, PIXELS, CHANNELS)
    outputs = [np.empty(passes * PIXELS * CHANNELS, np.float32) for _ in range(core_count())]

    def part(lo: int, hi: int) -> None:
        for output in outputs[lo:hi]:
            lines.run(addresses(x, output), geometry, 0, passes)

    def multiply() -> None:
        parallel_ranges(len(outputs), part)

    flop = 2 * len(outputs) * passes * PIXELS * CHANNELS * k
    return Ceilings(name, copy_gbs, flop / _timed("cpu", multiply) / 1e12, 0.0)


def _facts(device: str) -> dict[str, Any]:
    """Return the conditions that ceilings hold for: a CPU's cores, a GPU's CUDA driver."""
    if device == "cpu":
        return {"cores": core_count()}
    return {"driver": int(cupy.cuda.runtime.driverGetVersion())}


def load_on(device: str) -> float:
    """Return the device's other load: a CPU's runnable threads per core, a GPU's processes."""
    return machine_load() if device == "cpu" else float(nvml.others())


def outlived(then: float, now: float) -> bool:
    """Return True if what was measured at load `then` is due again: now at most half of it."""
    return then >= _LOADED and now <= then / 2


def _name(device: str, name: str) -> str:
    return f"{device}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def known(device: str, name: str) -> Ceilings | None:
    """Return the cached ceilings, or None if they are invalid or of another device or setup."""
    cached = entries.load(_KIND, _name(device, name), Ceilings)
    if cached is None or cached.device != name or not cached.sound():
        return None
    return cached if cached == replace(cached, **_facts(device)) else None


def ceilings(device: str, name: str) -> Ceilings:
    """Return the cached or new ceilings of a device; raise LenetError unless rates are above 0."""
    if device == "cuda":
        hold_events()
    limits = known(device, name)
    if limits is None or outlived(limits.load, load_on(device)):
        limits = _measured(device, name)
        entries.save(_KIND, _name(device, name), limits)
    return limits


def _measured(device: str, name: str) -> Ceilings:
    load = load_on(device)
    rates = _measure_gpu(name) if device == "cuda" else _measure_cpu(name)
    if not rates.sound():
        raise LenetError(f"ceilings of {name}: expected rates above 0, found {rates}")
    return replace(rates, date=datetime.date.today().isoformat(), load=load, **_facts(device))


def confirmed(device: str, limits: Ceilings) -> Ceilings:
    """Measure `limits` again and return the better of both; unchanged if confirmed today."""
    if limits.confirmed and limits.date == datetime.date.today().isoformat():
        return limits
    if device == "cuda":  # choices measured under the same load
        entries.forget("auto", limits.device)
    fresh = _measured(device, limits.device)
    rates = ("copy_gbs", "fma_tflops", "tensor_tflops")
    best = {rate: max(getattr(fresh, rate), getattr(limits, rate)) for rate in rates}
    better = replace(fresh, confirmed=True, **best)
    entries.save(_KIND, _name(device, better.device), better)
    return better


def above(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return names of the stage rows whose share of the roofline is above 1, with the cause."""
    return {row["name"]: _CAUSES[row["bound"]] for row in rows if (row["roofline"] or 0.0) > 1.0}
