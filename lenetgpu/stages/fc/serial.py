"""Serial fully connected layer: one thread, scalar loops."""

from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.problems import Fc
from lenetgpu.stages.registry import fc_variant


@lazy_njit
def _loops(x, w, y, relu):  # type: ignore[no-untyped-def]
    for n in range(x.shape[0]):
        for m in range(w.shape[1]):
            total = y.dtype.type(0)
            for k in range(w.shape[0]):
                total += x[n, k] * w[k, m]
            y[n, m] = 0 if relu and total < 0 else total


@fc_variant(family="serial", paper="report 1: the serial code")
def loops(x: Any, w: Any, y: Any, problem: Fc) -> None:
    """Three nested scalar loops on one CPU thread."""
    _loops(x, w, y, problem.relu)
