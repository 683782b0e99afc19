"""Argmax by cuBLAS Idamax, the library's search for the largest magnitude; one call per image."""

from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.blas import largest_of_rows
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Argmax
from lenetgpu.stages.defines import launch_each
from lenetgpu.stages.registry import argmax_variant

_RANKS, _LABELS = (Kernel.beside(__file__, name, THREADS=256) for name in ("ranks", "labels"))


def _prepare(w: None, problem: Argmax, batch: int) -> tuple[Any, Any]:
    """Allocate workspace: shifted scores (batch, K) float64 and 1-based indices (batch,) int64."""
    return cupy.empty((batch, problem.K), cupy.float64), cupy.zeros(batch, cupy.int64)


@argmax_variant(
    family="cublas",
    prepare=_prepare,
    kernels=lambda problem, batch: (_RANKS, _LABELS),
    paper="report 3.3 in the manner of its 2.2.6",
)
def idamax(x: Any, w: tuple[Any, Any], y: Any, problem: Argmax) -> None:
    """Scores shifted so that none is negative, exact in fp64, then cuBLAS Idamax image by image."""
    shifted, found = (buffer[: len(x)] for buffer in w)
    launch_each(_RANKS, x.size, x, shifted)
    largest_of_rows(shifted, found)
    launch_each(_LABELS, len(x), found, y)
