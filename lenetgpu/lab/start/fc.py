"""A fully connected layer of your own: loops on a CPU, and a thread an output on a GPU.

Both are right and slow. Change one thing, then let `lenetgpu compare` check and time it.
"""

from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Fc
from lenetgpu.stages.registry import cpu, cuda, variant

THREADS = 256  # in a block


# Numba compiles this. x is [image][k], w [k][output], y [image][output].
@lazy_njit
def _sums(x: Any, w: Any, y: Any, relu: bool) -> None:
    images, outputs = y.shape
    for n in range(images):
        for m in range(outputs):
            y[n, m] = 0
            for k in range(x.shape[1]):
                y[n, m] += x[n, k] * w[k, m]
            if relu and y[n, m] < 0:
                y[n, m] = 0


@variant(kind="fc", family="mine", reads="NC", writes="NC", needs=cpu())
def loops(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """The definition as three loops, on one CPU thread."""
    _sums(x, w, y, problem.relu)


# The shape reaches the kernel as constants: -D K=1024 and so on.
def _kernels(problem: Fc, batch: int) -> tuple[Kernel, ...]:
    shape = {"K": problem.K, "M": problem.M, "RELU": int(problem.relu)}
    return (Kernel.beside(__file__, "per_output", **shape, THREADS=THREADS),)


@variant(
    kind="fc",
    family="mine",
    reads="NC",
    writes="NC",
    needs=cuda(),
    kernels=_kernels,
)
def per_output(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """A thread takes an output, outputs of an image side by side."""
    (kernel,) = _kernels(problem, len(x))
    grid = (blocks_for(y.size, THREADS),)
    launch(kernel, grid, (THREADS,), (x, w, y, int(y.size)))
