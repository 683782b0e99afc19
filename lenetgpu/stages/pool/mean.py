"""ReLU and 2x2 mean on every core, and the report's GPU versions (sections 3.1 and 3.2)."""

from functools import cache, partial
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Pool
from lenetgpu.stages.defines import MAPS, launch_each, map_defines
from lenetgpu.stages.registry import of_shape, pool_variant, variant
from lenetgpu.stages.sectors import NONE, WARP, Counted, Offsets, counted, explained, gather


@lazy_njit
def _rows(x, y, lo, hi):  # type: ignore[no-untyped-def]
    zero, quarter = y.dtype.type(0), y.dtype.type(0.25)
    for line in range(lo, hi):
        n, oy = line // y.shape[1], line % y.shape[1]
        for ox in range(y.shape[2]):
            for c in range(y.shape[3]):
                a, b = x[n, 2 * oy, 2 * ox, c], x[n, 2 * oy, 2 * ox + 1, c]
                d, e = x[n, 2 * oy + 1, 2 * ox, c], x[n, 2 * oy + 1, 2 * ox + 1, c]
                top = (zero if a < zero else a) + (zero if b < zero else b)
                bottom = (zero if d < zero else d) + (zero if e < zero else e)
                y[n, oy, ox, c] = (top + bottom) * quarter


@cache
def _kernel(problem: Pool, entry: str = "relu_mean") -> Kernel:
    return Kernel.beside(__file__, entry, **map_defines(problem), THREADS=256)


def access_counts(problem: Pool) -> tuple[Counted, Counted]:
    """Count loads and stores of the first image's outputs, threads along their memory order."""
    y, x, c = np.indices(problem.out_shape)
    order = np.argsort(Offsets(problem.writes, problem.out_shape).at(y, x, c), axis=None)
    outputs = np.full(-(-order.size // WARP) * WARP, -1)
    outputs[: order.size] = order
    rows = outputs.reshape(-1, WARP)
    width, maps = problem.W // 2, problem.C
    y, x, c = rows // (width * maps), rows // maps % width, rows % maps
    read, loads = Offsets(problem.reads, problem.in_shape), NONE
    for d in range(4):
        loads += counted(gather(read, np.where(rows < 0, -1, 2 * y + d // 2), 2 * x + d % 2, c))
    return loads, Counted(order.size, -(-order.size // 8))


pool = partial(variant, kind="pool", reads=MAPS, writes=MAPS)
one_pass = partial(pool, kernels=of_shape(_kernel), explain=explained(access_counts))


def workspace(w: None, problem: Pool, batch: int) -> Any:
    """Allocate float32 workspace for `batch` maps."""
    return cupy.empty((batch, *problem.in_shape), cupy.float32)


@pool(
    family="basic",
    prepare=workspace,
    kernels=of_shape(lambda problem: (_kernel(problem, "relu"), _kernel(problem, "mean"))),
    paper="after report 3.1.1 and 3.2.1: threads along the output",
)
def two_passes(x: Any, rectified: Any, y: Any, problem: Pool) -> None:
    """ReLU over the whole map, then the mean, in two launches."""
    between = rectified[: len(x)]
    launch_each(_kernel(problem, "relu"), between.size, x, between)
    launch_each(_kernel(problem, "mean"), y.size, between, y)


@pool_variant(family="fused", paper="report 3.2.2 on a CPU")
def rows(x: Any, y: Any, problem: Pool) -> None:
    """ReLU inside the mean, vectorised along channels, on all cores."""
    parallel_ranges(len(x) * y.shape[1], lambda lo, hi: _rows(x, y, lo, hi))


@one_pass(
    family="layout",
    name="quad",
    summary="ReLU inside the mean from the QUAD layout that the convolution wrote.",
    reads="QUAD",
    paper="after report 3.2.4, fig. 5: threads along the output",
)
@one_pass(family="fused", paper="after report 3.1.2 and 3.2.2: threads along the output")
def relu_in_mean(x: Any, y: Any, problem: Pool) -> None:
    """ReLU applied while the mean reads, one launch, one output per thread."""
    launch_each(_kernel(problem), y.size, x, y)
