"""Layout conversion of an activation: a timed row of the report like any stage."""

from functools import cache, partial
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.layouts import MAP_LAYOUTS, from_nhwc, to_nhwc
from lenetgpu.problems import Relayout
from lenetgpu.stages.defines import launch_each, map_defines
from lenetgpu.stages.registry import of_shape, variant


def _quad_needs_even(problem: Relayout) -> str | None:
    if "QUAD" in (problem.reads, problem.writes) and (problem.H % 2 or problem.W % 2):
        return f"supports even maps in QUAD, not {problem.H}x{problem.W}"
    return None


relayout = partial(
    variant, kind="relayout", reads=MAP_LAYOUTS, writes=MAP_LAYOUTS, supports=_quad_needs_even
)


@relayout(family="numpy")
def copy(x: Any, y: Any, problem: Relayout) -> None:
    """NumPy strided copy."""
    np.copyto(y, from_nhwc(to_nhwc(x, problem.reads, problem.in_shape), problem.writes))


@cache
def _kernel(problem: Relayout) -> Kernel:
    return Kernel.beside(__file__, "relayout", **map_defines(problem), THREADS=256)


@relayout(family="cuda", kernels=of_shape(_kernel))
def gather(x: Any, y: Any, problem: Relayout) -> None:
    """One element per thread, writes coalesced."""
    launch_each(_kernel(problem), y.size, x, y)
