"""Fully connected layers by a library matrix product (report, sections 2.2.6 and 3.6)."""

from functools import partial
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.cpu.blas import matmul
from lenetgpu.gpu.blas import exact_sgemm, half_gemm
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Fc
from lenetgpu.stages.defines import launch_each
from lenetgpu.stages.registry import cuda, variant

RELU = Kernel.beside(__file__, "relu_in_place", THREADS=256)
_TO_HALF = Kernel.beside(__file__, "to_half", THREADS=256)


@variant(
    kind="fc", family="blas", also=("unrolled.numpy", "cublas.numpy"), paper="report 2.2.6 on a CPU"
)
def numpy(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """NumPy's BLAS matrix product, then ReLU."""
    matmul(x, w, y)
    if problem.relu:
        np.maximum(y, 0, out=y)


def rectify(y: Any, problem: Fc) -> None:
    """Apply the layer's ReLU, if it has one, in place to a float32 GPU array."""
    if problem.relu:
        launch_each(RELU, y.size, y)


cublas = partial(variant, kind="fc", family="cublas", needs=cuda())


@cublas(
    kernels=lambda problem, batch: (RELU,) if problem.relu else (),
    default=True,
    paper="report 2.2.6, which could not link it",
)
def sgemm(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """cuBLAS SGEMM without TF32, then a ReLU kernel."""
    exact_sgemm(x, w, y)
    rectify(y, problem)


def _prepare_half(w: Any, problem: Fc, batch: int) -> tuple[Any, Any]:
    return cupy.asarray(w).astype(cupy.float16), cupy.empty((batch, problem.K), cupy.float16)


@cublas(
    precision="fp16",
    prepare=_prepare_half,
    kernels=lambda problem, batch: (_TO_HALF, RELU) if problem.relu else (_TO_HALF,),
    paper="report 3.6, whose system had no half type",
)
def half(x: Any, w: tuple[Any, Any], y: Any, problem: Fc) -> None:
    """Inputs and weights rounded to fp16, cuBLAS GemmEx with fp32 sums, ReLU."""
    weights, inputs = w[0], w[1][: len(x)]
    launch_each(_TO_HALF, x.size, x, inputs)
    half_gemm(inputs, weights, y)
    rectify(y, problem)
