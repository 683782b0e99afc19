"""Winograd F(4x4,5x5) on a CPU with the register tile (Lavin & Gray, arXiv 1509.09308)."""

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.jit import addresses, native
from lenetgpu.cpu.memory import aligned_empty
from lenetgpu.cpu.threads import parallel_ranges, thread_count
from lenetgpu.problems import Conv, ConvPool
from lenetgpu.stages.registry import conv_variant, variant

_SIDE, _OUTPUTS, _CHANNELS, _FILTERS = 5, 4, 16, 32
PART = 8  # least images worth handing to another thread


class Workspaces:
    """One workspace of `size` floats per thread, borrowed and returned by `run`."""

    def __init__(self, size: int) -> None:
        self._free: SimpleQueue[Any] = SimpleQueue()
        for _ in range(thread_count()):
            self._free.put(aligned_empty((size,), np.float32))

    def run(self, n: int, body: Callable[[int, int, int], object]) -> None:
        """Call `body(workspace address, lo, hi)` over a split of n images, on every thread."""

        def part(lo: int, hi: int) -> None:
            workspace = self._free.get()
            try:
                body(workspace.ctypes.data, lo, hi)
            finally:
                self._free.put(workspace)

        parallel_ranges(n, part, least=PART)


@dataclass(frozen=True)
class Prepared:
    """Filters at the 64 transform points in tile order, problem sizes, a workspace per thread."""

    filters: Any
    sizes: tuple[int, int, int, int]
    workspaces: Workspaces
    kernel: Any


def filters_at_points(w: Any) -> Any:
    """Transform filters (5, 5, C, M) to 64 transform points in float64, packed for the tile."""
    from lenetgpu.cpu.winograd import pack_points
    from lenetgpu.stages.fused.cuda_cores.tuning import filter_transform

    g = filter_transform()
    values = np.einsum("pk,ql,klcm->pqcm", g, g, w.astype(np.float64), optimize=True)
    return pack_points(values.reshape(-1, *w.shape[2:]).astype(np.float32))


def refusal(problem: Conv) -> str | None:
    """Return the reason if the algorithm or the tile does not support the problem, else None."""
    if (problem.R, problem.S, problem.stride, problem.pad) != (_SIDE, _SIDE, 1, 0):
        return "supports 5x5 filters with stride 1 and no padding"
    if problem.H != problem.W or problem.OH < 1 or problem.OH % _OUTPUTS:
        return "supports square maps whose outputs come in fours"
    if problem.C % _CHANNELS or problem.M % _FILTERS:
        return f"supports channels in {_CHANNELS}s and filters in {_FILTERS}s"
    return None


def prepare(w: Any, problem: Conv, means: bool) -> Prepared:
    """Return filters and workspaces for `problem`; `means` is True if ReLU and mean follow."""
    from lenetgpu.cpu.winograd import CONVOLVE, CONVOLVE_POOL, workspace_sizes

    sizes = problem.OH // _OUTPUTS, problem.W, problem.C, problem.M
    kernel = native(CONVOLVE_POOL if means else CONVOLVE)
    return Prepared(filters_at_points(w), sizes, Workspaces(sum(workspace_sizes(*sizes))), kernel)


def run(x: Any, w: Prepared, y: Any) -> None:
    """Images x (N, H, W, C) to y, on every thread."""
    x = np.ascontiguousarray(x, np.float32)
    pointers = addresses(x, w.filters, y)
    w.workspaces.run(len(x), lambda at, lo, hi: w.kernel(*pointers, at, lo, hi, *w.sizes))


@conv_variant(
    family="winograd",
    prepare=lambda w, problem, batch: prepare(w, problem, means=False),
    supports=refusal,
    paper="Lavin & Gray, F(4x4)",
)
def blocked(x: Any, w: Prepared, y: Any, problem: Conv) -> None:
    """4x4 outputs from 64 products per channel in register tiles, on all cores."""
    run(x, w, y)


@variant(
    kind="conv_pool",
    family="winograd",
    reads="NHWC",
    writes="NHWC",
    prepare=lambda w, problem, batch: prepare(w, problem.conv, means=True),
    supports=lambda problem: refusal(problem.conv),
    paper="Lavin & Gray, F(4x4); report 3.4.1 on a CPU",
)
def pooled(x: Any, w: Prepared, y: Any, problem: ConvPool) -> None:
    """winograd.blocked with ReLU and mean in its last transform."""
    run(x, w, y)
