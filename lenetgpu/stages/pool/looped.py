"""The report's pools with its threads: a block per image, a thread per pixel, a loop over maps."""

from functools import cache, partial
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Pool
from lenetgpu.stages.defines import launch_each, map_defines
from lenetgpu.stages.pool import mean
from lenetgpu.stages.registry import of_shape
from lenetgpu.stages.sectors import NONE, Counted, Offsets, counted, explained, gather, lanes

_THREADS = 1024


@cache
def _kernel(problem: Pool, entry: str = "looped_relu_mean") -> Kernel:
    return Kernel.beside(__file__, entry, **map_defines(problem), THREADS=_THREADS)


def _block(problem: Pool) -> tuple[int, int]:
    """Return the block's threads (x, y): the output map's size."""
    return problem.W // 2, problem.H // 2


def _fits(problem: Pool) -> str | None:
    if (outputs := problem.H * problem.W // 4) <= _THREADS:
        return None
    return f"supports up to {_THREADS} outputs a map, not {outputs}"


def access_counts(problem: Pool) -> tuple[Counted, Counted]:
    """Count loads and stores of the mean's block for the first image, map by map."""
    tx, ty = lanes(*_block(problem))
    read = Offsets(problem.reads, problem.in_shape)
    written = Offsets(problem.writes, problem.out_shape)
    c = np.arange(problem.C)[:, None, None]
    loads = NONE
    for d in range(4):
        y = np.where(ty < 0, -1, 2 * ty + d // 2)
        loads += counted(gather(read, y, 2 * tx + d % 2, c))
    return loads, counted(gather(written, ty, tx, c))


def relu_in_place(x: Any, problem: Pool) -> None:
    """Apply max(x, 0) in place, float32: the report's relu4 (3.1.1), a thread an element."""
    launch_each(_kernel(problem, "relu_in_place"), x.size, x)


def mean_alone(x: Any, y: Any, problem: Pool) -> None:
    """Compute the mean without ReLU (3.2.1) by the report's blocks, in float32."""
    launch(_kernel(problem, "looped_mean"), (len(x),), _block(problem), (x, y))


looped = partial(
    mean.pool, kernels=of_shape(_kernel), supports=_fits, explain=explained(access_counts)
)


@looped(
    family="basic",
    prepare=mean.workspace,
    kernels=of_shape(lambda p: (_kernel(p, "relu_in_place"), _kernel(p, "looped_mean"))),
    paper="report 3.1.1 and 3.2.1, tables 9 and 11, figs 4 and 5",
)
def in_place(x: Any, workspace: Any, y: Any, problem: Pool) -> None:
    """ReLU written back in place by 1,024-thread blocks, then the mean, one block per image.

    It works on a copy, unlike the report; the suite `course` times the two kernels alone.
    """
    copy = workspace[: len(x)].reshape(x.shape)
    copy[...] = x
    relu_in_place(copy, problem)
    mean_alone(copy, y, problem)


@looped(
    family="layout",
    name="quad_looped",
    summary="The same from the QUAD layout that the convolution wrote.",
    reads="QUAD",
    paper="report 3.2.4, tables 11 and 13, figs 5 and 6: avgPoolParwithUnroll",
)
@looped(family="fused", paper="report 3.1.2 and 3.2.2")
def maps_looped(x: Any, y: Any, problem: Pool) -> None:
    """ReLU as the mean reads, one block per image, one thread per pixel, a loop over maps."""
    launch(_kernel(problem), (len(x),), _block(problem), (x, y))
