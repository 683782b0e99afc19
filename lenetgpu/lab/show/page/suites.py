"""Convolutions of any shape: suites from papers, and where a kernel's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lenetgpu.lab.show.conv import (
    COLUMNS,
    NETWORK_COLUMNS,
    SUM_COLUMNS,
    SUMMARY_COLUMNS,
    network_rows,
    sum_rows,
)
from lenetgpu.lab.show.page import specs
from lenetgpu.lab.show.page.blocks import Block, Chart, Document, Part, Section, Table, of_command
from lenetgpu.lab.show.page.candidates import table_row
from lenetgpu.lab.show.page.provenance import source
from lenetgpu.lab.show.tables import STATUS_WORDS, Column, fixed, percent, short_error

_MOST_FAMILIES = 8
SHARE_COLUMNS = (
    Column("shape", "label", numeric=False),
    Column("kernel", "kernel", numeric=False),
    Column("figure", "figure", numeric=False),
    Column("check", "check", numeric=False),
    Column("median us", "median_us", fixed(2)),
    Column("slowed by the clocks", "slowed", fixed(2)),
    Column("the paper: compute", "paper", percent),
    Column("error", "relative_error", short_error),
    Column("note", "remark", numeric=False),
)


def _best(document: Document) -> dict[str, dict[int, dict[str, Any]]]:
    """Of each family but the baseline's its fastest candidate of every case, best family first."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for index, case in enumerate(document["cases"]):
        for entry in case["candidates"]:
            speedup = entry["speedup"]
            if not speedup or speedup <= 0 or entry["name"] == case["reference"]:
                continue
            family = found.setdefault(entry["name"].partition(".")[0], {})
            if index not in family or family[index]["speedup"] < speedup:
                family[index] = entry
    ranked = sorted(found, key=lambda name: -max(e["speedup"] for e in found[name].values()))
    return {name: found[name] for name in ranked[:_MOST_FAMILIES]}


def _spec(document: Document) -> specs.Spec:
    """Speed-up over the baseline, a row a shape and a point a family."""
    best, cases = _best(document), document["cases"]
    rows = [
        {"shape": cases[index]["label"], "dims": cases[index]["shape"], "family": family,
         "name": entry["name"], "speedup": entry["speedup"], "ms": entry["median_ms"],
         "roof": entry["roofline"]}
        for family, entries in best.items()
        for index, entry in entries.items()
    ]  # fmt: skip
    labels = list(dict.fromkeys(case["label"] for case in cases))
    tips = specs.hints(("shape", "shape"), ("dims", "C,H,W,M,K,stride,pad"), ("name", "candidate"),
                       ("speedup", "times as fast", ",.3~g"), ("ms", "median ms", ",.3~g"),
                       ("roof", "of the roof", ".1%"))  # fmt: skip
    one = {"data": {"values": [{"at": 1}]}, "mark": {"type": "rule", "strokeDash": [4, 4]},
           "encoding": {"x": {"field": "at", "type": "quantitative"}}}  # fmt: skip
    words = f"times as fast as {document['reference']}, logarithmic"
    point = {
        "mark": {"type": "point", "filled": True, "size": 80, "opacity": 0.9},
        "encoding": {
            "y": specs.names("shape", labels),
            "x": specs.quantity("speedup", words, log=True),
            "color": specs.colour("family", list(best)),
            "tooltip": tips,
        },
    }
    return specs.spec(rows, specs.bars_high(len(labels)), layer=[one, point])


def _rows(document: Document) -> list[dict[str, Any]]:
    rows = []
    for case in document["cases"]:
        for entry in case["candidates"]:
            known = {name: entry[f"{name}_ms"] for name in ("median", "p05", "p95")}
            times = {f"{name}_us": ms and 1e3 * ms for name, ms in known.items()}
            reads, writes = entry["reads"], entry["writes"]
            layout = f"{reads} to {writes}" if reads and reads != writes else reads
            rows.append(table_row(entry) | times | {"label": case["label"], "layout": layout})
    return rows


def suites(documents: Sequence[Document]) -> Section:
    """A suite: its speed-ups, their summary, every candidate of every shape."""
    blocks = []
    for document in of_command(documents, "conv"):
        title = f"{document['title'] or document['suite'] or 'A shape'} ({document['label']})"
        claim = f"The paper's claim: {document['claim']}. " if document["claim"] else ""
        peer = f"Baseline {document['reference']}: {document['peer']}." if document["peer"] else ""
        line = source(document)
        parts: list[Part] = []
        if _best(document):
            parts.append(Chart(title, _spec(document), wide=True))
        if document["summary"]:
            title = f"Speed-ups over all shapes: {document['label']}"
            parts.append(Table(title, SUMMARY_COLUMNS, document["summary"]))
        if network := document["network"]:
            title = f"All convolutions, each as often as it is there: {document['label']}"
            parts.append(Table(title, SUM_COLUMNS, sum_rows(network)))
            title = f"Each distinct convolution: {document['label']}"
            parts.append(Table(title, NETWORK_COLUMNS, network_rows(network)))
        parts.append(Table(f"Every shape: {document['label']}", COLUMNS, _rows(document)))
        of = f" Source: {document['source']}." if document["source"] else ""
        blocks.append(Block(parts, line, claim + peer + of))
    lead = (
        "Convolutions of shapes that papers measured, by every variant that takes them. A point is "
        "a family's fastest variant; right of the dashed line it is faster than the baseline."
    )
    return Section("suites", "Convolutions of any shape", lead, blocks)


def _parts(case: dict[str, Any]) -> specs.Spec:
    rows = [
        {"kernel": row["kernel"], "part": part, "share": share, "order": order}
        for row in case["kernels"] if row["shares"]
        for order, (part, share) in enumerate(row["shares"].items()) if share is not None
    ]  # fmt: skip
    parts = list(dict.fromkeys(row["part"] for row in rows))
    return specs.spec(
        rows,
        specs.bars_high(len({row["kernel"] for row in rows})),
        mark={"type": "bar", "height": {"band": 0.72}},
        encoding={
            "y": specs.names("kernel"),
            "x": specs.quantity("share", "of its warps' clocks", axis={"format": ".0%"},
                                scale={"domain": [0, 1.0001], "clamp": True}),
            "color": specs.colour("part", parts),
            "order": {"field": "order"},
            "tooltip": specs.hints(("kernel", "kernel"), ("part", "part"),
                                   ("share", "of the clocks", ".1%")),
        },
    )  # fmt: skip


def shares(documents: Sequence[Document]) -> Section:
    """Where the time of the convnet2 paper's kernels goes, a chart a shape."""
    blocks = []
    for document in of_command(documents, "shares"):
        charts = [
            Chart(case["label"], _parts(case))
            for case in document["cases"] if any(row["shares"] for row in case["kernels"])
        ]  # fmt: skip
        rows = [
            row | {"label": case["label"],
                   "check": STATUS_WORDS.get(row["status"], row["status"])}
            for case in document["cases"] for row in case["kernels"]
        ]  # fmt: skip
        if rows:
            table = Table("Kernels with clocks inside", SHARE_COLUMNS, rows)
            blocks.append(Block([*charts, table], source(document)))
    lead = "Kernels with clocks inside say which part of them takes how much of their warps' time."
    return Section("shares", "Where a convolution's time goes", lead, blocks)
