"""Fully connected layers by a library matrix product (report, sections 2.2.6 and 3.6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.blas import exact_sgemm, half_gemm
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Fc
from lenetgpu.stages.registry import cuda, variant

_THREADS = 256
_SOURCE = Path(__file__).with_suffix(".cu").resolve()
RELU = Kernel(_SOURCE, "relu_in_place", (("THREADS", _THREADS),))
_TO_HALF = Kernel(_SOURCE, "to_half", (("THREADS", _THREADS),))


@variant(
    kind="fc",
    family="blas",
    also=("unrolled.numpy", "cublas.numpy"),
    paper="report 2.2.6 on a CPU",
)
def numpy(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """NumPy's BLAS matrix product, then ReLU."""
    np.matmul(x, w, out=y)
    if problem.relu:
        np.maximum(y, 0, out=y)


def _elementwise(kernel: Kernel, items: int, *arrays: Any) -> None:
    launch(kernel, (blocks_for(items, _THREADS),), (_THREADS,), (*arrays, items))


def rectify(y: Any) -> None:
    """max(y, 0) in place, of a GPU's float32 array, by the kernel RELU."""
    _elementwise(RELU, int(y.size), y)


cublas = partial(variant, kind="fc", family="cublas", reads="NC", writes="NC", needs=cuda())


@cublas(
    kernels=lambda problem, batch: (RELU,) if problem.relu else (),
    default=True,
    paper="report 2.2.6, which could not link it",
)
def sgemm(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """cuBLAS SGEMM without TF32, then a ReLU kernel."""
    exact_sgemm(x, w, y)
    if problem.relu:
        rectify(y)


@dataclass
class _Half:
    """fp16 weights (K, M) and workspace for fp16 inputs."""

    weights: Any
    inputs: Any


def _prepare_half(w: Any, problem: Fc, batch: int) -> _Half:
    return _Half(cupy.asarray(w).astype(cupy.float16), cupy.empty((batch, problem.K), cupy.float16))


@cublas(
    precision="fp16",
    prepare=_prepare_half,
    kernels=lambda problem, batch: (_TO_HALF, RELU) if problem.relu else (_TO_HALF,),
    paper="report 3.6, whose system had no half type",
)
def half(x: Any, w: _Half, y: Any, problem: Fc) -> None:
    """Inputs and weights rounded to fp16, cuBLAS GemmEx with fp32 sums, ReLU."""
    inputs = w.inputs[: len(x)]
    _elementwise(_TO_HALF, int(x.size), x, inputs)
    half_gemm(inputs, w.weights, y)
    if problem.relu:
        rectify(y)
