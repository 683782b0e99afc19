"""The report's explanations as figures: bytes moved per byte needed, reuse, idle threads.

A variant's `explain` is made of these rows.
"""

from __future__ import annotations

from lenetgpu.problems import Conv, ConvPool
from lenetgpu.stages.registry import Rows

_WARP, _SECTOR, _FLOAT = 32, 32, 4


def moved_per_needed(stride: int, lanes: int = _WARP) -> float:
    """32-byte sectors a warp touches, in bytes, over the bytes it uses.

    `lanes` neighbours `stride` floats apart; 1.0 is fully coalesced, 8.0 is one sector a float.
    """
    span = (lanes - 1) * stride * _FLOAT + _FLOAT
    sectors = min(lanes, -(-span // _SECTOR))
    return sectors * _SECTOR / (lanes * _FLOAT)


def _along_x(layout: str, channels: int) -> int:
    """Elements between horizontal neighbours of one channel."""
    return channels if layout == "NHWC" else 1


def _moved(loads: float, stores: float) -> Rows:
    return [("moved/needed", f"{loads:.1f} in, {stores:.1f} out")]


def conv_moves(problem: Conv) -> Rows:
    """Loads and stores of a convolution whose warps run along a map's rows."""
    loads = moved_per_needed(_along_x(problem.reads, problem.C) * problem.stride)
    return _moved(loads, moved_per_needed(_along_x(problem.writes, problem.M)))


def conv_pool_moves(problem: ConvPool) -> Rows:
    """The same with a pool behind it: 8 neighbours of its output a warp."""
    conv = problem.conv
    loads = moved_per_needed(_along_x(problem.reads, conv.C) * conv.stride)
    return _moved(loads, moved_per_needed(_along_x(problem.writes, conv.M), 8))


def reuse(uses: float) -> Rows:
    """Uses of an input value per load from global memory."""
    return [("reuse", f"{uses:.0f}")]


def idle(outputs: int, threads: int) -> Rows:
    """Share of `threads` without one of `outputs` of their own."""
    return [("idle threads", f"{max(0.0, 1 - outputs / threads):.0%}")]
