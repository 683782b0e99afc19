"""Sections of the report: network runs, peers, comparisons, convolutions, labels."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lenetgpu.check.mistakes import counts_of
from lenetgpu.ini import ini
from lenetgpu.lab import charts
from lenetgpu.lab.charts import Spec, picked, quantity, tips
from lenetgpu.lab.compare import COMPARED, STEPS, judged
from lenetgpu.lab.conv.document import CONVOLVED, LAYERS, SUMMED, WHOLES, case_rows, layers, wholes
from lenetgpu.lab.counters import COUNTED
from lenetgpu.lab.page import blocks, mistakes
from lenetgpu.lab.page.base import fragment
from lenetgpu.lab.page.blocks import Block, Chart, Document, Drawing, Part, Section, Tile
from lenetgpu.lab.tables import STAGE, Table, columns, from_file, status_word
from lenetgpu.network import STAGE_NAMES, STAGES

OURS = "lenetgpu"
_TEXTS = Path(__file__).with_name("sections.ini")
THEN, NOW = "the course, 2016", "here"
VERDICTS = ("baseline", "faster", "same", "slower", "undecided")
FLOOR = 0.001  # TFLOP/s at the lower end of the roofline
_MOST_EVENTS = 4_000
_SOFTWARE, _FILES, _PLANS = map(from_file, ("page software", "page files", "page plans"))
_CANDIDATES, _KERNELS = from_file("page peers"), from_file("page kernels")
_SCHEDULES, _EVENTS = from_file("page schedules"), from_file("page events")
_LABELS, _COURSE = from_file("page labels"), from_file("page course")
_COUNTERS = columns(
    "plan",
    *(one for one in COUNTED if one.key not in ("kernel", "launches", "stalls")),
    "stalled most by=top_stall",
    ("of all stalls=top_stall_share", ".1%"),
)
_TITLES, _KINDS = (ini(_TEXTS)[name] for name in ("commands of peers", "kinds of stages"))

_COMPARED = (None, "device", "pageable")  # places of images in the headline and chart of peers

Make = Callable[[Sequence[Document]], Iterable[Block]]
# The makers of a chapter's sections, in order
SECTIONS: list[Callable[[Sequence[Document]], Section]] = []


def text_of(anchor: str, name: str) -> str:
    """Return a text of sections.ini on one line, "" if there is none."""
    return " ".join(ini(_TEXTS)[anchor].get(name, "").split())


def section(anchor: str) -> Callable[[Make], Make]:
    """Register a generator of blocks as a section in SECTIONS; empty charts are dropped."""

    def register(make: Make) -> Make:
        def build(documents: Sequence[Document]) -> Section:
            section = Section(anchor, text_of(anchor, "title"), text_of(anchor, "lead"))
            for block in make(documents):
                parts = [p for p in block.parts if not (isinstance(p, Chart) and p.empty)]
                section.blocks += [replace(block, parts=parts)] if parts else []
            return section

        SECTIONS.append(build)
        return make

    return register


def _named_plans(documents: Sequence[Document]) -> list[Document]:
    """Return the runs of plans, slowest first; `plan_label` is the plan name or the file name."""
    runs = blocks.of_command(documents, "infer", "profile")
    named = [run | {"plan_label": run["plan_name"] or run["stem"]} for run in runs]
    return sorted(named, key=lambda run: -float(run["timing_ms"]["compute"]["median"]))


def _stage_of(stages: Sequence[str]) -> str:
    """Return the stage that colours a row: the first of its span, or "other"."""
    return next((stage for stage in stages if stage in STAGE_NAMES), "other")


def _rate(rate: float) -> str:
    return f"{rate / 1e6:,.1f} M/s" if rate >= 1e6 else f"{rate:,.0f}/s"


def _right(correct: float, judged: float) -> tuple[str, str]:
    shown = f"{correct / judged:.2%}" if judged else f"{correct:,}"
    return shown, f"{correct:,.0f} of {judged:,.0f} labels correct"


def _peer_figures(document: Document) -> Iterator[tuple[str, str]]:
    rows = [row for row in document["rows"] if row["where"] in _COMPARED and charts.timed(row)]
    ours = [row for row in rows if row["maker"] == OURS]
    if not ours:
        return
    best = min(ours, key=lambda row: float(row["median_ms"]))
    name, ms, images = best["name"], best["median_ms"], best["images"] or document["images"] or 0
    if document["command"] == "one":
        yield f"{1e3 * ms:,.1f} us", f"one image, host to label: {name}"
        return
    yield f"{blocks.short(ms)} ms", f"{name}: {images:,} {_TITLES[document['command']]}"
    if document["command"] == "end-to-end":
        return
    yield _rate(images * 1e3 / ms), f"{name}: images per second in that pass"
    if best["times_faster"]:
        faster = f"as fast as the best peer of its precision, {best['peer']}"
        yield f"{best['times_faster']:.1f}x", faster
    if best["correct"] is not None:
        share, words = _right(best["correct"], best["judged"] or images)
        yield share, f"{words}: {name}, {blocks.of_what(document)}"


def _run_figures(run: Document) -> Iterator[tuple[str, str]]:
    images, times, plan = run["images"] or 0, run["timing_ms"], f"plan {run['plan_label']}"
    yield f"{blocks.short(times['compute']['median'])} ms", f"{plan}: {images:,} {_TITLES['peers']}"
    if times["end_to_end"] != times["compute"]:
        host = blocks.short(times["end_to_end"]["median"])
        yield f"{host} ms", f"{plan}: the same from host memory to host memory"
    if run["images_per_second"]:
        yield _rate(run["images_per_second"]), "images, host to host"
    if run["correct"] is not None:
        share, words = _right(run["correct"], images)
        yield share, f"{words}, {blocks.of_what(run)}"


@section("first")
def _headline(documents: Sequence[Document]) -> Iterator[Block]:
    peers = blocks.of_command(documents, "peers")
    figures = [(d, figure) for d in peers for figure in _peer_figures(d)]
    if not figures:
        figures = [(d, figure) for d in _named_plans(documents)[-1:] for figure in _run_figures(d)]
    for command in ("end-to-end", "one"):
        for document in blocks.of_command(documents, command):
            figures += [(document, figure) for figure in _peer_figures(document)]
    for document in blocks.of_command(documents, "compare"):
        whole = [row for row in document["rows"] or () if row["stage"] == "all"]
        for row in [row for row in whole if row["report_ms"] and row["speedup"]][:1]:
            words = f"the course's {row['report_ms']:,.0f} ms of 2016 over {row['variant']} here"
            figures.append((document, (f"{row['speedup']:,.0f}x", words)))
    if figures:
        yield Block([[Tile(*figure, blocks.where(document)) for document, figure in figures]])


def _latest_ceilings(documents: Sequence[Document]) -> Document | None:
    measured = [document["ceilings"] for document in documents if document.get("ceilings")]
    return max(measured, key=lambda limits: limits["date"] or "", default=None)


@section("machine")
def _machine(documents: Sequence[Document]) -> Iterator[Block]:
    facts = {"device": blocks.device_name(documents[0])}
    if capability := documents[0]["device"].get("compute_capability"):
        facts["compute capability"] = capability
    for one in _SOFTWARE:
        if versions := blocks.either(one.cell(d) for d in documents if one.value(d)):
            facts[one.title] = versions
    if (limits := _latest_ceilings(documents)) is not None:
        facts["copy, at most"] = f"{limits['copy_gbs']:,.0f} GB/s"
        facts["fp32 multiply-adds, at most"] = f"{blocks.short(limits['fma_tflops'])} TFLOP/s"
        if limits["tensor_tflops"]:
            facts["tensor cores (mma.sync), at most"] = f"{limits['tensor_tflops']:,.0f} TFLOP/s"
        facts["ceilings measured"] = limits["date"] or "undated"
    yield Block([facts])
    if not documents[0].get("fresh"):
        files = [d | {"commit": blocks.short_commit(d.get("commit"))} for d in documents]
        yield Block([Table(_FILES, files, "Files that the figures below are read from")])


def _cells(document: Document) -> list[dict[str, Any]]:
    """Return the variants that ran in the seven stages: columns spanned (`wide`), time if known."""
    timed = {tuple(row["stages"]): row for row in document["stages"]}
    cells = []
    for entry in document["plan"]:
        row = timed.get(tuple(entry["stages"]), {})
        cell: dict[str, Any] = {"wide": sum(stage in STAGE_NAMES for stage in entry["stages"])}
        cell |= {"stage": _stage_of(entry["stages"]), "ms": row.get("median_ms")}
        cell |= {"pieces": re.findall(r"[^._]*[._]?", entry["variant"]), "share": row.get("share")}
        cells += [cell] if cell["wide"] else []
    return cells if sum(cell["wide"] for cell in cells) == len(STAGE_NAMES) else []


@section("pipeline")
def _pipeline(documents: Sequence[Document]) -> Iterator[Block]:
    plans = [
        {
            "name": document["plan_label"],
            "cells": cells,
            "extra": [row for row in document["stages"] if not row["stages"]],
            "ms": document["timing_ms"]["compute"]["median"],
        }
        for document in _named_plans(documents)
        if (cells := _cells(document))
    ]
    if plans:
        markup = fragment("pipeline.html.j2", stages=STAGES, kinds=_KINDS, plans=plans)
        yield Block([Drawing("", markup)], blocks.source(*_named_plans(documents)))


def _where_time_goes(plans: Sequence[Document]) -> Spec:
    keys = "plan name variant median_ms share"
    rows = [
        picked(row, keys, plan=document["plan_label"], stage=_stage_of(row["stages"]), order=index)
        for document in plans
        for index, row in enumerate(document["stages"])
        if row["share"] is not None
    ]
    axis = charts.shares("share of the profiled pass")
    return charts.stacked(rows, "plan", axis, charts.stage_colour(rows), keys)


def _times(plans: Sequence[Document]) -> Spec:
    ways = {"compute": "on the device", "end_to_end": "host to host"}
    rows = [
        {f"{name}_ms": times[name] for name in ("median", "p05", "p95")}
        | {"plan": document["plan_label"], "way": way}
        for document in plans
        for key, way in ways.items()
        if (times := document["timing_ms"][key])["median"] > 0
    ]
    tint = charts.colour("way", ways.values())
    return charts.dots(rows, "plan", tint, "way", "ms of a pass, logarithmic")


@section("plans")
def _plans(documents: Sequence[Document]) -> Iterator[Block]:
    plans = _named_plans(documents)
    if not plans:
        return
    parts: list[Part] = [Chart("Time of a pass, by plan", _times(plans))]
    bars = _where_time_goes(plans)
    if any(row["share"] for row in bars["data"]["values"]):
        parts.append(Chart("Where the time of a pass goes, by stage", bars))
    rows = [d | {"samples": len(d["timing_ms"]["compute"]["samples"] or ())} for d in plans]
    parts.append(Table(_PLANS, rows, "Plans"))
    stages = [row | {"plan_label": d["plan_label"]} for d in plans for row in d["stages"]]
    if stages:
        shown = columns("plan=plan_label", *STAGE)
        parts.append(Table(shown, stages, "Stages of every plan, timed one by one"))
    yield Block(parts, blocks.source(*plans), text_of("plans", "note"))


def _ranking(rows: Sequence[Document], title: str, table_title: str) -> list[Part]:
    """Return a chart of the fastest of each maker and precision, and a table of all candidates."""
    compared = [row for row in rows if row["where"] in _COMPARED and charts.timed(row)]
    slowest_first = sorted(compared, key=lambda row: -float(row["median_ms"]))
    best = {(row["maker"], row["precision"]): row for row in slowest_first}
    shown = sorted(best.values(), key=lambda row: float(row["median_ms"]))
    makers = sorted({row["maker"] for row in shown}, key=lambda maker: (maker != OURS, maker))
    drawn = charts.dots(shown, "name", charts.colour("maker", makers), "precision")
    return [Chart(title, drawn, wide=True), Table(_CANDIDATES, rows, table_title)]


def _scaling(rows: Sequence[Document]) -> Chart:
    rows = [row for row in rows if row["images"] > 0 and row["ns_per_image"] > 0]
    encoding = {
        "x": quantity("images", "images per pass, logarithmic", log=True),
        "y": quantity("ns_per_image", None, log=True),
        "color": charts.colour("plan", [row["plan"] for row in rows]),
        "tooltip": tips("plan images ns_per_image"),
    }
    mark = charts.MARKS["line"]
    title = "Nanoseconds per image (logarithmic) over images per pass"
    return Chart(title, charts.spec(rows, 280, mark=mark, encoding=encoding), wide=True)


@section("peers")
def _peers(documents: Sequence[Document]) -> Iterator[Block]:
    for document in (d for command in _TITLES for d in blocks.of_command(documents, command)):
        rows, title = document["rows"], _TITLES[document["command"]]
        if not rows:
            continue
        images = f", {document['images']:,} images" if (document["images"] or 1) > 1 else ""
        chart_title = f"{title[0].upper()}{title[1:]}{images}"
        parts = _ranking(rows, chart_title, f"All candidates: {title}")
        parts += [_scaling(document["scaling"])] if document["scaling"] else []
        if phases := document["phases_ms"]:
            spent = phases.items()
            bars = [{"phase": name, "ms": ms, "order": 0, "of": "ours"} for name, ms in spent]
            axis, tint = quantity("ms", "ms of our own process"), charts.colour("of", ["ours"])
            drawn = charts.stacked(bars, "phase", axis, tint, "phase ms")
            parts.append(Chart("Cold start of lenetgpu, by phase", drawn, wide=True))
        absent = ", ".join(entry["name"] for entry in document["not_measured"] or ())
        note = f"Not measured: {absent}." if absent else ""
        yield Block(parts, blocks.source(document, how=blocks.samples(rows)), note)
        many = document["many"]
        if many and many["rows"]:
            images = f", {many['images']:,} images"
            parts = _ranking(many["rows"], f"The same{images}", f"All candidates{images}")
            yield Block(parts, blocks.source(document, how=blocks.samples(many["rows"])))


def _on_a_cpu(row: Document) -> bool:
    return str(row["variant"]).startswith("serial")


def _points(documents: Sequence[Document]) -> list[dict[str, Any]]:
    rows: list[tuple[Document, str, str, str]] = []  # row, stages, variant, origin
    for document in _named_plans(documents):
        origin = f"plan {document['plan_label']}"
        rows += [(r, "+".join(r["stages"]), r["variant"], origin) for r in document["stages"]]
    for document in blocks.of_command(documents, "compare"):
        stages, origin = document["what"], document["label"]
        rows += [(row, stages, row["name"], origin) for row in document["candidates"] or ()]
        suite = [row for row in document["rows"] or () if not _on_a_cpu(row)]
        rows += [(row, row["stage"], row["variant"], origin) for row in suite]
    points = []
    for row, stages, variant, origin in rows:
        if (stage := _stage_of(stages.split("+"))) != "other":
            name = f"{stages}: {variant}"
            points += charts.point_of(row, stage=stage, name=name, where=origin)
    return points


@section("roofline")
def _roofline(documents: Sequence[Document]) -> Iterator[Block]:
    limits, points = _latest_ceilings(documents), _points(documents)
    if limits is None or not points:
        return
    used = _named_plans(documents)
    for document in blocks.of_command(documents, "compare"):
        used += [document] if document["rows"] or _order(document)[0] >= 0 else []
    note = text_of("roofline", "note")
    if any(point["tflops"] < FLOOR for point in points):
        note += f" Points below {FLOOR} TFLOP/s are drawn on the lower edge."
    title = "TFLOP/s (logarithmic) over operations per byte, by stage"
    drawn = charts.roofline(points, limits, charts.stage_colour(points), FLOOR)
    yield Block([Chart(title, drawn, wide=True)], blocks.source(*used), note)


def _rungs(document: Document, stage: str) -> list[dict[str, Any]]:
    """Return the course's figures for `stage` in its order, one per variant, without CPU rows."""
    rungs: dict[str, dict[str, Any]] = {}
    for row in document["rows"]:
        timed = charts.timed(row) and charts.timed(row, "report_ms")
        if row["stage"] == stage and timed and not _on_a_cpu(row):
            rungs.setdefault(row["variant"], row)
    return list(rungs.values())


def _then_and_now(rows: list[dict[str, Any]]) -> Spec:
    """Return two points per variant on one line: the course's time and the time measured here."""
    keys = "label table variant when ms speedup"
    times = ((THEN, "report_ms"), (NOW, "median_ms"))
    ends = [picked(r, keys, when=when, ms=r[key]) for r in rows for when, key in times]
    lines = [picked(row, "variant report_ms median_ms") for row in rows]
    x = quantity("ms", "ms, logarithmic", log=True)
    line = charts.layer(lines, "change", x=x | {"field": "report_ms"}, x2={"field": "median_ms"})
    tint = charts.colour("when", (THEN, NOW))
    point = charts.layer(None, "point", x=x, color=tint, tooltip=tips(keys))
    high = charts.bars_high(row["variant"] for row in rows)
    return charts.spec(ends, high, encoding={"y": charts.names("variant")}, layer=[line, point])


def _gains(steps: Sequence[Document]) -> Spec:
    keys = "step when gain verdict"
    rows = []
    for row in steps:
        if row["report_gain"] and row["gain"] > 0:
            step = picked(row, keys, step=f"{row['stage']}: {row['step']}")
            rows.append(step | {"when": THEN, "gain": row["report_gain"]})
            rows.append(step | {"when": NOW})
    x = quantity("gain", "times faster than the step before, logarithmic", log=True)
    return charts.around_one(rows, "step", x, charts.colour("when", (THEN, NOW)), keys)


@section("ladder")
def _ladder(documents: Sequence[Document]) -> Iterator[Block]:
    for document in blocks.of_command(documents, "compare"):
        if not document["rows"]:
            continue
        line = blocks.source(document, how=blocks.samples(document["rows"]))
        drawn = [
            Chart("all stages, plan course" if stage == "all" else stage, _then_and_now(rungs))
            for stage in dict.fromkeys(row["stage"] for row in document["rows"])
            if (rungs := _rungs(document, stage))
        ]
        yield Block(drawn, line, text_of("ladder", "note"))
        if steps := document["ladder"]:
            gains = Chart("Gain of each step, then and now", _gains(steps), wide=True)
            parts: list[Part] = [Table(STEPS, steps, "The steps of the ladder"), gains]
            yield Block(parts, line, text_of("ladder", "gains"))
        rows = [row | {"check": status_word(row)} for row in document["rows"]]
        yield Block([Table(_COURSE, rows, "Every row of the course's suite")], line)


def _candidates(document: Document) -> Spec:
    timed = sorted(filter(charts.timed, document["candidates"]), key=lambda e: -e["median_ms"])
    rows = []
    for entry in timed:
        verdict = entry["verdict"] if entry["verdict"] in VERDICTS else VERDICTS[-1]
        rows.append(entry | {"verdict": verdict, "ratio": (entry["ratio"] or {}).get("median")})
    verdicts = {row["verdict"] for row in rows}
    tint = charts.colour("verdict", VERDICTS)
    tint["legend"] = {"values": [verdict for verdict in VERDICTS if verdict in verdicts]}
    return charts.dots(rows, "name", tint, "ratio verdict")


def _power(documents: Sequence[Document]) -> Spec:
    watched = "power_w sm_mhz energy_uj_per_image"
    rows = [
        picked(entry["machine"], watched)
        | {"what": document["what"], "name": entry["name"], "ms": entry["median_ms"]}
        for document in documents
        for entry in document["candidates"]
        if entry["machine"] and entry["machine"]["power_w"] and charts.timed(entry)
    ]
    names = [*dict.fromkeys(row["what"] for row in rows)]
    encoding = {
        "x": quantity("ms", "median ms, logarithmic", log=True),
        "y": quantity("power_w", None, scale={"zero": False}),
        "color": charts.colour("what", [*STAGE_NAMES, *names]) | {"legend": {"values": names}},
        "tooltip": tips(f"what name {watched} ms"),
    }
    return charts.spec(rows, 320, mark=charts.MARKS["point"], encoding=encoding)


def _order(document: Document) -> tuple[int, str]:
    first = document["what"].split("+")[0]
    return STAGE_NAMES.index(first) if first in STAGE_NAMES else -1, document["what"]


@section("comparisons")
def _comparisons(documents: Sequence[Document]) -> Iterator[Block]:
    compared = [d for d in blocks.of_command(documents, "compare") if d["candidates"]]
    compared.sort(key=_order)
    if not compared:
        return
    rows = [judged(entry) | {"what": d["what"]} for d in compared for entry in d["candidates"]]
    line = blocks.source(*compared, how=blocks.samples(rows))
    parts = [Chart(f"{d['what']}, over {d['baseline']}", _candidates(d)) for d in compared]
    yield Block([*parts, Table(columns("of=what", *COMPARED), rows, "All candidates")], line)
    chart = Chart("Power of the whole device (W) over time of a run", _power(compared), wide=True)
    yield Block([chart], line, text_of("comparisons", "power"))


@section("suites")
def _suites(documents: Sequence[Document]) -> Iterator[Block]:
    for document in blocks.of_command(documents, "conv"):
        label = document["label"]
        parts: list[Part] = []
        if charts.best_of_families(document):
            title = f"{document['title'] or document['suite'] or 'A shape'} ({label})"
            parts.append(Chart(title, charts.speedups(document), wide=True))
        if document["summary"]:
            parts.append(Table(SUMMED, document["summary"], f"Speed-ups over all shapes: {label}"))
        if network := document["network"]:
            title = f"All convolutions, repeats included: {label}"
            parts.append(Table(WHOLES, wholes(network), title))
            parts.append(Table(LAYERS, layers(network), f"Each distinct convolution: {label}"))
        rows = [row for case in document["cases"] for row in case_rows(case)]
        every = [one for one in CONVOLVED if one.key != "command"]
        parts.append(Table(every, rows, f"Every shape: {label}"))
        note = f"The paper's claim: {document['claim']}. " if document["claim"] else ""
        if document["peer"]:
            note += f"Baseline {document['baseline']}: {document['peer']}."
        note += f" Source: {document['source']}." if document["source"] else ""
        yield Block(parts, blocks.source(document), note)


@section("shares")
def _shares(documents: Sequence[Document]) -> Iterator[Block]:
    for document in blocks.of_command(documents, "shares"):
        drawn, rows = [], []
        for case in document["cases"]:
            drawn.append(Chart(case["label"], charts.parted(case)))
            labels = {"label": case["label"]}
            rows += [row | labels | {"check": status_word(row)} for row in case["kernels"]]
        if rows:
            table = Table(_KERNELS, rows, "Kernels with clocks inside")
            yield Block([*drawn, table], blocks.source(document))


def _sweep(rows: Sequence[Document]) -> Spec:
    """Return ms over images per chunk, a line per number of streams, with rules for bare copies."""
    timed = [row for row in rows if charts.timed(row)]
    keys = f"streams chunk {charts.TIMES} predicted_ms"
    ways = [
        picked(row, keys, streams=f"{row['streams']:g}")
        for row in timed
        if row["way"] == "schedule" and row["taper"] in (None, 1)
        if row["streams"] and (row["chunk"] or 0) > 0
    ]
    bare = {"bare copy": [8, 4], "kernels": [2, 3], "zero-copy": [10, 3, 2, 3]}
    across = [picked(row, "way median_ms") for row in timed if row["way"] in bare]
    chosen = "way streams chunk median_ms"
    stars = [picked(row, chosen) for row in timed if row["way"] == "auto" and row["chunk"]]
    x = quantity("chunk", "images a chunk, logarithmic", log=True)
    y = quantity("median_ms", None, scale={"zero": True})
    streams = sorted((row["streams"] for row in ways), key=float)
    tint, dash = charts.colour("streams", streams, "streams"), charts.colour("way", bare)
    dash["scale"]["range"] = list(bare.values())
    dash["legend"] = {"symbolType": "stroke", "symbolStrokeWidth": 2}
    drawn = [
        charts.layer(ways, "fine line", x=x, y=y, color=tint, tooltip=tips(keys)),
        charts.layer(across, "level", y=y, strokeDash=dash, tooltip=tips("way median_ms")),
        charts.layer(stars, "star", x=x, y=y, tooltip=tips(chosen)),
    ]
    return charts.spec([], 240, layer=drawn)


@section("streams")
def _sweeps(documents: Sequence[Document]) -> Iterator[Block]:
    for document in blocks.of_command(documents, "streams"):
        drawn, rows = [], []
        for sweep in document["sweeps"]:
            title = f"{sweep['plan']}, {sweep['dtype']}, {sweep['images']:,} images: ms"
            drawn.append(Chart(title, _sweep(sweep["rows"])))
            rows += [row | picked(sweep, "plan dtype images") for row in sweep["rows"]]
        if rows:
            rounds = f"{document['rounds']:g} rounds" if document["rounds"] else ""
            table = Table(_SCHEDULES, rows, "Every schedule")
            line = blocks.source(document, how=rounds)
            yield Block([*drawn, table], line, text_of("streams", "note"))


def _events(document: Document) -> list[dict[str, Any]]:
    every = document["traceEvents"]
    named = [event for event in every if event["name"] == "thread_name" and event["args"]]
    streams = {event["tid"]: event["args"]["name"] for event in named}
    events = []
    for event in every:
        start, length = event["ts"], event["dur"]
        if event["ph"] == "X" and start is not None and length is not None:
            stream = streams.get(event["tid"]) or f"stream {event['tid']}"
            about = {"stream": stream, "name": event["name"], "kind": event["cat"] or "stage"}
            times = {"start": start / 1e3, "length": length / 1e3, "end": (start + length) / 1e3}
            events.append(about | times)
    return events[:_MOST_EVENTS]


def _gantt(events: list[dict[str, Any]]) -> Spec:
    streams = sorted({event["stream"] for event in events}, key=lambda name: (len(name), name))
    encoding = {
        "y": charts.names("stream", streams),
        "x": quantity("start", "ms from the first event", scale={"zero": True}),
        "x2": {"field": "end"},
        "color": charts.colour("name", [event["name"] for event in events]),
        "tooltip": tips("stream name start length"),
    }
    high = 34 * max(2, len(streams))
    return charts.spec(events, high, mark=charts.MARKS["event"], encoding=encoding)


@section("trace")
def _traces(documents: Sequence[Document]) -> Iterator[Block]:
    for document in blocks.of_command(documents, "trace"):
        events, about = _events(document), document["otherData"]
        if not events:
            continue
        note = ""
        if copies := about["copies_ms"]:
            hidden = about["copies_under_kernels_ms"] or 0.0
            note = f"{copies:.3f} ms of copies, {hidden:.3f} ms of them overlap with stages."
        chart = Chart(about["title"] or document["label"], _gantt(events), wide=True)
        rows = Table(_EVENTS, events, "Stages and copies of the pass")
        yield Block([chart, rows], blocks.source(document), note)


def _judged(documents: Sequence[Document]) -> tuple[list[dict[str, Any]], list[Document]]:
    """Return the rows with correct-label counts, and the documents that they are from."""
    rows, used = [], []
    for document in blocks.of_command(documents, "peers"):
        ours = [row for row in document["rows"] if row["maker"] == OURS]
        rows += [row | picked(document, "data weights") for row in ours]
        used += [document] if ours else []
    for document in _named_plans(documents):
        if document["correct"] is not None:
            row = picked(document, "precision data weights correct", judged=document["images"])
            rows.append(row | {"name": f"plan {document['plan_label']}"})
            used.append(document)
    for row in rows:
        judged, right = row.get("judged"), row.get("correct")
        row["accuracy"] = right / judged if judged and right is not None else None
    return rows, used


def _read_as(documents: Sequence[Document]) -> Block | None:
    """Return the misread digits of a fresh run, or the first confusion matrix of the files."""
    for document in documents:
        if document.get("mistakes") is not None:
            return Block([Drawing("", document["mistakes"])], blocks.source(document))
    for document in _named_plans(documents)[::-1]:
        counts = counts_of(document) if document["confusions"] is not None else None
        if counts is not None and counts.sum():
            title = f"Plan {document['plan_label']}, {blocks.of_what(document)}"
            return Block([Drawing(title, mistakes.section(counts))], blocks.source(document))
    return None


@section("labels")
def _labels(documents: Sequence[Document]) -> Iterator[Block]:
    rows, used = _judged(documents)
    if rows:
        yield Block([Table(_LABELS, rows, "Right labels")], blocks.source(*used))
    if (matrix := _read_as(documents)) is not None:
        yield matrix


@section("counters")
def _counters(documents: Sequence[Document]) -> Iterator[Block]:
    for document in blocks.of_command(documents, "counters"):
        rows = list(document["rows"])
        for plan in (document["plans"] or {}).values():
            rows += [row | {"plan": plan["name"]} for row in plan["rows"]]
        images = f"{document['images']:,} images" if document["images"] else ""
        table = Table(_COUNTERS, rows, "Kernels by their counters")
        yield Block([table] if rows else [], blocks.source(document, how=images))
