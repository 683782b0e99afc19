"""The report's explanations in measured terms: bytes moved per byte needed, reuse, idle threads."""

from __future__ import annotations

from typing import Any

from lenetgpu.gpu.launch import Launch
from lenetgpu.problems import Conv, ConvPool, Pool
from lenetgpu.stages import Variant

_WARP, _SECTOR, _FLOAT = 32, 32, 4
_ONE_OUTPUT_A_THREAD = (
    "direct.basic",
    "direct.tight",
    "direct.shared_constant",
    "direct.four_maps",
)


def stride_along_x(layout: str, channels: int) -> int:
    """Elements between horizontal neighbours of one channel."""
    return channels if layout == "NHWC" else 1


def moved_per_needed(stride: int, lanes: int = _WARP) -> float:
    """32-byte sectors a warp touches, in bytes, over the bytes it uses.

    `lanes` neighbours `stride` floats apart; 1.0 is fully coalesced, 8.0 is one sector a float.
    """
    span = (lanes - 1) * stride * _FLOAT + _FLOAT
    sectors = min(lanes, -(-span // _SECTOR))
    return sectors * _SECTOR / (lanes * _FLOAT)


def reuse(variant: Variant, problem: Any) -> float | None:
    """Uses of an input value per load from global memory, by the report's formulas."""
    conv = problem.conv if isinstance(problem, ConvPool) else problem
    if not isinstance(conv, Conv):
        return None
    taps, tile = conv.R * conv.S, conv.OH * conv.OW
    loaded = conv.H * conv.W
    return {
        "direct.basic": 1.0,
        "direct.tight": 1.0,
        "direct.shared_constant": taps * tile / loaded,
        "direct.four_maps": 4 * taps * 64 / ((8 + conv.R - 1) * (8 + conv.S - 1)),
        "unrolled.naive": 1.0,
        "unrolled.tiled": 32.0 * (2 if conv.M > 32 else 1),
        "unrolled.constant": 32.0 * (2 if conv.M > 32 else 1),
        "unrolled.layout": 32.0 * (2 if conv.M > 32 else 1),
        "block.unrolled": 32.0 * (2 if conv.M > 32 else 1),
    }.get(variant.full_name)


def idle_threads(
    variant: Variant, problem: Any, launches: list[Launch], images: int
) -> float | None:
    """Share of launched threads without an output of their own, for one-output-a-thread kernels."""
    if not launches or variant.full_name not in _ONE_OUTPUT_A_THREAD:
        return None
    threads = 1
    for extent in (*launches[0].grid, *launches[0].block):
        threads *= extent
    outputs: int = images * problem.OH * problem.OW * problem.M
    return max(0.0, 1 - outputs / threads)


def coalescing(problem: Any) -> tuple[float, float] | None:
    """(loads, stores): bytes moved per byte needed, for warps that run along a map's rows."""
    if isinstance(problem, Conv):
        return (
            moved_per_needed(stride_along_x(problem.reads, problem.C) * problem.stride),
            moved_per_needed(stride_along_x(problem.writes, problem.M)),
        )
    if isinstance(problem, ConvPool):
        conv = problem.conv
        return (
            moved_per_needed(stride_along_x(problem.reads, conv.C) * conv.stride),
            moved_per_needed(stride_along_x(problem.writes, conv.M), 8),
        )
    if isinstance(problem, Pool):
        return _pool_loads(problem), 1.0
    return None


def _pool_loads(problem: Pool) -> float:
    """Bytes moved per byte needed by one load of a pool whose threads run along its output."""
    if problem.writes == "NHWC":
        return moved_per_needed(1 if problem.reads == "NHWC" else problem.H * problem.W)
    return moved_per_needed({"NHWC": 2 * problem.C, "NCHW": 2, "QUAD": 1}[problem.reads])


def explanation(
    variant: Variant, problem: Any, launches: list[Launch], images: int, row: dict[str, Any]
) -> str:
    """One line: what the report's tables say of a kernel, as figures of this run."""
    words = []
    factors = coalescing(problem)
    if factors is not None and variant.family in ("direct", "unrolled", "block", "fused", "layout"):
        words.append(f"moved/needed {factors[0]:.1f} in, {factors[1]:.1f} out")
    used = reuse(variant, problem)
    if used is not None:
        words.append(f"reuse {used:.0f}")
    idle = idle_threads(variant, problem, launches, images)
    if idle is not None:
        words.append(f"idle threads {idle:.0%}")
    if row.get("occupancy") is not None:
        words.append(f"occupancy {row['occupancy']:.0%}")
    if row.get("local_bytes"):
        words.append(f"local {row['local_bytes']} B")
    if row.get("roofline") is not None:
        words.append(f"{row['roofline']:.0%} of {row['bound']} roof")
    return ", ".join(words)
