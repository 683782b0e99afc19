"""Step 3, a near memory: a part of the filters is brought near and used by many outputs."""

from pathlib import Path
from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.registry import cpu, cuda, variant


def plain(problem: Conv) -> str | None:
    """Why the CPU's loops do not take `problem`."""
    if problem.stride == 1 and problem.pad == 0:
        return None
    return "supports stride 1 without padding"


def row_in_a_block(problem: Conv) -> str | None:
    """Why the kernel does not take `problem`."""
    if problem.OW * problem.M > 1024:
        return "supports outputs whose rows have at most 1,024 values"
    if 4 * problem.C * problem.M > 48 * 1024:
        return "supports filters of which 48 KiB hold a tap"
    return plain(problem)


# The filters of one tap (r, s), C x M values, are used for every position of an image.
@lazy_njit
def _sums(x: Any, w: Any, y: Any) -> None:
    images, rows, columns, maps = y.shape
    for n in range(images):
        y[n] = 0
        for r in range(w.shape[0]):
            for s in range(w.shape[1]):
                for row in range(rows):
                    for column in range(columns):
                        for c in range(w.shape[2]):
                            value = x[n, row + r, column + s, c]
                            for m in range(maps):
                                y[n, row, column, m] += value * w[r, s, c, m]


@variant(kind="conv", family="step3", reads="NHWC", writes="NHWC", needs=cpu(), supports=plain)
def tap_by_tap(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A tap's filters are used for all of an image while the first cache holds them."""
    _sums(x, w, y)


def _kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    shape = (
        ("H", problem.H),
        ("W", problem.W),
        ("CH", problem.C),
        ("M", problem.M),
        ("R", problem.R),
        ("S", problem.S),
    )
    return (Kernel(Path(__file__).with_suffix(".cu"), "shared_tap", shape),)


@variant(
    kind="conv",
    family="step3",
    reads="NHWC",
    writes="NHWC",
    needs=cuda(),
    supports=row_in_a_block,
    kernels=_kernels,
)
def shared_tap(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A block takes an output row; a tap's filters lie in shared memory for all of it."""
    (kernel,) = _kernels(problem, len(x))
    launch(kernel, (len(x) * problem.OH,), (problem.M, problem.OW), (x, w, y))
