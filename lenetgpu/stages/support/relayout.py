"""An activation from one memory layout to another: a timed row of the report like any stage."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.layouts import MAP_LAYOUTS, from_nhwc, to_nhwc
from lenetgpu.problems import Relayout
from lenetgpu.stages.defines import map_defines
from lenetgpu.stages.registry import of_shape, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256


def _quad_needs_even(problem: Relayout) -> str | None:
    if "QUAD" in (problem.reads, problem.writes) and (problem.H % 2 or problem.W % 2):
        return f"supports even maps in QUAD, not {problem.H}x{problem.W}"
    return None


@variant(
    kind="relayout",
    family="numpy",
    reads=MAP_LAYOUTS,
    writes=MAP_LAYOUTS,
    supports=_quad_needs_even,
)
def copy(x: Any, y: Any, problem: Relayout) -> None:
    """NumPy strided copy."""
    np.copyto(y, from_nhwc(to_nhwc(x, problem.reads, problem.in_shape), problem.writes))


@cache
def _kernel(problem: Relayout) -> Kernel:
    defines = map_defines(problem) | {"THREADS": _THREADS}
    return Kernel(_SOURCE, "relayout", tuple(defines.items()))


@variant(
    kind="relayout",
    family="cuda",
    reads=MAP_LAYOUTS,
    writes=MAP_LAYOUTS,
    kernels=of_shape(_kernel),
    supports=_quad_needs_even,
)
def gather(x: Any, y: Any, problem: Relayout) -> None:
    """One element per thread, writes coalesced."""
    launch(_kernel(problem), (blocks_for(y.size, _THREADS),), (_THREADS,), (x, y, int(y.size)))
