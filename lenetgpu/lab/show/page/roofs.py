"""The roofline: how near every stage and variant comes to what the device can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lenetgpu.lab.show.page import specs
from lenetgpu.lab.show.page.blocks import Block, Chart, Document, Section, of_command
from lenetgpu.lab.show.page.machine import latest_ceilings
from lenetgpu.lab.show.page.plans import named_plans, stage_of
from lenetgpu.lab.show.page.provenance import source
from lenetgpu.network import STAGE_NAMES

_HEIGHT = 440
FLOOR = 0.001
"""TFLOP/s that the chart begins with."""


def _point(row: Document, stage: str, name: str, where: str) -> dict[str, Any] | None:
    """A row as a point, None where it did not count operations or was not timed."""
    gflop, mbytes, rate = row["gflop"], row["mbytes"], row["tflops"]
    if not gflop or not mbytes or not rate or min(gflop, mbytes, rate) <= 0:
        return None
    return {
        "stage": stage, "name": name, "where": where, "intensity": 1e3 * gflop / mbytes,
        "tflops": rate, "roof": row["roofline"], "ms": row["median_ms"],
    }  # fmt: skip


def _points(documents: Sequence[Document]) -> Iterator[dict[str, Any] | None]:
    for document in named_plans(documents):
        for row in document["stages"]:
            where = f"plan {document['plan_label']}"
            if row["stages"]:
                yield _point(row, stage_of(row["stages"]), f"{row['name']}: {row['variant']}",
                             where)  # fmt: skip
    for document in of_command(documents, "compare"):
        what = document["what"].split("+")
        for entry in document["candidates"] or () if what[0] in STAGE_NAMES else ():
            name = f"{document['what']}: {entry['name']}"
            yield _point(entry, stage_of(what), name, document["label"])
        for row in document["rows"] or ():
            if row["stage"].split("+")[0] in STAGE_NAMES and not on_a_cpu(row):
                name = f"{row['stage']}: {row['variant']}"
                yield _point(row, stage_of(row["stage"].split("+")), name, document["label"])


def on_a_cpu(row: Document) -> bool:
    """Whether a row of the course's suite ran on the CPU of a machine with a GPU."""
    return str(row["variant"]).startswith("serial")


def _roofs(limits: Document, low: float, high: float) -> list[dict[str, Any]]:
    """The lines: up the copy's slope to each rate, then level."""
    peaks = {"fp32 multiply-adds": limits["fma_tflops"],
             "tensor cores, mma.sync": limits["tensor_tflops"]}  # fmt: skip
    rows = []
    for name, peak in peaks.items():
        if peak <= 0 or limits["copy_gbs"] <= 0:
            continue
        corner = 1e3 * peak / limits["copy_gbs"]
        words = f"{name}: {peak:,.3g} TFLOP/s"
        for x in sorted({low, max(low, corner), max(high, corner)}):
            height = min(peak, x * limits["copy_gbs"] / 1e3)
            rows.append({"roof": words, "intensity": x, "tflops": height})
    return rows


def _spec(points: list[dict[str, Any]], limits: Document) -> specs.Spec:
    found = [point["intensity"] for point in points]
    low, high = min([0.2, *found]) / 1.5, max([200.0, *found]) * 1.5
    x = specs.quantity("intensity", "operations a byte that must be moved, logarithmic", log=True)
    y = specs.quantity("tflops", None, log=True)
    x["scale"] |= {"domain": [low, high], "padding": 0}
    top = 2 * max(limits["fma_tflops"], limits["tensor_tflops"], *(p["tflops"] for p in points))
    y["scale"] |= {"domain": [FLOOR, max(top, 10 * FLOOR)], "padding": 0, "clamp": True}
    tips = specs.hints(("name", "what"), ("where", "from"), ("tflops", "TFLOP/s", ",.4~g"),
                       ("intensity", "operations a byte", ",.4~g"), ("ms", "median ms", ",.4~g"),
                       ("roof", "of the roof", ".1%"))  # fmt: skip
    roofs = _roofs(limits, low, high)
    lines = {
        "data": {"values": roofs},
        "mark": {"type": "line", "strokeWidth": 1.6, "clip": True},
        "encoding": {"x": x, "y": y, "detail": {"field": "roof"}, "strokeDash": {
            "field": "roof", "type": "nominal", "title": None,
            "scale": {"domain": list(dict.fromkeys(row["roof"] for row in roofs))},
            "legend": {"symbolType": "stroke", "columns": 1},
        }},
    }  # fmt: skip
    marks = {
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.85, "clip": True},
        "encoding": {"x": x, "y": y, "tooltip": tips,
                     "color": specs.stage_colour([point["stage"] for point in points])},
    }  # fmt: skip
    return specs.spec(points, _HEIGHT, layer=[lines, marks])


def roofline(documents: Sequence[Document]) -> Section:
    """All stages of this network that were timed, under the ceilings measured last."""
    limits = latest_ceilings(documents)
    points = [point for point in _points(documents) if point is not None]
    lead = (
        "A point is a stage or variant: its rate over the operations that it does a byte it has to "
        "move. The slope is what a copy reaches, the level lines what multiply-adds and tensor "
        "cores reach, all measured; a point on a line leaves nothing to gain there."
    )
    if limits is None or not points:
        return Section("roofline", "Roofline", lead)
    used = [*named_plans(documents), *(
        document for document in of_command(documents, "compare")
        if document["rows"] or document["what"].split("+")[0] in STAGE_NAMES
    )]  # fmt: skip
    low = any(point["tflops"] < FLOOR for point in points)
    edge = f" What is slower than {FLOOR} TFLOP/s stands on the lower edge." if low else ""
    note = (
        "Operations are those of the plain algorithm: Winograd and FFT do fewer, and can stand "
        "above a line; so can wgmma's products above mma.sync's rate, and data that a cache holds "
        "above the copy's slope."
    )
    title = "TFLOP/s (logarithmic, upwards) over operations a byte, by stage"
    chart = Chart(title, _spec(points, limits), wide=True)
    return Section("roofline", "Roofline", lead, [Block([chart], source(*used), note + edge)])
