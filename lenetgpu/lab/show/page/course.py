"""The ladder: the course report's figures of 2016 beside this device's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lenetgpu.lab.show.compare import LADDER_COLUMNS
from lenetgpu.lab.show.page import specs
from lenetgpu.lab.show.page.blocks import Block, Chart, Document, Part, Section, Table, of_command
from lenetgpu.lab.show.page.provenance import samples, source
from lenetgpu.lab.show.page.roofs import on_a_cpu
from lenetgpu.lab.show.tables import STATUS_WORDS, Column, fixed, percent, significant

THEN, NOW = "the course, 2016", "here"
COLUMNS = (
    Column("table", "table", numeric=False),
    Column("what", "label", numeric=False),
    Column("stage", "stage", numeric=False),
    Column("variant", "variant", numeric=False),
    Column("check", "check", numeric=False),
    Column("course ms", "report_ms", significant(4)),
    Column("here ms", "median_ms", fixed(4)),
    Column("course/here", "speedup", fixed(1)),
    Column("TFLOP/s", "tflops", significant(3)),
    Column("of the roof", "roofline", percent),
    Column("occup.", "occupancy", percent),
    Column("regs/thread", "registers"),
    Column("why", "explanation", numeric=False),
    Column("note", "note", numeric=False),
)


def _rungs(document: Document, stage: str) -> list[dict[str, Any]]:
    """The course's figures for `stage` in its order, each variant once, CPU rows left out."""
    found: dict[str, dict[str, Any]] = {}
    for row in document["rows"]:
        timed = row["report_ms"] and row["median_ms"] and min(row["report_ms"], row["median_ms"])
        if row["stage"] == stage and timed and timed > 0 and not on_a_cpu(row):
            found.setdefault(row["variant"], row)
    return list(found.values())


def _spec(rows: list[dict[str, Any]]) -> specs.Spec:
    """Two points a rung on one line, the course's and today's."""
    ends = [
        {"variant": row["variant"], "when": when, "ms": row[key], "label": row["label"],
         "table": row["table"], "gain": row["speedup"]}
        for row in rows
        for when, key in ((THEN, "report_ms"), (NOW, "median_ms"))
    ]  # fmt: skip
    lines = [{"variant": row["variant"], "then": row["report_ms"], "now": row["median_ms"]}
             for row in rows]  # fmt: skip
    x = specs.quantity("ms", "ms, logarithmic", log=True)
    tips = specs.hints(("label", "the course's words"), ("table", "its table"),
                       ("variant", "variant"), ("when", "when"), ("ms", "ms", ",.4~g"),
                       ("gain", "course over here", ",.4~g"))  # fmt: skip
    line = {
        "data": {"values": lines},
        "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.3},
        "encoding": {"x": x | {"field": "then"}, "x2": {"field": "now"}},
    }
    point = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {"x": x, "color": specs.colour("when", (THEN, NOW)), "tooltip": tips},
    }
    return specs.spec(ends, specs.bars_high(len(rows)), encoding={"y": specs.names("variant")},
                      layer=[line, point])  # fmt: skip


def _gains(document: Document) -> specs.Spec:
    """What each step of the course's ladders gained there and gains here."""
    steps = [row for row in document["ladder"] if row["report_gain"] and row["gain"] > 0]
    rows = [
        {"step": f"{row['stage']}: {row['step']}", "when": when, "gain": row[key],
         "verdict": row["verdict"]}
        for row in steps
        for when, key in ((THEN, "report_gain"), (NOW, "gain"))
    ]  # fmt: skip
    tips = specs.hints(("step", "step"), ("when", "when"), ("gain", "times faster", ",.3~g"),
                       ("verdict", "today"))  # fmt: skip
    one = {"data": {"values": [{"at": 1}]}, "mark": {"type": "rule", "strokeDash": [4, 4]},
           "encoding": {"x": {"field": "at", "type": "quantitative"}}}  # fmt: skip
    point = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {
            "y": specs.names("step"),
            "x": specs.quantity("gain", "times faster than the step before, logarithmic", log=True),
            "color": specs.colour("when", (THEN, NOW)),
            "tooltip": tips,
        },
    }
    return specs.spec(rows, specs.bars_high(len(steps)), layer=[one, point])


def ladder(documents: Sequence[Document]) -> Section:
    """A chart a stage, the steps and what became of them, and every row."""
    blocks = []
    for document in of_command(documents, "compare"):
        if not document["rows"]:
            continue
        line = source(document, how=samples(document["rows"]))
        stages = list(dict.fromkeys(row["stage"] for row in document["rows"]))
        charts = [Chart(stage if stage != "all" else "all stages, plan course", _spec(rungs))
                  for stage in stages if (rungs := _rungs(document, stage))]  # fmt: skip
        if charts:
            note = f"{THEN[0].upper()}{THEN[1:]}: a GPU of that year, as its report prints it."
            serial = " Serial rows ran on a CPU: they are in the table below, and in no chart."
            blocks.append(Block(charts, line, note + serial))
        if document["ladder"]:
            parts: list[Part] = []
            if any(row["report_gain"] for row in document["ladder"]):
                title = "What each step gained then and gains now"
                parts.append(Chart(title, _gains(document), wide=True))
            parts.append(Table("The steps of the ladder", LADDER_COLUMNS, document["ladder"]))
            note = "Gains within 2 % of 1 are none: gone. Below that the idea has turned."
            blocks.append(Block(parts, line, note))
        rows = [row | {"check": STATUS_WORDS.get(row["status"], row["status"])}
                for row in document["rows"]]  # fmt: skip
        blocks.append(Block([Table("Every row of the course's suite", COLUMNS, rows)], line))
    lead = (
        "In 2016 a course's report took this network from a serial loop to 270 ms on a GPU, step "
        "by step. Its variants run here again, each checked against float64 first."
    )
    return Section("ladder", "The ladder of 2016", lead, blocks)
