"""Step 2, order: the innermost loop, and neighbouring threads, walk along memory."""

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
        y[n] = 0
        for row in range(rows):
            for column in range(columns):
                for r in range(w.shape[0]):
                    for s in range(w.shape[1]):
                        for c in range(w.shape[2]):
                            value = x[n, row + r, column + s, c]
                            for m in range(maps):
                                y[n, row, column, m] += value * w[r, s, c, m]


@variant(kind="conv", family="step2", reads="NHWC", writes="NHWC", needs=cpu(), supports=plain)
def maps_innermost(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """The same sums, the loop over maps innermost, so that both arrays are read in order."""
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
    return (Kernel(Path(__file__).with_suffix(".cu"), "maps_first", shape),)


@variant(
    kind="conv",
    family="step2",
    reads="NHWC",
    writes="NHWC",
    needs=cuda(),
    supports=plain,
    kernels=_kernels,
)
def maps_first(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A thread takes an output, maps of a position side by side."""
    (kernel,) = _kernels(problem, len(x))
    grid = (blocks_for(y.size, THREADS),)
    launch(kernel, grid, (THREADS,), (x, w, y, int(y.size)))
