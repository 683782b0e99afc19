"""One row per step: times, rates, share of the roofline, and what was launched."""

from __future__ import annotations

from typing import Any

from lenetgpu.gpu.launch import Launch
from lenetgpu.lab.roofline import Ceilings
from lenetgpu.lab.timing import StepTiming, summarise

_GPU_FIELDS = (
    "grid",
    "block",
    "registers",
    "shared_bytes",
    "local_bytes",
    "occupancy",
    "blocks_per_sm",
    "limited_by",
    "waves",
)


def _heaviest(launches: list[Launch]) -> Launch | None:
    def threads(launch: Launch) -> int:
        total = 1
        for extent in (*launch.grid, *launch.block):
            total *= extent
        return total

    return max(launches, key=threads, default=None)


def _padded(dim: tuple[int, ...]) -> list[int]:
    return [*dim, 1, 1][:3]


def launch_json(launches: list[Launch]) -> dict[str, Any]:
    """Grid, block, registers, shared and local bytes, occupancy and waves of the largest launch."""
    launch = _heaviest(launches)
    if launch is None:
        return dict.fromkeys(_GPU_FIELDS)
    from lenetgpu.gpu.device import current_arch
    from lenetgpu.gpu.launch import multiprocessors
    from lenetgpu.gpu.nvrtc import compile_kernel
    from lenetgpu.gpu.occupancy import active_blocks, binding_limit, grid_of, occupancy

    at_once = active_blocks(launch) * multiprocessors()
    resources = compile_kernel(launch.kernel, current_arch()).resources
    return {
        "grid": _padded(launch.grid),
        "block": _padded(launch.block),
        "registers": resources.registers,
        "shared_bytes": resources.shared_bytes + launch.shared,
        "local_bytes": resources.stack_bytes,
        "occupancy": occupancy(launch),
        "blocks_per_sm": active_blocks(launch),
        "limited_by": binding_limit(launch),
        "waves": grid_of(launch) / at_once if at_once else None,
    }


def rates_json(
    flop: int, moved: int, seconds: float, precision: str, limits: Ceilings | None
) -> dict[str, Any]:
    """Operations, bytes and their rates, and the share of the roofline and what bounds it."""
    share, bound = (None, None) if limits is None else limits.share(flop, moved, seconds, precision)
    return {
        "gflop": flop / 1e9,
        "mbytes": moved / 1e6,
        "tflops": flop / seconds / 1e12 if seconds else 0.0,
        "gbs": moved / seconds / 1e9 if seconds else 0.0,
        "roofline": share,
        "bound": bound,
    }


def _work(row: StepTiming, images: int) -> tuple[int, int]:
    problem = row.step.problem
    if problem is not None:
        return problem.flop(images), problem.bytes(images)
    items = images
    for extent in row.step.writes[1]:
        items *= extent
    return 0, 4 * items


def stage_rows(
    timings: list[StepTiming], images: int, limits: Ceilings | None
) -> list[dict[str, Any]]:
    """The `stages` list of the schema, with each step's share of the sum."""
    summaries = [summarise(row.samples) for row in timings]
    total = sum(summary.median for summary in summaries) or 1.0
    rows = []
    for row, summary in zip(timings, summaries, strict=True):
        flop, moved = _work(row, images)
        precision = row.step.variant.precision if row.step.variant is not None else "fp32"
        is_copy = row.step.variant is None
        rows.append(
            {
                "stages": list(row.step.stages),
                "name": row.step.name,
                "variant": row.step.label,
                "median_ms": summary.median,
                "p05_ms": summary.p05,
                "p95_ms": summary.p95,
                "share": summary.median / total,
                **rates_json(
                    flop, moved, summary.median / 1e3, precision, None if is_copy else limits
                ),
                **launch_json(row.launches),
            }
        )
    return rows
