"""The report's pools with its threads: a block an image, a thread a pixel, the maps in a loop."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Pool
from lenetgpu.stages.defines import map_defines
from lenetgpu.stages.registry import Rows, cuda, of_shape, variant
from lenetgpu.stages.sectors import NONE, Cells, Counted, counted, efficiency_rows, gather, lanes

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 1024
_MAPS = ("NHWC", "NCHW")


def _kernel(problem: Pool, entry: str) -> Kernel:
    return Kernel(_SOURCE, entry, tuple((map_defines(problem) | {"THREADS": _THREADS}).items()))


@cache
def _two_passes(problem: Pool) -> tuple[Kernel, ...]:
    return _kernel(problem, "relu_in_place"), _kernel(problem, "looped_mean")


@cache
def _one_pass(problem: Pool) -> Kernel:
    return _kernel(problem, "looped_relu_mean")


def _block(problem: Pool) -> tuple[int, int]:
    """Threads (x, y): the output map."""
    return problem.W // 2, problem.H // 2


def _fits(problem: Pool) -> str | None:
    outputs = problem.H * problem.W // 4
    if outputs > _THREADS:
        return f"supports up to {_THREADS} outputs a map, not {outputs}"
    return None


def access_counts(problem: Pool) -> tuple[Counted, Counted]:
    """Loads and stores of the mean's block for the first image, map by map."""
    tx, ty = lanes(*_block(problem))
    read = Cells(problem.reads, problem.in_shape)
    written = Cells(problem.writes, problem.out_shape)
    c = np.arange(problem.C)[:, None, None]
    loads = NONE
    for d in range(4):
        y = np.where(ty < 0, -1, 2 * ty + d // 2)
        loads += counted(gather(read, y, 2 * tx + d % 2, c))
    return loads, counted(gather(written, ty, tx, c))


def _explain(problem: Pool, batch: int, machine: Machine) -> Rows:
    return efficiency_rows(*access_counts(problem))


def relu_in_place(x: Any, problem: Pool) -> None:
    """x = max(x, 0), float32 of any layout: the report's relu4 (3.1.1), a thread an element."""
    kernel, _ = _two_passes(problem)
    launch(kernel, (blocks_for(x.size, _THREADS),), (_THREADS,), (x, int(x.size)))


def mean_alone(x: Any, y: Any, problem: Pool) -> None:
    """The mean without a ReLU (3.2.1), by the report's blocks: (N, ...) float32 to (N, ...)."""
    _, kernel = _two_passes(problem)
    launch(kernel, (len(x),), _block(problem), (x, y))


def _room(w: None, problem: Pool, batch: int) -> Any:
    return cupy.empty((batch, *problem.in_shape), cupy.float32)


pool = partial(variant, kind="pool", needs=cuda(), supports=_fits, explain=_explain)


@pool(
    family="basic",
    reads=_MAPS,
    writes=_MAPS,
    prepare=_room,
    kernels=of_shape(_two_passes),
    paper="report 3.1.1 and 3.2.1, tables 9 and 11, figs 4 and 5",
)
def in_place(x: Any, room: Any, y: Any, problem: Pool) -> None:
    """ReLU written back in place by 1,024-thread blocks, then the mean, a block an image.

    In place in a copy of the input: a variant leaves its input as it was. The copy is ours; the
    suite `course` times the two kernels alone.
    """
    held = room[: len(x)].reshape(x.shape)
    held[...] = x
    relu_in_place(held, problem)
    mean_alone(held, y, problem)


@pool(
    family="fused",
    reads=_MAPS,
    writes=_MAPS,
    kernels=of_shape(_one_pass),
    paper="report 3.1.2 and 3.2.2",
)
def maps_looped(x: Any, y: Any, problem: Pool) -> None:
    """ReLU taken while the mean reads, a block an image, a thread a pixel, maps in a loop."""
    launch(_one_pass(problem), (len(x),), _block(problem), (x, y))


@pool(
    family="layout",
    reads="QUAD",
    writes=_MAPS,
    kernels=of_shape(_one_pass),
    paper="report 3.2.4, tables 11 and 13, figs 5 and 6: avgPoolParwithUnroll",
)
def quad_looped(x: Any, y: Any, problem: Pool) -> None:
    """The same from the QUAD layout that the convolution wrote."""
    maps_looped(x, y, problem)
