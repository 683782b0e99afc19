"""Host to host: schedules of streams and chunks, and a pass as it ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lenetgpu.lab.show.page import specs
from lenetgpu.lab.show.page.blocks import Block, Chart, Document, Part, Section, Table, of_command
from lenetgpu.lab.show.page.provenance import source
from lenetgpu.lab.show.tables import Column, fixed, significant

COLUMNS = (
    Column("plan", "plan", numeric=False),
    Column("type", "dtype", numeric=False),
    Column("images", "images", "{:,}".format),
    Column("way", "way", numeric=False),
    Column("streams", "streams"),
    Column("chunk", "chunk", "{:,}".format),
    Column("taper", "taper", significant(2)),
    Column("median ms", "median_ms", fixed(4)),
    Column("p05 ms", "p05_ms", fixed(4)),
    Column("p95 ms", "p95_ms", fixed(4)),
    Column("the model's ms", "predicted_ms", fixed(4)),
    Column("samples", "samples"),
)
_ACROSS = ("bare copy", "kernels", "zero-copy")
_MOST_EVENTS = 4_000
EVENT_COLUMNS = (
    Column("lane", "lane", numeric=False),
    Column("what", "name", numeric=False),
    Column("kind", "kind", numeric=False),
    Column("start ms", "start", fixed(4)),
    Column("length ms", "length", fixed(4)),
)


def _spec(sweep: dict[str, Any]) -> specs.Spec:
    """Milliseconds over images a chunk, a line a number of streams; bare ways drawn across."""
    timed = [row for row in sweep["rows"] if row["median_ms"] > 0]
    ways = [row for row in timed if row["way"] == "schedule" and row["taper"] in (None, 1)]
    ways = [row | {"lanes": f"{row['streams']:g}"} for row in ways
            if row["streams"] and row["chunk"] and row["chunk"] > 0]  # fmt: skip
    counts = sorted({row["lanes"] for row in ways}, key=float)
    across = [{"way": row["way"], "median_ms": row["median_ms"]} for row in timed
              if row["way"] in _ACROSS]  # fmt: skip
    stars = [row for row in timed if row["way"] == "auto" and row["chunk"]]
    x = specs.quantity("chunk", "images a chunk, logarithmic", log=True)
    y = specs.quantity("median_ms", None, scale={"zero": True})
    tips = specs.hints(
        ("lanes", "streams"),
        ("chunk", "images a chunk", ","),
        specs.MS,
        specs.P05,
        specs.P95,
        ("predicted_ms", "the model's ms", ",.4~g"),
    )
    line = {
        "data": {"values": ways},
        "mark": {"type": "line", "point": {"size": 55, "filled": True}},
        "encoding": {"x": x, "y": y, "tooltip": tips,
                     "color": specs.colour("lanes", counts, "streams")},
    }  # fmt: skip
    rule = {
        "data": {"values": across},
        "mark": {"type": "rule", "strokeWidth": 1.6, "opacity": 0.8},
        "encoding": {
            "y": y, "tooltip": specs.hints(("way", "what"), specs.MS),
            "strokeDash": {"field": "way", "type": "nominal", "title": None,
                           "scale": {"domain": list(_ACROSS),
                                     "range": [[8, 4], [2, 3], [10, 3, 2, 3]]},
                           "legend": {"symbolType": "stroke", "symbolStrokeWidth": 2}},
        },
    }  # fmt: skip
    star = {
        "data": {"values": stars},
        "mark": {"type": "point", "shape": "diamond", "size": 170, "filled": False,
                 "strokeWidth": 2},
        "encoding": {"x": x, "y": y, "tooltip": specs.hints(
            ("way", "the model's choice"), ("streams", "streams", ","), ("chunk", "chunk", ","),
            specs.MS)},
    }  # fmt: skip
    return specs.spec([], 240, layer=[line, rule, star])


def sweeps(documents: Sequence[Document]) -> Section:
    """A chart a plan and type of pixels, and every schedule."""
    blocks = []
    for document in of_command(documents, "streams"):
        found = [sweep for sweep in document["sweeps"] if sweep["rows"]]
        rounds = f"{document['rounds']:g} rounds" if document["rounds"] else ""
        line = source(document, how=rounds)
        charts = [Chart(f"{sweep['plan']}, {sweep['dtype']}, {sweep['images']:,} images: ms",
                        _spec(sweep)) for sweep in found]  # fmt: skip
        note = (
            "Upwards: ms of a pass. Lines across: the bare copy, the kernels alone, kernels that "
            "read the host's memory. "
            "The diamond is what the model of the schedule chooses."
        )
        rows = [row | {key: sweep[key] for key in ("plan", "dtype", "images")}
                for sweep in found for row in sweep["rows"]]  # fmt: skip
        if rows:
            blocks.append(Block([*charts, Table("Every schedule", COLUMNS, rows)], line, note))
    lead = (
        "Images go to the GPU in chunks, round several streams, so that copies lie under kernels. "
        "How many streams and how large a chunk is a model's choice; here is what it chose from."
    )
    return Section("streams", "Streams and chunks", lead, blocks)


def _events(document: Document) -> list[dict[str, Any]]:
    lanes = {event["tid"]: event["args"]["name"] for event in document["traceEvents"]
             if event["name"] == "thread_name" and event["args"]}  # fmt: skip
    return [
        {"lane": lanes.get(event["tid"]) or f"stream {event['tid']}", "name": event["name"],
         "kind": event["cat"] or "stage", "start": event["ts"] / 1e3, "length": event["dur"] / 1e3,
         "end": (event["ts"] + event["dur"]) / 1e3}
        for event in document["traceEvents"]
        if event["ph"] == "X" and event["ts"] is not None and event["dur"] is not None
    ]  # fmt: skip


def _gantt(events: list[dict[str, Any]]) -> specs.Spec:
    lanes = sorted({event["lane"] for event in events}, key=lambda lane: (len(lane), lane))
    what = list(dict.fromkeys(event["name"] for event in events))
    tips = specs.hints(("lane", "lane"), ("name", "what"), ("start", "start ms", ",.4f"),
                       ("length", "length ms", ",.4~g"))  # fmt: skip
    return specs.spec(
        events,
        34 * max(2, len(lanes)),
        mark={"type": "bar", "height": {"band": 0.7}, "strokeWidth": 0.5},
        encoding={
            "y": specs.names("lane", lanes),
            "x": specs.quantity("start", "ms from the first event", scale={"zero": True}),
            "x2": {"field": "end"},
            "color": specs.colour("name", what),
            "tooltip": tips,
        },
    )


def traces(documents: Sequence[Document]) -> Section:
    """A pass as it ran: a lane a stream, a bar a stage or copy."""
    blocks = []
    for document in of_command(documents, "trace"):
        events = _events(document)[:_MOST_EVENTS]
        if not events:
            continue
        about = document["otherData"]
        note = ""
        if about["copies_ms"]:
            hidden = about["copies_under_kernels_ms"] or 0.0
            note = f"{about['copies_ms']:.3f} ms of copies, {hidden:.3f} ms of them under stages."
        title = about["title"] or document["label"]
        parts: list[Part] = [Chart(title, _gantt(events), wide=True)]
        parts.append(Table("Stages and copies of the pass", EVENT_COLUMNS, events))
        blocks.append(Block(parts, source(document), note))
    return Section("trace", "A pass as it ran", "", blocks)
