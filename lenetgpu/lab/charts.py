"""Charts as Vega-Lite specifications: for the page, and as the pictures that --plot writes.

Colours, fonts and sizes of the page are its own (report.js reads them from its style sheet). Field
names are ours; what files hold is data only, never part of an expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError, require_extra
from lenetgpu.network import STAGE_NAMES

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]
ENDINGS = (".png", ".svg")
STAGE_ORDER = [*STAGE_NAMES, "other"]
MS = ("median_ms", "median ms", ",.4~g")
P05, P95 = ("p05_ms", "5th percentile", ",.4~g"), ("p95_ms", "95th percentile", ",.4~g")
_ROW, _WIDTH = 24, 480
_MOST_FAMILIES = 8
_COLOURS = "#2563eb #0d9488 #7c3aed #c2410c #ca8a04 #db2777 #475569 #9ca3af"
POINT = {"type": "point", "filled": True, "size": 90, "opacity": 1}
_BAR = {"type": "bar", "height": {"band": 0.72}}


def spec(rows: Rows, height: int, **more: Any) -> Spec:
    """Return a chart as wide as its place and `height` pixels high, of `rows` drawn by `more`."""
    return {"data": {"values": list(rows)}, "width": "container", "height": height, **more}


def layer(rows: Rows | None, mark: Any, **encoding: Any) -> Spec:
    """Return a layer of `rows`, of the chart's own where there are none."""
    drawn = {"mark": {"type": mark} if isinstance(mark, str) else mark, "encoding": encoding}
    return drawn if rows is None else {"data": {"values": list(rows)}, **drawn}


def picked(row: Mapping[str, Any], keys: str, **more: Any) -> dict[str, Any]:
    """Return what a row has under `keys`, words of a text, and `more`."""
    return {**{key: row.get(key) for key in keys.split()}, **more}


def bars_high(count: int) -> int:
    """Return the height of `count` bars or rows of points."""
    return max(2, count) * _ROW


def quantity(field: str, title: str | None, log: bool = False, **more: Any) -> Spec:
    """Return a numeric axis; a logarithmic one does not begin at 0."""
    found: Spec = {"field": field, "type": "quantitative", "title": title, **more}
    if log:
        axis = {"tickCount": 5, "labelOverlap": "greedy"} | found.pop("axis", {})
        found |= {"scale": {"type": "log", "nice": False, "padding": 12}, "axis": axis}
    return found


def names(field: str, order: Sequence[str] | None = None) -> Spec:
    """Return an axis of names in the order that they are given, None: that of the rows."""
    sort = None if order is None else [*map(str, order)]
    return {"field": field, "type": "nominal", "title": None, "sort": sort}


def colour(field: str, order: Sequence[str], title: str | None = None) -> Spec:
    """Return a colour a name, the same in every chart that lists it in the same place."""
    scale: Spec = {"domain": [*map(str, order)]}
    legend: Spec | None = None if len(order) < 2 else {}
    return {"field": field, "type": "nominal", "title": title, "scale": scale, "legend": legend}


def stage_colour(stages: Sequence[str]) -> Spec:
    """Return a colour a stage; only those that occur are in the legend."""
    found = [stage for stage in STAGE_ORDER if stage in stages]
    return colour("stage", STAGE_ORDER) | {"legend": {"values": found, "title": None}}


def hints(*fields: tuple[str, str] | tuple[str, str, str]) -> list[Spec]:
    """Return what hovering shows: (field, title) of words, (field, title, format) of numbers."""
    made = []
    for field, title, *how in fields:
        kind = {"type": "quantitative", "format": how[0]} if how else {"type": "nominal"}
        made.append({"field": field, "title": title, **kind})
    return made


def spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's times with their percentiles, the median where it has none above 0."""
    ends = {key: row.get(key) or 0.0 for key in ("p05_ms", "p95_ms")}
    median = row["median_ms"]
    return {"median_ms": median} | {k: end if end > 0 else median for k, end in ends.items()}


def dots(rows: Rows, field: str, title: str, tint: Spec, tips: list[Spec]) -> Spec:
    """Return a point a row over ms, with the line from its 5th to its 95th percentile behind it."""
    x = quantity("median_ms", title, log=True)
    line = {"type": "rule", "strokeWidth": 3, "opacity": 0.45, "strokeCap": "round"}
    span = layer(None, line, x=x | {"field": "p05_ms"}, x2={"field": "p95_ms"})
    point = layer(None, POINT, x=x, tooltip=tips)
    encoding = {"y": names(field), "color": tint}
    high = bars_high(len({row[field] for row in rows}))
    return spec(rows, high, encoding=encoding, layer=[span, point])


def beside_one(rows: Rows, field: str, x: Spec, tint: Spec, tips: list[Spec]) -> Spec:
    """Return a point a row over a ratio, and a dashed line where that is 1."""
    at = {"field": "at", "type": "quantitative"}
    one = layer([{"at": 1}], {"type": "rule", "strokeDash": [4, 4]}, x=at)
    order = list(dict.fromkeys(row[field] for row in rows))
    point = layer(None, POINT, y=names(field, order), x=x, color=tint, tooltip=tips)
    return spec(rows, bars_high(len(order)), layer=[one, point])


def stacked(rows: Rows, field: str, x: Spec, tint: Spec, tips: list[Spec]) -> Spec:
    """Return a bar a name, of the parts of its rows in their `order`."""
    order = list(dict.fromkeys(row[field] for row in rows))
    encoding = {"y": names(field, order), "x": x, "color": tint, "tooltip": tips}
    encoding["order"] = {"field": "order"}
    return spec(rows, bars_high(len(order)), mark=_BAR, encoding=encoding)


def shares(title: str) -> Spec:
    """Return an axis of shares that come to 1."""
    scale = {"domain": [0, 1.0001], "clamp": True}
    return quantity("share", title, axis={"format": ".0%"}, scale=scale, stack="zero")


def plan_bars(plans: Mapping[str, Rows], totals: Mapping[str, float]) -> Spec:
    """Return a bar a plan, as long as its total and divided as its stages' shares are.

    A plan over ten times the fastest would hide the others: its bar is cut, and says so.
    """
    times = [totals[name] for name in plans]
    limit = max(ms for ms in times if ms <= 10 * min(times))
    bars, labels = [], []
    for name in sorted(plans, key=lambda name: totals[name]):
        left, whole = 0.0, totals[name]
        for order, row in enumerate(plans[name]):
            stage = row["stages"][0] if row["stages"] else "other"
            long = min(row["share"] * whole, max(0.0, 1.05 * limit - left))
            bars.append({"plan": name, "stage": stage, "ms": long, "order": order})
            left += long
        cut = " (bar cut)" if whole > 1.05 * limit else ""
        labels.append({"plan": name, "end": left, "label": f"{whole:,.3f} ms{cut}"})
    x = quantity("ms", "ms of a pass, divided as its profiled stages are", stack="zero")
    x["scale"] = {"domain": [0, 1.3 * limit]}
    made = stacked(bars, "plan", x, stage_colour([bar["stage"] for bar in bars]), [])
    text = {"type": "text", "align": "left", "dx": 4}
    end = {"field": "end", "type": "quantitative"}
    said = layer(labels, text, x=end, y=names("plan"), text={"field": "label"})
    drawn = layer(None, made.pop("mark"), **made.pop("encoding"))
    return made | {"layer": [drawn, said]}


def roofline(points: Rows, limits: Any, tint: Spec, floor: float = 0.0) -> Spec:
    """Return rates (`tflops`) over `intensity` under the roofs of `limits`, ceilings of a device.

    Points are at `floor` where they are below it.
    """
    found, rates = [p["intensity"] for p in points], [p["tflops"] for p in points]
    low, high = min([0.2, *found]) / 1.5, max([200.0, *found]) * 1.5
    top = 2 * max(limits["fma_tflops"], limits["tensor_tflops"], *rates)
    floor = floor or min(rates) / 2
    x = quantity("intensity", "operations a byte that must be moved, logarithmic", log=True)
    y = quantity("tflops", None, log=True)
    x["scale"] |= {"domain": [low, high], "padding": 0}
    y["scale"] |= {"domain": [floor, max(top, 10 * floor)], "padding": 0, "clamp": True}
    tips = hints(
        ("name", "what"),
        ("where", "from"),
        ("tflops", "TFLOP/s", ",.4~g"),
        ("intensity", "operations a byte", ",.4~g"),
        ("ms", "median ms", ",.4~g"),
        ("roof", "of the roof", ".1%"),
    )
    roofs = _roofs(limits, low, high)
    dash = colour("roof", list(dict.fromkeys(row["roof"] for row in roofs)))
    dash["legend"] = {"symbolType": "stroke", "columns": 1}
    line = {"type": "line", "strokeWidth": 1.6, "clip": True}
    lines = layer(roofs, line, x=x, y=y, detail={"field": "roof"}, strokeDash=dash)
    mark = {"type": "point", "filled": True, "size": 70, "opacity": 0.85, "clip": True}
    marks = layer(None, mark, x=x, y=y, tooltip=tips, color=tint)
    return spec(points, 440, layer=[lines, marks])


def _roofs(limits: Any, low: float, high: float) -> list[dict[str, Any]]:
    """Return the lines: up the copy's slope to each rate, then level."""
    peaks = {"fp32 multiply-adds": limits["fma_tflops"]}
    peaks["tensor cores, mma.sync"] = limits["tensor_tflops"]
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


def point_of(row: Mapping[str, Any], **about: Any) -> dict[str, Any] | None:
    """Return a row as a point of `roofline`, None where it did not count or was not timed."""
    gflop, mbytes, rate = (row.get(key) for key in ("gflop", "mbytes", "tflops"))
    if not gflop or not mbytes or not rate or min(gflop, mbytes, rate) <= 0:
        return None
    found = {"intensity": 1e3 * gflop / mbytes, "tflops": rate, "ms": row["median_ms"]}
    return {**about, **found, "roof": row.get("roofline")}


def candidates(entries: Rows, limits: Any) -> Spec:
    """Return candidates under the roofs, each of a colour of its own with its rate beside it."""
    found = [
        point_of(one, name=f"{one['name']}  {one.get('tflops', 0):.3g} TFLOP/s") for one in entries
    ]
    points = [one for one in found if one is not None]
    if not points:
        raise LenetError("--plot: expected candidates with timings, found none")
    points.sort(key=lambda one: -one["tflops"])
    if not any(one["precision"] != "fp32" for one in entries):
        limits = limits | {"tensor_tflops": 0.0}
    return roofline(points, limits, colour("name", [one["name"] for one in points]))


def best_of_families(document: Mapping[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return of each family but the baseline's its fastest of every case, best family first."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for index, case in enumerate(document["cases"]):
        for entry in case["candidates"]:
            speedup = entry.get("speedup") or 0
            if speedup <= 0 or entry["name"] == case["reference"]:
                continue
            family = found.setdefault(entry["name"].partition(".")[0], {})
            if index not in family or family[index]["speedup"] < speedup:
                family[index] = entry
    ranked = sorted(found, key=lambda name: -max(e["speedup"] for e in found[name].values()))
    return {name: found[name] for name in ranked[:_MOST_FAMILIES]}


def speedups(document: Mapping[str, Any]) -> Spec:
    """Return speed-ups over a suite's baseline, a row a shape and a point a family."""
    best, cases = best_of_families(document), document["cases"]
    if not best:
        raise LenetError("--plot: expected candidates with timings, found none")
    rows = []
    for family, entries in best.items():
        for index, entry in entries.items():
            about = {"shape": cases[index]["label"], "dims": cases[index]["shape"]}
            keys = "name speedup median_ms roofline"
            rows.append(picked(entry, keys, family=family, **about))
    place = {case["label"]: number for number, case in enumerate(cases)}
    rows.sort(key=lambda row: place[row["shape"]])
    tips = hints(
        ("shape", "shape"),
        ("dims", "C,H,W,M,K,stride,pad"),
        ("name", "candidate"),
        ("speedup", "times as fast", ",.3~g"),
        ("median_ms", "median ms", ",.3~g"),
        ("roofline", "of the roof", ".1%"),
    )
    x = quantity("speedup", f"times as fast as {document['reference']}, logarithmic", log=True)
    return beside_one(rows, "shape", x, colour("family", list(best)), tips)


def ladder(rows: Rows, stages: Sequence[str] = ("conv1", "conv2")) -> dict[str, Spec]:
    """Return a chart a stage of the course's: a bar a variant with its time, slowest first."""
    found = {stage: spec for stage in stages if (spec := _slowest_first(rows, stage)) is not None}
    if not found:
        raise LenetError("--plot: expected candidates with timings, found none")
    return found


def _slowest_first(rows: Rows, stage: str) -> Spec | None:
    """Return a bar a variant of `stage` with its time, the slowest first; None where none is."""
    found = {r["variant"]: r["median_ms"] for r in rows if r["stage"] == stage and _timed(r)}
    if not found:
        return None
    slowest, least = max(found.values()), min(found.values()) / 3
    shown = [
        {"variant": name, "ms": ms, "label": f"{ms:,.2f} ms, {slowest / ms:,.0f}x"}
        for name, ms in sorted(found.items(), key=lambda one: -one[1])
    ]
    x = quantity("ms", "milliseconds", log=True)
    x["scale"] |= {"domain": [least, slowest * 60], "padding": 0}
    bar = layer(None, _BAR, x=x, x2={"datum": least})
    text = {"type": "text", "align": "left", "dx": 4}
    said = layer(None, text, x=x, text={"field": "label"})
    return spec(shown, bars_high(len(shown)), encoding={"y": names("variant")}, layer=[bar, said])


def _timed(row: Mapping[str, Any]) -> bool:
    return (row.get("median_ms") or 0) > 0


def parted(case: Mapping[str, Any], told: bool = False) -> Spec:
    """Return a bar a kernel, of the parts of its warps' time; `told`: with the paper's figure."""

    def name(row: Mapping[str, Any]) -> str:
        paper = f"; the paper: compute {row['paper']:.0%}" if row.get("paper") is not None else ""
        return f"{row['kernel']} (fig. {row['figure']}{paper})" if told else str(row["kernel"])

    rows = [
        {"kernel": name(row), "part": part, "share": share, "order": order}
        for row in case["kernels"]
        if row.get("shares")
        for order, (part, share) in enumerate(row["shares"].items())
        if share is not None
    ]
    if told and not rows:
        raise LenetError("--plot: expected kernels with shares, found none")
    tips = hints(("kernel", "kernel"), ("part", "part"), ("share", "of the clocks", ".1%"))
    tint = colour("part", list(dict.fromkeys(row["part"] for row in rows)))
    return stacked(rows, "kernel", shares("of its warps' clocks"), tint, tips)


def sweep(rows: Rows) -> Spec:
    """Return ms over images a chunk, a line a number of streams; bare ways are drawn across."""
    keys = ("way", "streams", "chunk", "taper", "median_ms", "p05_ms", "p95_ms", "predicted_ms")
    timed = [{key: row.get(key) for key in keys} for row in rows if _timed(row)]
    ways: list[dict[str, Any]] = [
        row | {"lanes": f"{row['streams']:g}"}
        for row in timed
        if row["way"] == "schedule" and row.get("taper") in (None, 1)
        if row["streams"] and (row["chunk"] or 0) > 0
    ]
    bare = {"bare copy": [8, 4], "kernels": [2, 3], "zero-copy": [10, 3, 2, 3]}
    across = [
        {"way": row["way"], "median_ms": row["median_ms"]} for row in timed if row["way"] in bare
    ]
    stars = [row for row in timed if row["way"] == "auto" and row["chunk"]]
    x = quantity("chunk", "images a chunk, logarithmic", log=True)
    y = quantity("median_ms", None, scale={"zero": True})
    model = ("predicted_ms", "the model's ms", ",.4~g")
    chunk = ("chunk", "images a chunk", ",")
    tips = hints(("lanes", "streams"), chunk, MS, P05, P95, model)
    tint = colour("lanes", sorted({row["lanes"] for row in ways}, key=float), "streams")
    line = {"type": "line", "point": {"size": 55, "filled": True}}
    dash = colour("way", list(bare))
    dash["scale"]["range"] = list(bare.values())
    dash["legend"] = {"symbolType": "stroke", "symbolStrokeWidth": 2}
    rule = {"type": "rule", "strokeWidth": 1.6, "opacity": 0.8}
    star = {"type": "point", "shape": "diamond", "size": 170, "filled": False, "strokeWidth": 2}
    chosen = hints(("way", "the model's choice"), ("streams", "streams", ","), chunk, MS)
    layers = [
        layer(ways, line, x=x, y=y, color=tint, tooltip=tips),
        layer(across, rule, y=y, strokeDash=dash, tooltip=hints(("way", "what"), MS)),
        layer(stars, star, x=x, y=y, tooltip=chosen),
    ]
    return spec([], 240, layer=layers)


def check_plot(path: Path) -> None:
    """Raise LenetError unless `path` is a .png or .svg in an existing folder that can be drawn."""
    from lenetgpu.files.output import require_folder

    if path.suffix.lower() not in ENDINGS:
        raise LenetError(
            f"{path}: expected a name ending in {' or '.join(ENDINGS)}, "
            f"found {path.suffix or 'no ending'}"
        )
    require_folder(path)
    require_extra("--plot", "vl_convert", "report")


def save(
    path: Path,
    title: str | Sequence[str],
    drawn: Mapping[str, Spec],
    told: Mapping[str, str] | None = None,
    columns: int = 2,
    apart: bool = True,
) -> None:
    """Write charts by their titles as `path` ends, `columns` a row, whole or not at all.

    A PNG holds the words that are `told`. Charts have their colours `apart`, or one legend.
    """
    import vl_convert

    from lenetgpu.store import write_atomically

    colours = _COLOURS.split()
    config = {
        "range": {"category": colours},
        "view": {"stroke": None},
        "axis": {"labelLimit": 320},
        "legend": {"orient": "top", "labelLimit": 400, "columns": 3},
        "bar": {"color": colours[0]},
    }
    still = [_still(one) | {"title": name} for name, one in drawn.items()]
    resolve = {"scale": {"color": "independent" if apart else "shared"}}
    whole = {
        "title": _heading(title),
        "background": "white",
        "padding": 12,
        "config": config,
        "vconcat": [
            {"hconcat": still[at : at + columns], "resolve": resolve}
            for at in range(0, len(still), columns)
        ],
        "resolve": resolve,
    }
    if path.suffix.lower() == ".svg":
        data = vl_convert.vegalite_to_svg(whole).encode()
    else:
        data = _with_words(vl_convert.vegalite_to_png(whole, scale=2), told or {})
    write_atomically(path, data)


def _heading(title: str | Sequence[str]) -> Spec:
    """Return a heading, with the lines below it in small where there are any."""
    head, *lines = [title] if isinstance(title, str) else title
    return {"text": head, "subtitle": lines, "anchor": "start", "offset": 14}


def _still(chart: Spec) -> Spec:
    """Return a chart of a width of its own."""
    return chart | {"width": _WIDTH} if chart.get("width") == "container" else chart


def _with_words(png: bytes, words: Mapping[str, str]) -> bytes:
    if not words:
        return png
    import io

    from PIL import Image, PngImagePlugin

    info, out = PngImagePlugin.PngInfo(), io.BytesIO()
    for key, text in words.items():
        info.add_text(key, text)
    Image.open(io.BytesIO(png)).save(out, "PNG", pnginfo=info)
    return out.getvalue()
