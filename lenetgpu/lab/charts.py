"""Vega-Lite specifications of charts, for the page and for --plot; file contents are only data."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError, require_extra, unexpected
from lenetgpu.files.output import require_folder
from lenetgpu.lab.tables import from_file
from lenetgpu.network import STAGE_NAMES
from lenetgpu.store import write_atomically

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]
STAGE_ORDER = [*STAGE_NAMES, "other"]
TIMES = "median_ms p05_ms p95_ms"
_STYLE = json.loads(Path(__file__).with_suffix(".json").read_text())
MARKS: dict[str, Spec] = _STYLE["marks"]
STEP = 24  # height of a bar or a row of points, in pixels
_WIDTH = 480
_MOST_FAMILIES = 8
_NUMBERS = {column.key: column for column in from_file("tooltips")}


def tips(keys: str) -> list[Spec]:
    """Return the tooltip of the fields `keys`, separated by spaces."""
    shown: list[Spec] = []
    for key in keys.split():
        number = _NUMBERS.get(key)
        title = number.title if number else key.replace("_", " ")
        kind = {"type": "quantitative", "format": number.write} if number else {"type": "nominal"}
        shown.append({"field": key, "title": title, **kind})
    return shown


def spec(rows: Rows, height: int, **more: Any) -> Spec:
    """Return a chart of `rows`, as wide as its container and `height` pixels high."""
    return {"data": {"values": list(rows)}, "width": "container", "height": height, **more}


def layer(rows: Rows | None, mark: str | Spec, **encoding: Any) -> Spec:
    """Return a layer of `rows`, or of the chart's own if None; `mark` may be one of MARKS."""
    drawn = {"mark": MARKS[mark] if isinstance(mark, str) else mark, "encoding": encoding}
    return drawn if rows is None else {"data": {"values": list(rows)}, **drawn}


def picked(row: Mapping[str, Any], keys: str, **more: Any) -> dict[str, Any]:
    """Return a row's values under `keys`, separated by spaces, and `more`."""
    return {key: row.get(key) for key in keys.split()} | more


def bars_high(names: Iterable[Any]) -> int:
    """Return the height in pixels of one bar or row of points per name."""
    return max(2, len(set(names))) * STEP


def quantity(field: str, title: str | None, log: bool = False, **more: Any) -> Spec:
    """Return a numeric axis; a logarithmic one does not start at 0."""
    axis: Spec = {"field": field, "type": "quantitative", "title": title, **more}
    if log:
        axis["scale"] = {"type": "log", "nice": False, "padding": 12}
        axis["axis"] = {"tickCount": 5, "labelOverlap": "greedy"}
    return axis


def names(field: str, order: Sequence[str] | None = None) -> Spec:
    """Return an axis of names in the given order; None means the order of the rows."""
    sort = None if order is None else [*map(str, order)]
    return {"field": field, "type": "nominal", "title": None, "sort": sort}


def colour(field: str, order: Iterable[Any], title: str | None = None) -> Spec:
    """Return a colour scale over names; equal positions in `order` give equal colours."""
    domain = [*dict.fromkeys(map(str, order))]
    legend: Spec | None = None if len(domain) < 2 else {}
    kind = {"field": field, "type": "nominal", "title": title}
    return {**kind, "scale": {"domain": domain}, "legend": legend}


def stage_colour(rows: Rows) -> Spec:
    """Return the colour scale of stages, with a legend of those that occur in `rows`."""
    stages = {row["stage"] for row in rows}
    shown = [stage for stage in STAGE_ORDER if stage in stages]
    return colour("stage", STAGE_ORDER) | {"legend": {"values": shown, "title": None}}


def timed(row: Mapping[str, Any], key: str = "median_ms") -> bool:
    """Return True if a row has a time above 0."""
    return (row.get(key) or 0) > 0


def spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's median and percentiles; missing percentiles are replaced by the median."""
    median = row["median_ms"]
    ends = {key: row[key] if timed(row, key) else median for key in ("p05_ms", "p95_ms")}
    return {"median_ms": median} | ends


def dots(rows: Rows, field: str, tint: Spec, keys: str, title: str = "ms, logarithmic") -> Spec:
    """Return a point per row over ms, with a line from its 5th to its 95th percentile."""
    shown = [picked(row, f"{tint['field']} {field} {keys}") | spread(row) for row in rows]
    x = quantity("median_ms", title, log=True)
    span = layer(None, "spread", x=x | {"field": "p05_ms"}, x2={"field": "p95_ms"})
    point = layer(None, "point", x=x, tooltip=tips(f"{field} {keys} {TIMES}"))
    high = bars_high(row[field] for row in rows)
    return spec(shown, high, encoding={"y": names(field), "color": tint}, layer=[span, point])


def around_one(rows: Rows, field: str, x: Spec, tint: Spec, keys: str) -> Spec:
    """Return a point per row over a ratio, and a dashed line at 1."""
    at = {"field": "at", "type": "quantitative"}
    one = layer([{"at": 1}], "dashes", x=at)
    order = list(dict.fromkeys(row[field] for row in rows))
    point = layer(None, "point", y=names(field, order), x=x, color=tint, tooltip=tips(keys))
    return spec(rows, bars_high(order), layer=[one, point])


def stacked(rows: Rows, field: str, x: Spec, tint: Spec, keys: str = "") -> Spec:
    """Return a stacked bar per name, its parts sorted by `order`."""
    order = list(dict.fromkeys(row[field] for row in rows))
    encoding = {"y": names(field, order), "x": x, "color": tint, "tooltip": tips(keys)}
    encoding["order"] = {"field": "order"}
    return spec(rows, bars_high(order), mark=MARKS["bar"], encoding=encoding)


def shares(title: str) -> Spec:
    """Return an axis of shares that add up to 1."""
    scale = {"domain": [0, 1.0001], "clamp": True}
    return quantity("share", title, axis={"format": ".0%"}, scale=scale, stack="zero")


def plan_bars(plans: Mapping[str, Rows], totals: Mapping[str, float]) -> Spec:
    """Return a bar per plan, divided by its stages' shares, truncated at ten times the fastest."""
    times = [totals[name] for name in plans]
    limit = max(ms for ms in times if ms <= 10 * min(times))
    bars, labels = [], []
    for name in sorted(plans, key=lambda name: totals[name]):
        end, total = 0.0, totals[name]
        for order, row in enumerate(plans[name]):
            stage = row["stages"][0] if row["stages"] else "other"
            length = min(row["share"] * total, max(0.0, 1.05 * limit - end))
            bars.append({"plan": name, "stage": stage, "ms": length, "order": order})
            end += length
        cut = " (bar cut)" if total > 1.05 * limit else ""
        labels.append({"plan": name, "end": end, "label": f"{total:,.3f} ms{cut}"})
    x = quantity("ms", "ms of a pass, divided as its profiled stages are", stack="zero")
    x["scale"] = {"domain": [0, 1.3 * limit]}
    chart = stacked(bars, "plan", x, stage_colour(bars))
    at = {"field": "end", "type": "quantitative"}
    texts = layer(labels, "label", x=at, y=names("plan"), text={"field": "label"})
    return chart | {"layer": [layer(None, chart.pop("mark"), **chart.pop("encoding")), texts]}


def roofline(points: Rows, limits: Any, tint: Spec, floor: float = 0.0) -> Spec:
    """Return rates (`tflops`, at least `floor`) over `intensity` under the roofs of `limits`."""
    intensities, rates = [p["intensity"] for p in points], [p["tflops"] for p in points]
    low, high = min([0.2, *intensities]) / 1.5, max([200.0, *intensities]) * 1.5
    top = 2 * max(limits["fma_tflops"], limits["tensor_tflops"], *rates)
    floor = floor or min(rates) / 2
    x = quantity("intensity", "operations per byte that must be moved, logarithmic", log=True)
    y = quantity("tflops", None, log=True)
    x["scale"] |= {"domain": [low, high], "padding": 0}
    y["scale"] |= {"domain": [floor, max(top, 10 * floor)], "padding": 0, "clamp": True}
    roofs, slope = [], limits["copy_gbs"] / 1e3
    for name, key in (("fp32 multiply-adds", "fma"), ("tensor cores, mma.sync", "tensor")):
        if min(peak := limits[f"{key}_tflops"], slope) > 0:
            corner, roof = peak / slope, f"{name}: {peak:,.3g} TFLOP/s"
            for at in sorted({low, max(low, corner), max(high, corner)}):
                roofs.append({"roof": roof, "intensity": at, "tflops": min(peak, at * slope)})
    dash = colour("roof", [row["roof"] for row in roofs])
    dash["legend"] = {"symbolType": "stroke", "columns": 1}
    lines = layer(roofs, "roof", x=x, y=y, detail={"field": "roof"}, strokeDash=dash)
    shown = tips("name where tflops intensity ms roofline")
    over = layer(None, "small point", x=x, y=y, tooltip=shown, color=tint)
    return spec(points, 440, layer=[lines, over])


def point_of(row: Mapping[str, Any], **about: Any) -> list[dict[str, Any]]:
    """Return a row as a point of `roofline`, or [] if it has no counts or no time."""
    gflop, mbytes, rate = (row.get(key) or 0 for key in ("gflop", "mbytes", "tflops"))
    if min(gflop, mbytes, rate) <= 0:
        return []
    times = {"ms": row["median_ms"], "roofline": row.get("roofline")}
    return [{**about, **times, "intensity": 1e3 * gflop / mbytes, "tflops": rate}]


def _required(rows: Any, noun: str = "candidates with timings") -> None:
    if not rows:
        raise LenetError(f"--plot: expected {noun}, found none")


def candidates(entries: Rows, limits: Any) -> Spec:
    """Return candidates under the roofs, each labelled with its rate, each in its own colour."""
    named = [(f"{one['name']}  {one.get('tflops', 0):.3g} TFLOP/s", one) for one in entries]
    points = [point for name, one in named for point in point_of(one, name=name)]
    _required(points)
    points.sort(key=lambda one: -one["tflops"])
    if all(one["precision"] == "fp32" for one in entries):
        limits = limits | {"tensor_tflops": 0.0}
    return roofline(points, limits, colour("name", [one["name"] for one in points]))


def best_of_families(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each family's fastest variant per case, without the baseline's; best family first."""
    families: dict[str, dict[int, dict[str, Any]]] = {}
    for index, case in enumerate(document["cases"]):
        others = [entry for entry in case["candidates"] if entry["name"] != case["baseline"]]
        for entry in sorted(others, key=lambda entry: -(entry.get("speedup") or 0)):
            name = entry["name"].partition(".")[0]
            about = {"family": name, "shape": case["label"], "dims": case["shape"]}
            if timed(entry, "speedup"):
                best = picked(entry, "name speedup median_ms roofline", **about)
                families.setdefault(name, {}).setdefault(index, best)
    ranked = sorted(families.values(), key=lambda cases: -max(e["speedup"] for e in cases.values()))
    return [entry for cases in ranked[:_MOST_FAMILIES] for entry in cases.values()]


def speedups(document: Mapping[str, Any]) -> Spec:
    """Return speed-ups over a suite's baseline, a row per shape and a point per family."""
    best = best_of_families(document)
    _required(best)
    x = quantity("speedup", f"times as fast as {document['baseline']}, logarithmic", log=True)
    tint = colour("family", [row["family"] for row in best])
    labels = [case["label"] for case in document["cases"]]
    best.sort(key=lambda row: labels.index(row["shape"]))
    return around_one(best, "shape", x, tint, "shape dims name speedup median_ms roofline")


def ladder(rows: Rows) -> dict[str, Spec]:
    """Return a chart per convolution of the course: a bar per variant, slowest first."""
    times: dict[str, dict[str, float]] = {"conv1": {}, "conv2": {}}
    for row in rows:
        if row["stage"] in times and timed(row):
            times[row["stage"]][row["variant"]] = row["median_ms"]
    _required([*times["conv1"], *times["conv2"]])
    return {stage: _slowest_first(by_name) for stage, by_name in times.items() if by_name}


def _slowest_first(times: Mapping[str, float]) -> Spec:
    slowest, least = max(times.values()), min(times.values()) / 3
    shown = [
        {"variant": name, "ms": ms, "label": f"{ms:,.2f} ms, {slowest / ms:,.0f}x"}
        for name, ms in sorted(times.items(), key=lambda one: -one[1])
    ]
    x = quantity("ms", "milliseconds", log=True)
    x["scale"] |= {"domain": [least, slowest * 60], "padding": 0}
    bar = layer(None, "bar", x=x, x2={"datum": least})
    text = layer(None, "label", x=x, text={"field": "label"})
    return spec(shown, bars_high(times), encoding={"y": names("variant")}, layer=[bar, text])


def parted(case: Mapping[str, Any], printed: bool = False) -> Spec:
    """Return a bar per kernel, split by its warps' time; `printed` adds the paper's figure."""

    def name(row: Mapping[str, Any]) -> str:
        paper = f"; the paper: compute {row['paper']:.0%}" if row.get("paper") is not None else ""
        return f"{row['kernel']} (fig. {row['figure']}{paper})" if printed else str(row["kernel"])

    rows = [
        {"kernel": name(row), "part": part, "share": share, "order": order}
        for row in case["kernels"]
        if row.get("shares")
        for order, (part, share) in enumerate(row["shares"].items())
        if share is not None
    ]
    if printed:
        _required(rows, "kernels with shares")
    tint = colour("part", [row["part"] for row in rows])
    return stacked(rows, "kernel", shares("of its warps' clocks"), tint, "kernel part share")


def check_plot(path: Path) -> None:
    """Raise LenetError unless `path` is a .png or .svg in an existing folder that can be drawn."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise unexpected(path, "a name ending in .png or .svg", path.suffix or "no ending")
    require_folder(path)
    require_extra("--plot", "vl_convert", "report")


def save(
    path: Path,
    title: str | Sequence[str],
    drawn: Mapping[str, Spec],
    columns: int = 2,
    apart: bool = True,
) -> None:
    """Write charts by title to `path` (.png or .svg) atomically, `columns` a row."""
    # With `apart` each chart has its own colours, otherwise all share a legend.
    import vl_convert

    head, *lines = [title] if isinstance(title, str) else title
    still = [one | {"title": name} for name, one in drawn.items()]
    for one in still:
        if one.get("width") == "container":
            one["width"] = _WIDTH
    resolve = {"scale": {"color": "independent" if apart else "shared"}}
    whole = {
        "title": {"text": head, "subtitle": lines, "anchor": "start", "offset": 14},
        "background": "white",
        "padding": 12,
        "config": _STYLE["config"],
        "vconcat": [
            {"hconcat": still[at : at + columns], "resolve": resolve}
            for at in range(0, len(still), columns)
        ],
        "resolve": resolve,
    }
    if path.suffix.lower() == ".svg":
        data = vl_convert.vegalite_to_svg(whole).encode()
    else:
        data = vl_convert.vegalite_to_png(whole, scale=2)
    write_atomically(path, data)
