"""ReLU and 2x2 mean of your own: the definition on a CPU, and a thread an output on a GPU.

Both are right and slow. Change one thing, then let `lenetgpu compare` check and time it.
"""

from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Pool
from lenetgpu.stages.registry import cpu, cuda, variant

THREADS = 256  # in a block


# Numba compiles this. x is [image][row][column][channel], y half as high and wide.
@lazy_njit
def _means(x: Any, y: Any) -> None:
    images, rows, columns, channels = y.shape
    for n in range(images):
        for c in range(channels):
            for row in range(rows):
                for column in range(columns):
                    y[n, row, column, c] = 0
                    for down in range(2):
                        for right in range(2):
                            value = x[n, 2 * row + down, 2 * column + right, c]
                            if not value < 0:  # ReLU; a NaN stays one
                                y[n, row, column, c] += value / 4


@variant(kind="pool", family="mine", reads="NHWC", writes="NHWC", needs=cpu())
def loops(x: Any, y: Any, problem: Pool) -> None:
    """The definition as six loops, on one CPU thread."""
    _means(x, y)


# The shape reaches the kernel as constants: -D OH=12 and so on.
def _kernels(problem: Pool, batch: int) -> tuple[Kernel, ...]:
    shape = {"CH": problem.C, "OH": problem.H // 2, "OW": problem.W // 2}
    return (Kernel.beside(__file__, "per_output", **shape, THREADS=THREADS),)


@variant(
    kind="pool",
    family="mine",
    reads="NHWC",
    writes="NHWC",
    needs=cuda(),
    kernels=_kernels,
)
def per_output(x: Any, y: Any, problem: Pool) -> None:
    """A thread takes an output, columns of a map side by side."""
    (kernel,) = _kernels(problem, len(x))
    grid = (blocks_for(y.size, THREADS),)
    launch(kernel, grid, (THREADS,), (x, y, int(y.size)))
