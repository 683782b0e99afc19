"""Serial argmax: one thread, two loops."""

from __future__ import annotations

from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.problems import Argmax
from lenetgpu.stages.registry import cpu, variant


@lazy_njit
def _loops(x, y):  # type: ignore[no-untyped-def]
    for n in range(x.shape[0]):
        best = 0
        for k in range(1, x.shape[1]):
            if x[n, k] > x[n, best]:
                best = k
        y[n] = best


@variant(
    kind="argmax",
    family="serial",
    reads="NC",
    writes="N",
    needs=cpu(),
    paper="report 3.3, table 12: the serial code",
)
def loops(x: Any, y: Any, problem: Argmax) -> None:
    """Images outside, scores inside, on one CPU thread."""
    _loops(x, y)
