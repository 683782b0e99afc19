"""Fully connected layers by a library matrix product (report, section 2.2.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.memory import exact_sgemm
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Fc
from lenetgpu.stages.registry import cpu, cuda, variant

_THREADS = 256
_RELU = Kernel(
    Path(__file__).with_suffix(".cu").resolve(), "relu_in_place", (("THREADS", _THREADS),)
)


@variant(
    kind="fc",
    family="blas",
    reads="NC",
    writes="NC",
    needs=cpu(),
    also="unrolled.numpy",
    paper="report 2.2.6 on a CPU",
)
def numpy(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """NumPy's BLAS matrix product, then ReLU."""
    import numpy as np

    np.matmul(x, w, out=y)
    if problem.relu:
        np.maximum(y, 0, out=y)


@variant(
    kind="fc",
    family="cublas",
    reads="NC",
    writes="NC",
    needs=cuda(),
    kernels=lambda problem: (_RELU,) if problem.relu else (),
    paper="report 2.2.6",
)
def sgemm(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """cuBLAS SGEMM without TF32, then a ReLU kernel."""
    exact_sgemm(x, w, y)
    if problem.relu:
        launch(_RELU, (blocks_for(y.size, _THREADS),), (_THREADS,), (y, int(y.size)))
