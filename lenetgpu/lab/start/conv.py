"""A convolution of your own: its definition, as loops on a CPU and a thread an output on a GPU.

Both are right and slow. Change one thing, then let `lenetgpu compare` check and time it.
"""

from pathlib import Path
from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.registry import cpu, cuda, variant

THREADS = 256  # in a block


# Numba compiles this. x is [image][row][column][channel], w [r][s][channel][map].
@lazy_njit
def _sums(x: Any, w: Any, y: Any, stride: int, pad: int) -> None:
    images, rows, columns, maps = y.shape
    for n in range(images):
        for m in range(maps):
            for row in range(rows):
                for column in range(columns):
                    y[n, row, column, m] = 0
                    for c in range(x.shape[3]):
                        for r in range(w.shape[0]):
                            for s in range(w.shape[1]):
                                at = row * stride + r - pad
                                to = column * stride + s - pad
                                inside = 0 <= at < x.shape[1] and 0 <= to < x.shape[2]
                                if inside:
                                    product = x[n, at, to, c] * w[r, s, c, m]
                                    y[n, row, column, m] += product


@variant(kind="conv", family="mine", reads="NHWC", writes="NHWC", needs=cpu())
def loops(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """The definition as seven loops, on one CPU thread."""
    _sums(x, w, y, problem.stride, problem.pad)


# The shape reaches the kernel as constants: -D H=12 and so on.
def _kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    shape = (
        ("H", problem.H),
        ("W", problem.W),
        ("CH", problem.C),
        ("M", problem.M),
        ("R", problem.R),
        ("S", problem.S),
        ("OH", problem.OH),
        ("OW", problem.OW),
        ("STRIDE", problem.stride),
        ("PAD", problem.pad),
        ("THREADS", THREADS),
    )
    return (Kernel(Path(__file__).with_suffix(".cu"), "per_output", shape),)


@variant(
    kind="conv",
    family="mine",
    reads="NHWC",
    writes="NHWC",
    needs=cuda(),
    kernels=_kernels,
)
def per_output(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A thread takes an output, columns of a map side by side."""
    (kernel,) = _kernels(problem, len(x))
    grid = (blocks_for(y.size, THREADS),)
    launch(kernel, grid, (THREADS,), (x, w, y, int(y.size)))
