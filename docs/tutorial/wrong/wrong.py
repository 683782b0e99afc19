"""A mistake: step 2, whose sums lie in y now, without setting them to zero first."""

from pathlib import Path
from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.registry import cpu, cuda, variant

THREADS = 256  # in a block


def plain(problem: Conv) -> str | None:
    """Why it does not take `problem`: from here on, steps leave the borders out."""
    if problem.stride == 1 and problem.pad == 0:
        return None
    return "supports stride 1 without padding"


@lazy_njit
def _sums(x: Any, w: Any, y: Any) -> None:
    images, rows, columns, maps = y.shape
    for n in range(images):
        for row in range(rows):
            for column in range(columns):
                for r in range(w.shape[0]):
                    for s in range(w.shape[1]):
                        for c in range(w.shape[2]):
                            value = x[n, row + r, column + s, c]
                            for m in range(maps):
                                y[n, row, column, m] += value * w[r, s, c, m]


@variant(kind="conv", family="wrong", reads="NHWC", writes="NHWC", needs=cpu(), supports=plain)
def forgets_zero(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """Adds to what y held before."""
    _sums(x, w, y)


def _kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    shape = (
        ("H", problem.H),
        ("W", problem.W),
        ("CH", problem.C),
        ("M", problem.M),
        ("R", problem.R),
        ("S", problem.S),
        ("THREADS", THREADS),
    )
    return (Kernel(Path(__file__).with_suffix(".cu"), "adds_up", shape),)


@variant(
    kind="conv",
    family="wrong",
    reads="NHWC",
    writes="NHWC",
    needs=cuda(),
    supports=plain,
    kernels=_kernels,
)
def adds_up(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """Adds to what y held before, too."""
    (kernel,) = _kernels(problem, len(x))
    grid = (blocks_for(y.size, THREADS),)
    launch(kernel, grid, (THREADS,), (x, w, y, int(y.size)))
