"""An argmax of your own: a loop on a CPU, and a thread an image on a GPU.

Both are right and slow. Change one thing, then let `lenetgpu compare` check and time it.
"""

from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Argmax
from lenetgpu.stages.registry import cpu, cuda, variant

THREADS = 256  # in a block


# Numba compiles this. x is [image][score], y [image]: the first of the largest.
@lazy_njit
def _largest(x: Any, y: Any) -> None:
    images, scores = x.shape
    for n in range(images):
        y[n] = 0
        for k in range(1, scores):
            if x[n, k] > x[n, y[n]]:
                y[n] = k


@variant(kind="argmax", family="mine", reads="NC", writes="N", needs=cpu())
def loops(x: Any, y: Any, problem: Argmax) -> None:
    """The definition as two loops, on one CPU thread."""
    _largest(x, y)


# The shape reaches the kernel as constants: -D K=10 and so on.
def _kernels(problem: Argmax, batch: int) -> tuple[Kernel, ...]:
    return (Kernel.beside(__file__, "per_image", K=problem.K, THREADS=THREADS),)


@variant(
    kind="argmax",
    family="mine",
    reads="NC",
    writes="N",
    needs=cuda(),
    kernels=_kernels,
)
def per_image(x: Any, y: Any, problem: Argmax) -> None:
    """A thread takes an image and scans its scores."""
    (kernel,) = _kernels(problem, len(x))
    grid = (blocks_for(len(x), THREADS),)
    launch(kernel, grid, (THREADS,), (x, y, len(x)))
