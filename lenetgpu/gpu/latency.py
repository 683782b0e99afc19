"""The latencies behind N_FMA (Pascal paper, section 2.2), measured on the current GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel

STEPS = (2048, 4096)  # two chain lengths; their difference cancels the fixed cost
FMA_LATENCY, LOAD_LATENCY = (
    tuple(Kernel.beside(__file__, entry, STEPS=steps) for steps in STEPS)
    for entry in ("fma_latency", "load_latency")
)
_CACHES = 2  # memory of the chain, in L2 cache sizes
_RUNS = 5
_INT = 4


@dataclass(frozen=True)
class Latency:
    """Clocks from a multiply-add, or a load from global memory, to the next that depends on it."""

    fma: float
    load: float

    def n_fma(self, machine: Machine) -> int:
        """Return the multiply-adds that hide a load on one SM: latency x cores x 2."""
        return round(self.load * machine.cores * 2)

    def issued(self, machine: Machine) -> int:
        """Return the multiply-adds that an SM's cores issue during a load: half of `n_fma`."""
        return round(self.load * machine.cores)

    def busy_warps(self, machine: Machine) -> int:
        """Return the number of warps of chained multiply-adds that keep an SM's cores busy."""
        return -(-round(self.fma) * machine.cores // 32)


def chain(words: int, spread: int, steps: int, rng: Any) -> Any:
    """Return `steps` + 1 int32 cells from 0, `spread` words apart, none twice, and successors."""
    steps_to = (1 + np.argsort(rng.random(words // spread - 1))[:steps]) * spread
    cells = np.concatenate([np.zeros(1, np.int32), steps_to]).astype(np.int32)
    return cells, np.roll(cells, -1)


def least_per_step(
    kernels: Sequence[Kernel],
    out: Any,
    args: tuple[Any, ...],
    threads: int = 1,
    before: Callable[[], Any] = lambda: None,
) -> float:
    """Return cycles per step, from the fastest run of each kernel; `before` precedes every run."""
    cycles, fastest = cupy.zeros(1, cupy.int64), []
    for kernel in kernels:
        runs = []
        for _ in range(_RUNS):
            before()
            launch(kernel, (1,), (threads,), (out, cycles, *args))
            runs.append(int(cycles.get()[0]))
        fastest.append(min(runs))
    return (fastest[1] - fastest[0]) / (STEPS[1] - STEPS[0])


@cache
def measured(machine: Machine) -> Latency:
    """Measure both latencies on the current GPU, which `machine` describes; takes about 0.5 s."""
    factors = (np.float32(0.999), np.float32(0.001))
    fma = least_per_step(FMA_LATENCY, cupy.zeros(1, cupy.float32), factors)
    words = _CACHES * machine.cache_bytes // _INT
    spread = max(1, words // (2 * STEPS[1]))
    cells, successors = chain(words, spread, STEPS[1], np.random.default_rng())
    links = np.zeros(words, np.int32)
    links[cells] = successors
    chained, other = cupy.asarray(links), cupy.empty(words, cupy.int32)
    out = cupy.zeros(1, cupy.int32)  # before a run, `other` replaces the L2 cache's content
    load = least_per_step(LOAD_LATENCY, out, (chained,), before=lambda: other.fill(0))
    return Latency(fma, load)
