"""What the device can do at most: measured once per device, cached, and the share of it reached."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lenetgpu.cpu.threads import core_count
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.measure.timing import cpu_ms, gpu_ms
from lenetgpu.store import cache_dir, write_atomically

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_CHAINS, _STEPS, _THREADS = 8, 4096, 256
_DEFINES = (("CHAINS", _CHAINS), ("STEPS", _STEPS), ("THREADS", _THREADS))
FMA_RATE = Kernel(_SOURCE, "fma_rate", _DEFINES)
MMA_RATE = Kernel(_SOURCE, "mma_rate", _DEFINES)
_MMA_FLOP_PER_WARP = 2 * 16 * 8 * 8
_COPY_BYTES = 1 << 30
_CPU_COPY_BYTES = 1 << 28
_REPEATS = 7
_TENSOR_PRECISIONS = ("fp16", "fp16x3", "int8", "tf32")


@dataclass(frozen=True)
class Ceilings:
    """Measured peaks: copy in GB/s (read plus written), multiply-adds and tensor in TFLOP/s.

    `tensor_tflops` is mma.sync's rate with fp32 sums, 0 where there are no tensor cores.
    """

    device: str
    copy_gbs: float
    fma_tflops: float
    tensor_tflops: float

    def share(self, flop: float, moved: float, seconds: float, precision: str) -> tuple[float, str]:
        """(share of the roofline reached, "compute" or "memory": the side that bounds it)."""
        peak = self.fma_tflops
        if precision in _TENSOR_PRECISIONS and self.tensor_tflops:
            peak = self.tensor_tflops
        compute, memory = flop / (peak * 1e12), moved / (self.copy_gbs * 1e9)
        bound = "compute" if compute >= memory else "memory"
        return (max(compute, memory) / seconds if seconds else 0.0), bound


def _timed(elapsed_ms: Callable[[Callable[[], Any]], float], work: Callable[[], Any]) -> float:
    """Seconds of `work` at best, after one pass to warm up: a ceiling is what was reached."""
    elapsed_ms(work)
    return min(elapsed_ms(work) for _ in range(_REPEATS)) / 1e3


def _gpu_copy_gbs() -> float:
    import cupy

    runtime = cupy.cuda.runtime
    size = min(_COPY_BYTES, runtime.memGetInfo()[0] // 4)
    source, target = cupy.ones(size, cupy.uint8), cupy.empty(size, cupy.uint8)

    def copy() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(target.data.ptr, source.data.ptr, size, kind, stream)

    rate: float = 2 * size / _timed(gpu_ms, copy) / 1e9
    return rate


def _measure_gpu(name: str) -> Ceilings:
    import cupy
    import numpy as np

    blocks = 8 * multiprocessors()
    out = cupy.empty(blocks * _THREADS, cupy.float32)
    numbers = (out, np.float32(0.999), np.float32(0.001))
    seconds = _timed(gpu_ms, lambda: launch(FMA_RATE, (blocks,), (_THREADS,), numbers))
    fma = 2 * blocks * _THREADS * _CHAINS * _STEPS / seconds / 1e12
    halves = (out, np.uint32(0x3C003C00), np.uint32(0x3C003C00))
    seconds = _timed(gpu_ms, lambda: launch(MMA_RATE, (blocks,), (_THREADS,), halves))
    products = blocks * _THREADS // 32 * _CHAINS * _STEPS
    tensor = _MMA_FLOP_PER_WARP * products / seconds / 1e12
    return Ceilings(name, _gpu_copy_gbs(), fma, tensor)


def _measure_cpu(name: str) -> Ceilings:
    import numpy as np

    from lenetgpu.cpu.threads import parallel_ranges
    from lenetgpu.cpu.tile import CHANNELS, PIXELS, pack_weights, rows_times_matrix

    source = np.ones(_CPU_COPY_BYTES, np.uint8)
    target = np.empty_like(source)

    def copy() -> None:
        parallel_ranges(len(source), lambda lo, hi: np.copyto(target[lo:hi], source[lo:hi]))

    copy_gbs = 2 * len(source) / _timed(cpu_ms, copy) / 1e9
    depth, passes = 128, 4000
    x = np.ones(PIXELS * depth, np.float32)
    w = pack_weights(np.ones((1, depth, CHANNELS), np.float32))
    geometry = (passes, 0, 0, depth, depth, PIXELS, CHANNELS)
    outputs = [np.empty(passes * PIXELS * CHANNELS, np.float32) for _ in range(core_count())]

    def multiply() -> None:
        parallel_ranges(
            len(outputs),
            lambda lo, hi: [
                rows_times_matrix(x, w, outputs[i], geometry, 0, passes) for i in range(lo, hi)
            ],
        )

    flop = 2 * len(outputs) * passes * PIXELS * CHANNELS * depth
    return Ceilings(name, copy_gbs, flop / _timed(cpu_ms, multiply) / 1e12, 0.0)


def ceilings(device: str, name: str, again: bool = False) -> Ceilings:
    """The ceilings of "cpu" or "cuda" (the current GPU) called `name`, from the cache if there."""
    cores = core_count() if device == "cpu" else 0
    key = hashlib.sha256(f"{device} {name} {cores}".encode()).hexdigest()[:12]
    path = cache_dir() / f"ceilings-{device}-{key}.json"
    if not again:
        try:
            return Ceilings(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            path.unlink(missing_ok=True)
    measured = _measure_gpu(name) if device == "cuda" else _measure_cpu(name)
    write_atomically(path, json.dumps(asdict(measured)).encode())
    return measured
