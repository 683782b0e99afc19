"""Sections of a page about runs of this network: plans, peers, streams, labels, counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lenetgpu.check.mistakes import counts_of
from lenetgpu.lab import charts
from lenetgpu.lab.charts import MS, P05, P95, Spec, hints
from lenetgpu.lab.counters import Counted
from lenetgpu.lab.page import mistakes as pictures
from lenetgpu.lab.page.base import fragment
from lenetgpu.lab.page.blocks import (
    Block,
    Chart,
    Document,
    Drawing,
    Facts,
    Part,
    Tile,
    device_name,
    either,
    of_command,
    of_what,
    samples,
    section,
    short,
    short_commit,
    source,
    where,
)
from lenetgpu.lab.render import Table
from lenetgpu.lab.rows import (
    Column,
    Row,
    Stage,
    column,
    count,
    fixed,
    percent,
    short_error,
    significant,
    words,
)
from lenetgpu.network import STAGE_NAMES, STAGES

OURS = "lenetgpu"
_SOFTWARE = {
    "driver": "driver",
    "cuda_driver": "CUDA of the driver",
    "cupy": "CuPy",
    "nvrtc": "NVRTC",
    "python": "Python",
    "numpy": "NumPy",
    "numba": "Numba",
    "torch": "PyTorch",
    "cudnn": "cuDNN",
}
_TITLES = {
    "peers": "images on the device to labels there",
    "end-to-end": "images in host memory to labels in it",
    "one": "one image, from the host to its label",
    "cold": "a new process, from its start to the labels",
}
_WHAT = {
    "conv": "5x5 convolution",
    "pool": "ReLU, 2x2 mean",
    "fc": "fully connected",
    "argmax": "largest score",
}
_MOST_SHOWN, _MOST_EVENTS = 16, 4_000


@dataclass(frozen=True)
class File(Row):
    """A file that a page is made of."""

    label: str = column("file")
    command: str = column("what")
    date: str | None = column("date")
    commit: str | None = column("commit")
    data: str | None = column("data")
    weights: str | None = column("weights")
    images: int | None = column("images", count)


@dataclass(frozen=True)
class Planned(Row):
    """A plan's pass, on the device and from host to host."""

    plan_label: str = column("plan")
    precision: str | None = column("precision")
    compute: float | None = column("compute ms", significant(4))
    low: float | None = column("p05 ms", significant(4))
    high: float | None = column("p95 ms", significant(4))
    whole: float | None = column("host to host ms", significant(4))
    images_per_second: float | None = column("images/s", fixed(0))
    correct: int | None = column("right", count)
    images: int | None = column("of", count)
    accuracy: float | None = column("accuracy", percent)
    weights: str | None = column("weights")
    data: str | None = column("data")
    samples: int | None = column("samples", count)


@dataclass(frozen=True)
class Contestant(Row):
    """A peer's or our time for the same work."""

    name: str = column("contestant")
    maker: str = column("by")
    precision: str | None = column("precision")
    median_ms: float | None = column("median ms", significant(4))
    p05_ms: float | None = column("p05 ms", significant(4))
    p95_ms: float | None = column("p95 ms", significant(4))
    peer: str | None = column("best peer")
    peer_ms: float | None = column("its ms", significant(4))
    times_faster: float | None = column("times as fast", fixed(2))
    over_copy: float | None = column("over the bare copy", fixed(2))
    correct: int | None = column("right", count)
    flips: int | None = column("flips", count)
    judged: int | None = column("judged", count)
    relative_error: float | None = column("logit error", short_error)
    streams: int | None = column("streams")
    chunk: int | None = column("chunk", count)
    processor_ms: float | None = column("processor ms", fixed(0))
    call_worst_ms: float | None = column("worst call ms", significant(3))


@dataclass(frozen=True)
class Scheduled(Row):
    """A schedule of streams and chunks."""

    plan: str = column("plan")
    dtype: str = column("type")
    images: int = column("images", count)
    way: str = column("way")
    streams: int | None = column("streams")
    chunk: int | None = column("chunk", count)
    taper: float | None = column("taper", significant(2))
    median_ms: float | None = column("median ms", fixed(4))
    p05_ms: float | None = column("p05 ms", fixed(4))
    p95_ms: float | None = column("p95 ms", fixed(4))
    predicted_ms: float | None = column("the model's ms", fixed(4))
    samples: int | None = column("samples")


@dataclass(frozen=True)
class Event(Row):
    """A stage or copy of a pass that was traced."""

    lane: str = column("lane")
    name: str = column("what")
    kind: str = column("kind")
    start: float = column("start ms", fixed(4))
    length: float = column("length ms", fixed(4))


@dataclass(frozen=True)
class Labelled(Row):
    """How many labels were right."""

    name: str = column("what ran")
    precision: str | None = column("precision")
    data: str | None = column("data")
    weights: str | None = column("weights")
    correct: int | None = column("right", count)
    judged: int | None = column("of", count)
    accuracy: float | None = column("accuracy", percent)
    flips: int | None = column("labels unlike float64's", count)
    relative_error: float | None = column("logit error", short_error)


_COUNTERS = [
    words("plan", "plan"),
    *(one for one in Counted.columns() if one.key not in ("kernel", "launches", "stalls")),
    words("stalled most by", "top_stall"),
    Column("of all stalls", "top_stall_share", percent),
]


def table(kind: type[Row], rows: Iterable[dict[str, Any]], title: str) -> Table:
    """Return a table of objects of JSON."""
    return Table(kind, [kind.of(row) for row in rows], title)


def named_plans(documents: Sequence[Document]) -> list[Document]:
    """Return runs of a plan, slowest first; `plan_label` is the plan, or the file's name."""
    found = [
        document | {"plan_label": document["plan_name"] or document["stem"]}
        for document in of_command(documents, "infer", "profile")
    ]
    return sorted(found, key=lambda d: -float(d["timing_ms"]["compute"]["median"]))


def stage_of(stages: Sequence[str]) -> str:
    """Return whose colour a row has: its span's first stage, "other" of none of ours."""
    return next((stage for stage in stages if stage in STAGE_NAMES), "other")


# the figures to read first, and the machine


def _rate(rate: float) -> str:
    return f"{rate / 1e6:,.1f} M/s" if rate >= 1e6 else f"{rate:,.0f}/s"


def _right(correct: float, judged: float, what: str, of: str) -> Tile:
    shown = f"{correct / judged:.2%}" if judged else f"{correct:,}"
    return Tile(shown, f"{correct:,.0f} of {judged:,.0f} {what}", of)


def _of_peers(document: Document, row: Document) -> list[Tile]:
    of, images = where(document), row["images"] or document["images"] or 0
    name = row["name"]
    tiles = [
        Tile(
            f"{short(row['median_ms'], 3)} ms",
            f"{name}: {images:,} images on the device to labels there",
            of,
        ),
        Tile(_rate(images * 1e3 / row["median_ms"]), f"{name}: images a second in that pass", of),
    ]
    if row["times_faster"]:
        faster = f"as fast as the best peer of its precision, {row['peer']}"
        tiles.append(Tile(f"{row['times_faster']:.1f}x", faster, of))
    if row["correct"] is not None:
        what = f"labels right: {name}, {of_what(document)}"
        tiles.append(_right(row["correct"], row["judged"] or images, what, of))
    return tiles


def _of_a_run(best: Document) -> list[Tile]:
    of, images, took = where(best), best["images"] or 0, best["timing_ms"]
    plan, compute = f"plan {best['plan_label']}", f"{short(took['compute']['median'], 3)} ms"
    tiles = [Tile(compute, f"{plan}: {images:,} images on the device to labels there", of)]
    if took["end_to_end"] != took["compute"]:
        whole = f"{short(took['end_to_end']['median'], 3)} ms"
        tiles.append(Tile(whole, f"{plan}: the same from host memory to host memory", of))
    if best["images_per_second"]:
        tiles.append(Tile(_rate(best["images_per_second"]), "images, host to host", of))
    if best["correct"] is not None:
        tiles.append(_right(best["correct"], images, f"labels right, {of_what(best)}", of))
    return tiles


def _of_document(document: Document) -> list[Tile]:
    """Return what a document of a contest, or of the course's suite, says first."""
    of = where(document)
    if document["command"] == "compare":
        rows = (r for r in document["rows"] or () if r["stage"] == "all")
        row = next((r for r in rows if r["report_ms"] and r["speedup"]), None)
        if row is None:
            return []
        what = f"the course's {row['report_ms']:,.0f} ms of 2016 over {row['variant']} here"
        return [Tile(f"{row['speedup']:,.0f}x", what, of)]
    ours = [row for row in document["rows"] if row["maker"] == OURS and row["median_ms"] > 0]
    best = min(ours, key=lambda row: float(row["median_ms"]), default=None)
    if best is None:
        return []
    if document["command"] == "peers":
        return _of_peers(document, best)
    if document["command"] == "one":
        took = f"{1e3 * best['median_ms']:,.1f} us"
        return [Tile(took, f"one image, host to label: {best['name']}", of)]
    what = f"{best['name']}: {document['images'] or 0:,} images, host memory to labels in it"
    return [Tile(f"{short(best['median_ms'], 3)} ms", what, of)]


@section("first", "In short")
def headline(documents: Sequence[Document]) -> Iterator[Block]:
    """Return the figures to read first, as far as the files have them."""
    tiles = [tile for d in of_command(documents, "peers") for tile in _of_document(d)]
    plans = named_plans(documents)
    if not tiles and plans:
        tiles = _of_a_run(plans[-1])
    for command in ("end-to-end", "one", "compare"):
        tiles += [tile for d in of_command(documents, command) for tile in _of_document(d)]
    if tiles:
        yield Block([tiles])


def latest_ceilings(documents: Sequence[Document]) -> Document | None:
    """Return the ceilings that were measured last, None where no file has any."""
    found = [document["ceilings"] for document in documents if document.get("ceilings")]
    return max(found, key=lambda limits: limits["date"] or "", default=None)


@section("machine", "The machine")
def machine(documents: Sequence[Document]) -> Iterator[Block]:
    """Return what ran, with which software, in which files."""
    facts = {"device": device_name(documents[0])}
    if capability := documents[0]["device"].get("compute_capability"):
        facts["compute capability"] = capability
    for key, name in _SOFTWARE.items():
        if found := either(str(d[key]) for d in documents if d.get(key)):
            facts[name] = found
    limits = latest_ceilings(documents)
    if limits is not None:
        facts["copy, at most"] = f"{limits['copy_gbs']:,.0f} GB/s"
        facts["fp32 multiply-adds, at most"] = f"{short(limits['fma_tflops'], 3)} TFLOP/s"
        if limits["tensor_tflops"]:
            tensor = f"{limits['tensor_tflops']:,.0f} TFLOP/s"
            facts["tensor cores (mma.sync), at most"] = tensor
        facts["ceilings measured"] = limits["date"] or "undated"
    yield Block([Facts("", facts)])
    if not documents[0].get("fresh"):
        files = [d | {"commit": short_commit(d.get("commit"))} for d in documents]
        title = "Files that the figures below are read from"
        yield Block([table(File, files, title)])


# plans


def _cells(document: Document) -> list[dict[str, Any]]:
    """Return what ran in the seven stages: `wide` columns each, with its time where known."""
    timed = {tuple(row["stages"]): row for row in document["stages"]}
    cells = []
    for slot in document["plan"]:
        row = timed.get(tuple(slot["stages"]), {})
        wide = len([stage for stage in slot["stages"] if stage in STAGE_NAMES])
        if wide:
            pieces = re.findall(r"[^._]*[._]?", slot["variant"])
            about = {"stage": stage_of(slot["stages"]), "ms": row.get("median_ms")}
            cells.append({"wide": wide, "pieces": pieces, "share": row.get("share"), **about})
    return cells if sum(cell["wide"] for cell in cells) == len(STAGE_NAMES) else []


@section(
    "pipeline",
    "The pipeline",
    (
        "Seven stages, each switchable. Below them, what ran in each: a variant that takes several "
        "stages in one launch is as wide as they are. The bar under a name is its share of the "
        "profiled pass."
    ),
)
def pipeline(documents: Sequence[Document]) -> Iterator[Block]:
    """Return the seven stages as a picture, a row a plan with the variant that ran in each."""
    plans = [
        {
            "name": document["plan_label"],
            "cells": cells,
            "extra": [row for row in document["stages"] if not row["stages"]],
            "ms": document["timing_ms"]["compute"]["median"],
        }
        for document in named_plans(documents)
        if (cells := _cells(document))
    ]
    if not plans:
        return
    boxes = []
    for stage in STAGES:
        out = " x ".join(map(str, stage.problem.out_shape)) or "a label"
        box = {"name": stage.name, "kind": stage.kind, "what": _WHAT[stage.kind], "out": out}
        boxes.append(box)
    picture = Drawing("", fragment("pipeline.html.j2", stages=boxes, plans=plans))
    yield Block([picture], source(*named_plans(documents)))


def _bars(plans: Sequence[Document]) -> Spec:
    """Return a stacked bar a plan, whole: what share of its pass each stage took."""
    rows = [
        {"plan": document["plan_label"], "stage": stage_of(row["stages"]), "order": index}
        | charts.picked(row, "name variant share", **charts.spread(row))
        for document in plans
        for index, row in enumerate(document["stages"])
        if row["share"] is not None
    ]
    share = ("share", "of the pass", ".1%")
    tips = hints(("plan", "plan"), ("name", "stage"), ("variant", "variant"), MS, share)
    tint = charts.stage_colour([row["stage"] for row in rows])
    return charts.stacked(rows, "plan", charts.shares("share of the profiled pass"), tint, tips)


def _times(plans: Sequence[Document]) -> Spec:
    """Return a plan's compute time and its time from host to host."""
    ways = {"compute": "on the device", "end_to_end": "host to host"}
    rows = []
    for document in plans:
        for key, way in ways.items():
            times = document["timing_ms"][key]
            if times["median"] > 0:
                row = {f"{name}_ms": times[name] for name in ("median", "p05", "p95")}
                about = {"plan": document["plan_label"], "way": way}
                rows.append(about | charts.spread(row))
    tint = charts.colour("way", [*ways.values()])
    tips = hints(("plan", "plan"), ("way", "what"), MS, P05, P95)
    return charts.dots(rows, "plan", "ms of a pass, logarithmic", tint, tips)


@section("plans", "Plans and their stages")
def plan_times(documents: Sequence[Document]) -> Iterator[Block]:
    """Return bars of the stages, times of the plans, and both as tables."""
    plans = named_plans(documents)
    staged = [document for document in plans if document["stages"]]
    if not plans:
        return
    parts: list[Part] = [Chart("Time of a pass, by plan", _times(plans))]
    if any(row["share"] for document in staged for row in document["stages"]):
        parts.append(Chart("Where the time of a pass goes, by stage", _bars(staged)))
    rows = []
    for document in plans:
        compute = document["timing_ms"]["compute"]
        about = {"compute": compute["median"], "low": compute["p05"], "high": compute["p95"]}
        about["whole"] = document["timing_ms"]["end_to_end"]["median"]
        rows.append(document | about | {"samples": len(compute["samples"] or ())})
    parts.append(table(Planned, rows, "Plans"))
    stages = [row | {"plan_label": d["plan_label"]} for d in staged for row in d["stages"]]
    if stages:
        every = [words("plan", "plan_label"), *Stage.columns()]
        parts.append(Table(every, stages, "Stages of every plan, timed one by one"))
    note = (
        "A span of stages has the colour of its first; lines reach from the 5th to the 95th "
        "percentile."
    )
    yield Block(parts, source(*plans), note)


# beside PyTorch, JAX and others


def _best(rows: Sequence[Document]) -> list[Document]:
    """Return the fastest of each maker at each precision where there are many; fastest first."""
    ordered = sorted(rows, key=lambda row: float(row["median_ms"]))
    if len(ordered) <= _MOST_SHOWN:
        return ordered
    best: dict[tuple[str, str], Document] = {}
    for row in ordered:
        best.setdefault((row["maker"], row["precision"] or ""), row)
    return list(best.values())


def _contest(rows: Sequence[Document]) -> Spec:
    shown = [
        charts.picked(row, "name maker precision", **charts.spread(row))
        for row in _best(rows)
        if row["median_ms"] > 0
    ]
    makers = sorted({row["maker"] for row in shown}, key=lambda maker: (maker != OURS, maker))
    tips = hints(("name", "contestant"), ("precision", "precision"), MS, P05, P95)
    return charts.dots(shown, "name", "ms, logarithmic", charts.colour("maker", makers), tips)


def _scaling(document: Document) -> Spec:
    rows = [row for row in document["scaling"] if row["images"] > 0 and row["ns_per_image"] > 0]
    took = ("ns_per_image", "ns an image", ",.4~g")
    encoding = {
        "x": charts.quantity("images", "images a pass, logarithmic", log=True),
        "y": charts.quantity("ns_per_image", None, log=True),
        "color": charts.colour("plan", list(dict.fromkeys(row["plan"] for row in rows))),
        "tooltip": hints(("plan", "plan"), ("images", "images", ","), took),
    }
    mark = {"type": "line", "point": {"size": 70, "filled": True}}
    return charts.spec(rows, 280, mark=mark, encoding=encoding)


def _phases(document: Document) -> Spec:
    rows = [
        {"phase": name, "ms": ms, "order": 0, "of": "ours"}
        for name, ms in document["phases_ms"].items()
    ]
    x, tips = charts.quantity("ms", "ms of our own process"), hints(("phase", "phase"))
    tips += hints(("ms", "ms", ",.4~g"))
    return charts.stacked(rows, "phase", x, charts.colour("of", ["ours"]), tips)


def _beside(document: Document) -> Iterable[Block]:
    """Yield one document's charts and table, and those of more images."""
    rows, what = document["rows"], _TITLES[document["command"]]
    if not rows:
        return
    images = f", {document['images']:,} images" if (document["images"] or 1) > 1 else ""
    few = len(_best(rows)) < len(rows)
    note = "The fastest of each maker at each precision; the table has all. " if few else ""
    absent = [entry["name"] for entry in document["not_measured"] or ()]
    note += f"Not measured: {', '.join(absent)}." if absent else ""
    title = f"{what[0].upper()}{what[1:]}{images}"
    parts: list[Part] = [Chart(title, _contest(rows), wide=True)]
    if document["scaling"]:
        title = "Nanoseconds an image (logarithmic, upwards) over images a pass"
        parts.append(Chart(title, _scaling(document), wide=True))
    if document["phases_ms"]:
        parts.append(Chart("A cold start of ours, by phase", _phases(document), wide=True))
    parts.append(table(Contestant, rows, f"All contestants: {what}"))
    yield Block(parts, source(document, how=samples(rows)), note)
    many = document["many"]
    if many and many["rows"]:
        rows, images = many["rows"], f"{many['images']:,} images"
        parts = [Chart(f"The same, {images}", _contest(rows), wide=True)]
        parts.append(table(Contestant, rows, f"All contestants, {images}"))
        yield Block(parts, source(document, how=samples(rows)))


@section(
    "peers",
    "Beside PyTorch, JAX and others",
    (
        "Contestants took turns in rounds, so that a slow moment of the machine met all of them. "
        "Labels that differ from float64's are flips."
    ),
)
def peers(documents: Sequence[Document]) -> Iterator[Block]:
    """Return every document of this kind, a chart and a table each."""
    found = [d for command in _TITLES for d in of_command(documents, command)]
    for document in found:
        yield from _beside(document)


# streams


@section(
    "streams",
    "Streams and chunks",
    (
        "Images go to the GPU in chunks, round several streams, so that copies lie under kernels. "
        "How many streams and how large a chunk is a model's choice; here is what it chose from."
    ),
)
def sweeps(documents: Sequence[Document]) -> Iterator[Block]:
    """Return a chart a plan and type of pixels, and every schedule."""
    note = (
        "Upwards: ms of a pass. Lines across: the bare copy, the kernels alone, kernels that read "
        "the host's memory. The diamond is what the model of the schedule chooses."
    )
    for document in of_command(documents, "streams"):
        parts: list[Part] = []
        rows = []
        for sweep in document["sweeps"]:
            about = {key: sweep[key] for key in ("plan", "dtype", "images")}
            rows += [row | about for row in sweep["rows"]]
            if sweep["rows"]:
                title = f"{sweep['plan']}, {sweep['dtype']}, {sweep['images']:,} images: ms"
                parts.append(Chart(title, charts.sweep(sweep["rows"])))
        if rows:
            rounds = f"{document['rounds']:g} rounds" if document["rounds"] else ""
            parts.append(table(Scheduled, rows, "Every schedule"))
            yield Block(parts, source(document, how=rounds), note)


def _events(document: Document) -> list[dict[str, Any]]:
    every = document["traceEvents"]
    named = [event for event in every if event["name"] == "thread_name" and event["args"]]
    lanes = {event["tid"]: event["args"]["name"] for event in named}
    found = []
    for event in every:
        start, length = event["ts"], event["dur"]
        if event["ph"] == "X" and start is not None and length is not None:
            lane = lanes.get(event["tid"]) or f"stream {event['tid']}"
            about = {"lane": lane, "name": event["name"], "kind": event["cat"] or "stage"}
            times = {"start": start / 1e3, "length": length / 1e3, "end": (start + length) / 1e3}
            found.append(about | times)
    return found


def _gantt(events: list[dict[str, Any]]) -> Spec:
    lanes = sorted({event["lane"] for event in events}, key=lambda lane: (len(lane), lane))
    start, long = ("start", "start ms", ",.4f"), ("length", "length ms", ",.4~g")
    encoding = {
        "y": charts.names("lane", lanes),
        "x": charts.quantity("start", "ms from the first event", scale={"zero": True}),
        "x2": {"field": "end"},
        "color": charts.colour("name", list(dict.fromkeys(event["name"] for event in events))),
        "tooltip": hints(("lane", "lane"), ("name", "what"), start, long),
    }
    mark = {"type": "bar", "height": {"band": 0.7}, "strokeWidth": 0.5}
    return charts.spec(events, 34 * max(2, len(lanes)), mark=mark, encoding=encoding)


@section("trace", "A pass as it ran")
def traces(documents: Sequence[Document]) -> Iterator[Block]:
    """Return a pass as it ran: a lane a stream, a bar a stage or copy."""
    for document in of_command(documents, "trace"):
        events, about = _events(document)[:_MOST_EVENTS], document["otherData"]
        if not events:
            continue
        note, copies = "", about["copies_ms"]
        if copies:
            hidden = about["copies_under_kernels_ms"] or 0.0
            note = f"{copies:.3f} ms of copies, {hidden:.3f} ms of them under stages."
        chart = Chart(about["title"] or document["label"], _gantt(events), wide=True)
        rows = table(Event, events, "Stages and copies of the pass")
        yield Block([chart, rows], source(document), note)


# right and wrong


def _labelled(documents: Sequence[Document]) -> tuple[list[dict[str, Any]], list[Document]]:
    """Return what counted right labels, and the documents that it is from."""
    rows, used = [], []
    for document in of_command(documents, "peers"):
        about = {"data": document["data"], "weights": document["weights"]}
        ours = [row | about for row in document["rows"] if row["maker"] == OURS]
        rows += ours
        used += [document] * bool(ours)
    for document in named_plans(documents):
        if document["correct"] is not None:
            keys = ("precision", "data", "weights", "correct")
            row = {"name": f"plan {document['plan_label']}", "judged": document["images"]}
            rows.append(row | {key: document[key] for key in keys})
            used.append(document)
    for row in rows:
        judged, right = row.get("judged"), row.get("correct")
        row["accuracy"] = right / judged if judged and right is not None else None
    return rows, used


def _read_as(documents: Sequence[Document]) -> Block | None:
    """Return the confusion matrix of the first file that counted one."""
    for document in named_plans(documents)[::-1]:
        counts = counts_of(document) if document["confusions"] is not None else None
        if counts is not None and counts.sum():
            title = f"Plan {document['plan_label']}, {of_what(document)}"
            return Block([Drawing(title, pictures.section(counts))], source(document))
    return None


@section("labels", "Digits, right and wrong")
def labels(documents: Sequence[Document], mistakes: Block | None = None) -> Iterator[Block]:
    """Return labels right by plan, and what was read as what.

    `mistakes` are those of a fresh run, with the digits; files hold counts at most.
    """
    rows, used = _labelled(documents)
    if rows:
        yield Block([table(Labelled, rows, "Right labels")], source(*used))
    matrix = mistakes or _read_as(documents)
    if matrix is not None:
        yield matrix


@section(
    "weights",
    "Any weights",
    "A plan whose scores are not within its precision's tolerance is refused, not run.",
)
def weights(documents: Sequence[Document]) -> Iterator[Block]:
    """Return every plan's error with weights of every size, a row a kind of weights."""
    note = "Beside float64, over the largest logit. An empty cell: refused, in a sentence."
    for document in of_command(documents, "weights"):
        plans = list(dict.fromkeys(plan for row in document["rows"] for plan in row["plans"]))
        rows = []
        for row in document["rows"]:
            made: dict[str, Any] = {"weights": row["weights"]}
            for number, plan in enumerate(plans):
                entry = row["plans"].get(plan)
                made[f"p{number}"] = entry["error"] if entry and entry["right"] else None
            rows.append(made)
        columns = [words("weights", "weights")]
        columns += [Column(plan, f"p{number}", short_error) for number, plan in enumerate(plans)]
        if rows:
            title = "Largest error of a logit with any weights, by plan"
            yield Block([Table(columns, rows, title)], source(document), note)


@section(
    "counters",
    "Hardware counters",
    "Counted by the GPU's hardware in a run of its own, read by Nsight Compute.",
)
def counters(documents: Sequence[Document]) -> Iterator[Block]:
    """Return what the GPU's own counters say of every kernel."""
    for document in of_command(documents, "counters"):
        rows = list(document["rows"])
        for plan in (document["plans"] or {}).values():
            rows += [row | {"plan": plan["name"]} for row in plan["rows"]]
        if rows:
            images = f"{document['images']:,} images" if document["images"] else ""
            found = Table(_COUNTERS, rows, "Kernels by their counters")
            yield Block([found], source(document, how=images))


@section(
    "instrument",
    "The instrument",
    "The comparison pointed at itself: one plan under two names, and one that was slowed.",
)
def instrument(documents: Sequence[Document]) -> Iterator[Block]:
    """Return how often the comparison was wrong about the same thing under two names."""
    for document in of_command(documents, "instrument"):
        counts = {
            name.replace("_", " "): short(value, 4)
            for name, value in document["counts"].items()
            if value is not None
        }
        yield Block([Facts(document["label"], counts)], source(document))
