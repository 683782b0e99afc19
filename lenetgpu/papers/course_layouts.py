"""Layouts of the course report's rows, before and after its transformation (Table 10)."""

from __future__ import annotations

from typing import Any

from lenetgpu.layouts import physical_shape
from lenetgpu.network import STAGES
from lenetgpu.papers.course import FIGURES, LAYOUTS, UNTIMED
from lenetgpu.stages import Variant

TABLE_10 = {
    "conv1": ("NCHW", "QUAD"),
    "pool1": ("QUAD", "NCHW"),
    "conv2": ("NCHW", "QUAD"),
    "pool2": ("QUAD", "NHWC"),
}
_OWN = {figure.variant for figure in FIGURES} | {name for *_, name in UNTIMED}


def layouts_of(stage: str, variant: Variant) -> tuple[str, str] | None:
    """(reads, writes) of a row; None: the variant's first ones.

    Table 10's after the transformation for what reads or writes QUAD; NHWC for the course's other
    kernels of maps, as before it.
    """
    if "QUAD" in (*variant.reads, *variant.writes):
        return TABLE_10[stage]
    own = variant.full_name in _OWN and variant.kind in ("conv", "pool")
    return ("NHWC", "NHWC") if own else None


def layout_rows() -> list[dict[str, Any]]:
    """Table 10: the report's shapes and the ones this package gives its layouts."""
    by_name = {stage.name: stage.problem for stage in STAGES}
    rows = []
    for stage, end, before, after in LAYOUTS:
        problem = by_name[stage]
        shape = problem.in_shape if end == "in" else problem.out_shape
        layout = TABLE_10[stage][0 if end == "in" else 1]
        rows.append(
            {
                "table": "10",
                "stage": stage,
                "end": end,
                "report_before": list(before),
                "report_after": list(after),
                "layout": layout,
                "before": list(shape),
                "after": list(physical_shape(layout, 1, shape)[1:]),
            }
        )
    return rows
