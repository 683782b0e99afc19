"""ReLU and mean through shared memory: the report's tile (section 3.2.3)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Pool
from lenetgpu.stages.registry import cuda, of_shape, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256
_TILE_BYTES = 8 << 10
_SHARED_BYTES = 48 << 10


def _row(problem: Pool) -> int:
    return problem.W * (problem.C if problem.reads == "NHWC" else 1)


def _lines(problem: Pool) -> int:
    return max(1, _TILE_BYTES // (8 * _row(problem)))


@cache
def _kernel(problem: Pool) -> tuple[Kernel, ...]:
    shape: dict[str, int | str] = {
        "CH": problem.C,
        "H": problem.H,
        "W": problem.W,
        "READS": problem.reads,
        "LINES": _lines(problem),
        "THREADS": _THREADS,
    }
    return (Kernel(_SOURCE, "relu_mean_tile", tuple(shape.items())),)


def _keeps_layout(problem: Pool) -> str | None:
    if problem.reads != problem.writes:
        return f"supports one layout in and out, not {problem.reads} to {problem.writes}"
    if 8 * _row(problem) > _SHARED_BYTES:
        return f"supports rows up to {_SHARED_BYTES // 8} elements, not {_row(problem)}"
    return None


@variant(
    kind="pool",
    family="tiled",
    reads=("NHWC", "NCHW"),
    writes=("NHWC", "NCHW"),
    needs=cuda(),
    kernels=of_shape(_kernel),
    supports=_keeps_layout,
    default=True,
    paper="report 3.2.3",
)
def shared(x: Any, y: Any, problem: Pool) -> None:
    """Rows loaded coalesced into shared memory, ReLU and mean from there."""
    (kernel,) = _kernel(problem)
    lines = int(y.size) // (_row(problem) // 2)
    launch(kernel, (blocks_for(lines, _lines(problem)),), (_THREADS,), (x, y, lines))
