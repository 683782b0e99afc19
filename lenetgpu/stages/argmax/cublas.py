"""Argmax by the library's own search for the largest magnitude, one call an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.blas import largest_of_rows
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Argmax
from lenetgpu.stages.registry import variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256
_RANKS, _LABELS = (Kernel(_SOURCE, name, (("THREADS", _THREADS),)) for name in ("ranks", "labels"))


@dataclass
class _Search:
    """Workspace: shifted scores (batch, K) float64, what was found (batch,) int64."""

    shifted: Any
    found: Any


def _prepare(w: None, problem: Argmax, batch: int) -> _Search:
    return _Search(cupy.empty((batch, problem.K), cupy.float64), cupy.zeros(batch, cupy.int64))


@variant(
    kind="argmax",
    family="cublas",
    prepare=_prepare,
    kernels=lambda problem, batch: (_RANKS, _LABELS),
    paper="report 3.3 in the manner of its 2.2.6",
)
def idamax(x: Any, w: _Search, y: Any, problem: Argmax) -> None:
    """Scores shifted so that none is negative, exact in fp64, then cuBLAS Idamax image by image."""
    shifted, found = w.shifted[: len(x)], w.found[: len(x)]
    launch(_RANKS, (blocks_for(x.size, _THREADS),), (_THREADS,), (x, shifted, int(x.size)))
    largest_of_rows(shifted, found)
    launch(_LABELS, (blocks_for(len(x), _THREADS),), (_THREADS,), (found, y, len(x)))
