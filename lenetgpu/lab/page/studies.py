"""Sections of a page about variants: rooflines, the course's ladder, comparisons, convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lenetgpu.lab import charts
from lenetgpu.lab.charts import MS, P05, P95, Spec, hints
from lenetgpu.lab.compare import Compared, CourseRow, StepRow, judged
from lenetgpu.lab.conv.document import Convolved, Layer, Summed, Whole, case_rows, layers, wholes
from lenetgpu.lab.page.blocks import (
    Block,
    Chart,
    Document,
    Part,
    of_command,
    samples,
    section,
    source,
)
from lenetgpu.lab.page.runs import latest_ceilings, named_plans, stage_of, table
from lenetgpu.lab.render import Table
from lenetgpu.lab.rows import (
    STATUS_WORDS,
    Column,
    Launch,
    Stage,
    fixed,
    percent,
    short_error,
    significant,
    words,
)
from lenetgpu.network import STAGE_NAMES

THEN, NOW = "the course, 2016", "here"
VERDICTS = ("reference", "faster", "same", "slower", "undecided")
FLOOR = 0.001
"""TFLOP/s that the roofline begins with."""
_COMPARED = [words("of", "what"), *Compared.columns()]
_CONVOLVED = [one for one in Convolved.columns() if one.key != "command"]
_RATES = [
    one
    for one in (*Stage.columns(), *Launch.columns())
    if one.key in ("tflops", "roofline", "occupancy", "registers")
]
_COURSE = [
    replace(one, key="report_ms", write=significant(4)) if one.key == "report" else one
    for one in CourseRow.columns()
]
_COURSE[-2:-2] = dict.fromkeys(_RATES)
_KERNELS = [
    words("shape", "label"),
    words("kernel", "kernel"),
    words("figure", "figure"),
    words("check", "check"),
    Column("median us", "median_us", fixed(2)),
    Column("slowed by the clocks", "slowed", fixed(2)),
    Column("the paper: compute", "paper", percent),
    Column("error", "relative_error", short_error),
    words("note", "remark"),
]


def _on_a_cpu(row: Document) -> bool:
    """Return whether a row of the course's suite ran on the CPU of a machine with a GPU."""
    return str(row["variant"]).startswith("serial")


def _points(documents: Sequence[Document]) -> Iterator[dict[str, Any] | None]:
    for document in named_plans(documents):
        where = f"plan {document['plan_label']}"
        for row in document["stages"]:
            name = f"{row['name']}: {row['variant']}"
            if row["stages"]:
                yield charts.point_of(row, stage=stage_of(row["stages"]), name=name, where=where)
    for document in of_command(documents, "compare"):
        what, where = document["what"], document["label"]
        if what.split("+")[0] in STAGE_NAMES:
            for entry in document["candidates"] or ():
                stage, name = stage_of(what.split("+")), f"{what}: {entry['name']}"
                yield charts.point_of(entry, stage=stage, name=name, where=where)
        for row in document["rows"] or ():
            stages = row["stage"].split("+")
            if stages[0] in STAGE_NAMES and not _on_a_cpu(row):
                name = f"{row['stage']}: {row['variant']}"
                yield charts.point_of(row, stage=stage_of(stages), name=name, where=where)


@section(
    "roofline",
    "Roofline",
    (
        "A point is a stage or variant: its rate over the operations that it does a byte it has to "
        "move. The slope is what a copy reaches, the level lines what multiply-adds and tensor "
        "cores reach, all measured; a point on a line leaves nothing to gain there."
    ),
)
def roofline(documents: Sequence[Document]) -> Iterator[Block]:
    """Return all stages of this network that were timed, under the ceilings measured last."""
    limits = latest_ceilings(documents)
    points = [point for point in _points(documents) if point is not None]
    if limits is None or not points:
        return
    used = named_plans(documents)
    used += [
        document
        for document in of_command(documents, "compare")
        if document["rows"] or document["what"].split("+")[0] in STAGE_NAMES
    ]
    note = (
        "Operations are those of the plain algorithm: Winograd and FFT do fewer, and can stand "
        "above a line; so can wgmma's products above mma.sync's rate, and data that a cache holds "
        "above the copy's slope."
    )
    if any(point["tflops"] < FLOOR for point in points):
        note += f" What is slower than {FLOOR} TFLOP/s stands on the lower edge."
    tint = charts.stage_colour([point["stage"] for point in points])
    title = "TFLOP/s (logarithmic, upwards) over operations a byte, by stage"
    chart = Chart(title, charts.roofline(points, limits, tint, FLOOR), wide=True)
    yield Block([chart], source(*used), note)


# the course's ladder


def _rungs(document: Document, stage: str) -> list[dict[str, Any]]:
    """Return the course's figures for `stage` in its order, each variant once, no CPU rows."""
    found: dict[str, dict[str, Any]] = {}
    for row in document["rows"]:
        timed = row["report_ms"] and row["median_ms"] and min(row["report_ms"], row["median_ms"])
        if row["stage"] == stage and timed and timed > 0 and not _on_a_cpu(row):
            found.setdefault(row["variant"], row)
    return list(found.values())


def _then_and_now(rows: list[dict[str, Any]]) -> Spec:
    """Return two points a rung on one line, the course's and today's."""
    ends = [
        charts.picked(row, "variant label table speedup", when=when, ms=row[key])
        for row in rows
        for when, key in ((THEN, "report_ms"), (NOW, "median_ms"))
    ]
    lines = [charts.picked(row, "variant report_ms median_ms") for row in rows]
    x = charts.quantity("ms", "ms, logarithmic", log=True)
    tips = hints(("label", "the course's words"), ("table", "its table"), ("variant", "variant"))
    tips += hints(("when", "when"), ("ms", "ms", ",.4~g"), ("speedup", "course over here", ",.4~g"))
    rule = {"type": "rule", "strokeWidth": 3, "opacity": 0.3}
    line = charts.layer(lines, rule, x=x | {"field": "report_ms"}, x2={"field": "median_ms"})
    tint = charts.colour("when", (THEN, NOW))
    point = charts.layer(None, charts.POINT, x=x, color=tint, tooltip=tips)
    encoding = {"y": charts.names("variant")}
    return charts.spec(ends, charts.bars_high(len(rows)), encoding=encoding, layer=[line, point])


def _gains(document: Document) -> Spec:
    """Return what each step of the course's ladders gained there and gains here."""
    rows = [
        {"step": f"{row['stage']}: {row['step']}", "when": when, "gain": row[key]}
        | charts.picked(row, "verdict")
        for row in document["ladder"]
        if row["report_gain"] and row["gain"] > 0
        for when, key in ((THEN, "report_gain"), (NOW, "gain"))
    ]
    tips = hints(("step", "step"), ("when", "when"), ("gain", "times faster", ",.3~g"))
    tips += hints(("verdict", "today"))
    x = charts.quantity("gain", "times faster than the step before, logarithmic", log=True)
    return charts.beside_one(rows, "step", x, charts.colour("when", (THEN, NOW)), tips)


@section(
    "ladder",
    "The ladder of 2016",
    (
        "In 2016 a course's report took this network from a serial loop to 270 ms on a GPU, step "
        "by step. Its variants run here again, each checked against float64 first."
    ),
)
def ladder(documents: Sequence[Document]) -> Iterator[Block]:
    """Return a chart a stage, the steps and what became of them, and every row."""
    for document in of_command(documents, "compare"):
        if not document["rows"]:
            continue
        line = source(document, how=samples(document["rows"]))
        drawn = []
        for stage in dict.fromkeys(row["stage"] for row in document["rows"]):
            if rungs := _rungs(document, stage):
                name = stage if stage != "all" else "all stages, plan course"
                drawn.append(Chart(name, _then_and_now(rungs)))
        if drawn:
            note = (
                f"{THEN[0].upper()}{THEN[1:]}: a GPU of that year, as its report prints it. Serial "
                "rows ran on a CPU: they are in the table below, and in no chart."
            )
            yield Block(drawn, line, note)
        if steps := document["ladder"]:
            parts: list[Part] = []
            if any(row["report_gain"] for row in steps):
                title = "What each step gained then and gains now"
                parts.append(Chart(title, _gains(document), wide=True))
            parts.append(table(StepRow, steps, "The steps of the ladder"))
            note = "Gains within 2 % of 1 are none: gone. Below that the idea has turned."
            yield Block(parts, line, note)
        rows = [r | {"check": STATUS_WORDS.get(r["status"], r["status"])} for r in document["rows"]]
        yield Block([Table(_COURSE, rows, "Every row of the course's suite")], line)


# comparisons


def _candidates(document: Document) -> Spec:
    rows = []
    for entry in document["candidates"]:
        if entry["median_ms"] and entry["median_ms"] > 0:
            known = entry["verdict"] in VERDICTS
            about = {"name": entry["name"], "verdict": entry["verdict"] if known else VERDICTS[-1]}
            about["ratio"] = (entry["ratio"] or {}).get("median")
            rows.append(about | charts.spread(entry))
    rows.sort(key=lambda row: -row["median_ms"])
    ratio = ("ratio", "over the baseline", ",.3~g")
    tips = hints(("name", "candidate"), MS, P05, P95, ratio, ("verdict", "verdict"))
    there = {row["verdict"] for row in rows}
    tint = charts.colour("verdict", VERDICTS)
    tint["legend"] = {"values": [verdict for verdict in VERDICTS if verdict in there]}
    return charts.dots(rows, "name", "ms, logarithmic", tint, tips)


def _power(documents: Sequence[Document]) -> Spec | None:
    """Return what each candidate draws while it runs, over its time; None where nobody looked."""
    rows = [
        {
            "what": document["what"],
            "name": entry["name"],
            "ms": entry["median_ms"],
            "power": entry["machine"]["power_w"],
            "mhz": entry["machine"]["sm_mhz"],
            "energy": entry["machine"]["energy_uj_per_image"],
            "stage": document["what"].split("+")[0],
        }
        for document in documents
        for entry in document["candidates"]
        if entry["machine"] and entry["machine"]["power_w"] and (entry["median_ms"] or 0) > 0
    ]
    if not rows:
        return None
    tint = charts.colour("what", list(dict.fromkeys(row["what"] for row in rows)))
    if all(row["stage"] in STAGE_NAMES for row in rows):
        tint = charts.stage_colour([row["stage"] for row in rows])
    tips = hints(("what", "of"), ("name", "candidate"), ("power", "W", ",.0f"))
    tips += hints(("mhz", "SM MHz", ",.0f"), ("energy", "uJ an image", ",.3~g"))
    tips += hints(("ms", "median ms", ",.4~g"))
    x = charts.quantity("ms", "median ms, logarithmic", log=True)
    y = charts.quantity("power", None, scale={"zero": False})
    encoding = {"x": x, "y": y, "color": tint, "tooltip": tips}
    return charts.spec(rows, 320, mark=charts.POINT, encoding=encoding)


def _order(document: Document) -> tuple[int, str]:
    first = document["what"].split("+")[0]
    return STAGE_NAMES.index(first) if first in STAGE_NAMES else -1, document["what"]


@section(
    "comparisons",
    "Comparisons",
    (
        "Every candidate was compared with float64 before it was timed, then timed in rounds in "
        "turn with the others. A ratio is over the baseline's time of the same round; the verdict "
        "says whether its whole interval agrees."
    ),
)
def comparisons(documents: Sequence[Document]) -> Iterator[Block]:
    """Return a chart a comparison, one table of all of them, and what they drew."""
    found = [d for d in of_command(documents, "compare") if d["candidates"]]
    found.sort(key=_order)
    if not found:
        return
    rows = [judged(entry) | {"what": d["what"]} for d in found for entry in d["candidates"]]
    line = source(*found, how=samples(rows))
    parts: list[Part] = [
        Chart(f"{document['what']}, over {document['reference']}", _candidates(document))
        for document in found
        if any(entry["median_ms"] for entry in document["candidates"])
    ]
    yield Block([*parts, Table(_COMPARED, rows, "All candidates")], line)
    power = _power(found)
    if power is not None:
        note = "Read while each candidate ran without a pause, after the rounds."
        chart = Chart("W of the whole device (upwards) over time of a run", power, wide=True)
        yield Block([chart], line, note)


# convolutions


@section(
    "suites",
    "Convolutions of any shape",
    (
        "Convolutions of shapes that papers measured, by every variant that takes them. A point is "
        "a family's fastest variant; right of the dashed line it is faster than the baseline."
    ),
)
def suites(documents: Sequence[Document]) -> Iterator[Block]:
    """Return suites: their speed-ups, their summaries, every candidate of every shape."""
    for document in of_command(documents, "conv"):
        label = document["label"]
        parts: list[Part] = []
        if charts.best_of_families(document):
            title = f"{document['title'] or document['suite'] or 'A shape'} ({label})"
            parts.append(Chart(title, charts.speedups(document), wide=True))
        if document["summary"]:
            parts.append(table(Summed, document["summary"], f"Speed-ups over all shapes: {label}"))
        if network := document["network"]:
            title = f"All convolutions, each as often as it is there: {label}"
            parts.append(Table(Whole, wholes(network), title))
            parts.append(Table(Layer, layers(network), f"Each distinct convolution: {label}"))
        rows = [row for case in document["cases"] for row in case_rows(case)]
        parts.append(Table(_CONVOLVED, rows, f"Every shape: {label}"))
        note = f"The paper's claim: {document['claim']}. " if document["claim"] else ""
        if document["peer"]:
            note += f"Baseline {document['reference']}: {document['peer']}."
        note += f" Source: {document['source']}." if document["source"] else ""
        yield Block(parts, source(document), note)


@section(
    "shares",
    "Where a convolution's time goes",
    "Kernels with clocks inside say which part of them takes how much of their warps' time.",
)
def shares(documents: Sequence[Document]) -> Iterator[Block]:
    """Return where the time of the convnet2 paper's kernels goes, a chart a shape."""
    for document in of_command(documents, "shares"):
        parts: list[Part] = []
        rows = []
        for case in document["cases"]:
            if any(row["shares"] for row in case["kernels"]):
                parts.append(Chart(case["label"], charts.parted(case)))
            for row in case["kernels"]:
                check = STATUS_WORDS.get(row["status"], row["status"])
                rows.append(row | {"label": case["label"], "check": check})
        if rows:
            parts.append(Table(_KERNELS, rows, "Kernels with clocks inside"))
            yield Block(parts, source(document))
