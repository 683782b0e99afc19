"""Plans: what ran in each stage, and how long each took."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lenetgpu.lab.show.page import specs
from lenetgpu.lab.show.page.base import fragment
from lenetgpu.lab.show.page.blocks import (
    Block,
    Chart,
    Document,
    Drawing,
    Part,
    Section,
    Table,
    of_command,
)
from lenetgpu.lab.show.page.provenance import source
from lenetgpu.lab.show.tables import (
    LAUNCH_COLUMNS,
    MACHINE_COLUMNS,
    STAGE_COLUMNS,
    Column,
    fixed,
    percent,
    significant,
)
from lenetgpu.network import STAGE_NAMES, STAGES

PLAN_COLUMNS = (
    Column("plan", "plan_label", numeric=False),
    Column("precision", "precision", numeric=False),
    Column("compute ms", "compute", significant(4)),
    Column("p05 ms", "low", significant(4)),
    Column("p95 ms", "high", significant(4)),
    Column("host to host ms", "whole", significant(4)),
    Column("images/s", "images_per_second", fixed(0)),
    Column("right", "correct", "{:,}".format),
    Column("of", "images", "{:,}".format),
    Column("accuracy", "accuracy", percent),
    Column("weights", "weights", numeric=False),
    Column("data", "data", numeric=False),
    Column("samples", "samples", "{:,}".format),
)
_ROWS = (Column("plan", "plan_label", numeric=False), *STAGE_COLUMNS, *LAUNCH_COLUMNS,
         *MACHINE_COLUMNS)  # fmt: skip
_WHAT = {"conv": "5x5 convolution", "pool": "ReLU, 2x2 mean", "fc": "fully connected",
         "argmax": "largest score"}  # fmt: skip


def named_plans(documents: Sequence[Document]) -> list[Document]:
    """Runs of a plan, slowest first, each with `plan_label`: its plan, or the file's name."""
    found = [
        document | {"plan_label": document["plan_name"] or document["stem"]}
        for document in of_command(documents, "infer", "profile")
    ]
    return sorted(found, key=lambda d: -float(d["timing_ms"]["compute"]["median"]))


def stage_of(stages: Sequence[str]) -> str:
    """The stage that a row's colour stands for: the first of a span, "other" of none of ours."""
    known = [stage for stage in stages if stage in STAGE_NAMES]
    return known[0] if known else "other"


def _cells(document: Document) -> list[dict[str, Any]]:
    """What ran in the seven stages: `wide` columns each, with its time and share where known."""
    timed = {tuple(row["stages"]): row for row in document["stages"]}
    cells = []
    for slot in document["plan"]:
        row = timed.get(tuple(slot["stages"]), {})
        wide = len([stage for stage in slot["stages"] if stage in STAGE_NAMES])
        if wide:
            cells.append({
                "wide": wide, "pieces": re.findall(r"[^._]*[._]?", slot["variant"]),
                "stage": stage_of(slot["stages"]), "ms": row.get("median_ms"),
                "share": row.get("share"),
            })  # fmt: skip
    return cells if sum(cell["wide"] for cell in cells) == len(STAGE_NAMES) else []


def _extra(document: Document) -> list[dict[str, Any]]:
    """Rows between stages: conversions and copies."""
    return [row for row in document["stages"] if not row["stages"]]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) if shape else "a label"


def pipeline(documents: Sequence[Document]) -> Section:
    """The seven stages as a picture, a row a plan with the variant that ran in each."""
    ran = [
        {"name": document["plan_label"], "cells": _cells(document), "extra": _extra(document),
         "ms": document["timing_ms"]["compute"]["median"]}
        for document in named_plans(documents)
    ]  # fmt: skip
    ran = [plan for plan in ran if plan["cells"]]
    boxes = [
        {"name": stage.name, "kind": stage.kind, "what": _WHAT[stage.kind],
         "out": _shape(stage.problem.out_shape)}
        for stage in STAGES
    ]  # fmt: skip
    lead = (
        "Seven stages, each switchable. Below them, what ran in each: a variant that takes several "
        "stages in one launch is as wide as they are. The bar under a name is its share of the "
        "profiled pass."
    )
    if not ran:
        return Section("pipeline", "The pipeline", lead)
    picture = Drawing("", fragment("pipeline.html.j2", stages=boxes, plans=ran))
    return Section("pipeline", "The pipeline", lead,
                   [Block([picture], source(*named_plans(documents)))])  # fmt: skip


def _bars(plans: Sequence[Document]) -> specs.Spec:
    """A stacked bar a plan, whole: what share of its pass each stage took."""
    rows = [
        {"plan": document["plan_label"], "stage": stage_of(row["stages"]), "name": row["name"],
         "variant": row["variant"], "share": row["share"], "order": index, **specs.spread(row)}
        for document in plans
        for index, row in enumerate(document["stages"])
        if row["share"] is not None
    ]  # fmt: skip
    tips = specs.hints(("plan", "plan"), ("name", "stage"), ("variant", "variant"), specs.MS,
                       ("share", "of the pass", ".1%"))  # fmt: skip
    return specs.spec(
        rows,
        specs.bars_high(len({row["plan"] for row in rows})),
        mark={"type": "bar", "height": {"band": 0.72}},
        encoding={
            "y": specs.names("plan"),
            "x": specs.quantity("share", "share of the profiled pass", axis={"format": ".0%"},
                                scale={"domain": [0, 1.0001], "clamp": True}, stack="zero"),
            "color": specs.stage_colour([row["stage"] for row in rows]),
            "order": {"field": "order"},
            "tooltip": tips,
        },
    )  # fmt: skip


def _times(plans: Sequence[Document]) -> specs.Spec:
    """A plan's compute time and its time from host to host."""
    ways = (("compute", "on the device"), ("end_to_end", "host to host"))
    rows = []
    for document in plans:
        for key, way in ways:
            times = document["timing_ms"][key]
            if times["median"] > 0:
                row = {f"{name}_ms": times[name] for name in ("median", "p05", "p95")}
                rows.append({"plan": document["plan_label"], "way": way, **specs.spread(row)})
    tips = specs.hints(("plan", "plan"), ("way", "what"), specs.MS, specs.P05, specs.P95)
    return specs.dots(
        rows,
        specs.names("plan"),
        specs.quantity("median_ms", "ms of a pass, logarithmic", log=True),
        specs.colour("way", [way for _, way in ways]),
        tips,
    )


def plan_times(documents: Sequence[Document]) -> Section:
    """Bars of the stages, times of the plans, and both as tables."""
    plans = named_plans(documents)
    staged = [document for document in plans if document["stages"]]
    blocks = []
    if plans:
        parts: list[Part] = [Chart("Time of a pass, by plan", _times(plans))]
        if any(row["share"] for document in staged for row in document["stages"]):
            parts.append(Chart("Where the time of a pass goes, by stage", _bars(staged)))
        note = "A span of stages has the colour of its first; lines reach from the 5th to the 95th "
        rows = [
            document | {
                "compute": document["timing_ms"]["compute"]["median"],
                "low": document["timing_ms"]["compute"]["p05"],
                "high": document["timing_ms"]["compute"]["p95"],
                "whole": document["timing_ms"]["end_to_end"]["median"],
                "samples": len(document["timing_ms"]["compute"]["samples"] or ()),
            }
            for document in plans
        ]  # fmt: skip
        parts.append(Table("Plans", PLAN_COLUMNS, rows))
        stages = [row | {"plan_label": d["plan_label"]} for d in staged for row in d["stages"]]
        if stages:
            parts.append(Table("Stages of every plan, timed one by one", _ROWS, stages))
        blocks.append(Block(parts, source(*plans), note + "percentile."))
    return Section("plans", "Plans and their stages", "", blocks)
