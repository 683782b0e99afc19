"""Vega-Lite specifications as plain dictionaries: what the charts share.

Colours, fonts and sizes are the page's (report.js reads them from its style sheet). Field names are
ours; what files hold is data only, never part of an expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lenetgpu.network import STAGE_NAMES

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]
STAGE_ORDER = [*STAGE_NAMES, "other"]
_ROW = 24


def spec(rows: Rows, height: int, **more: Any) -> Spec:
    """A chart as wide as its place and `height` pixels high, of `rows` drawn by `more`."""
    return {"data": {"values": list(rows)}, "width": "container", "height": height, **more}


def bars_high(count: int) -> int:
    """The height of `count` bars or rows of points."""
    return max(2, count) * _ROW


def quantity(field: str, title: str | None, log: bool = False, **more: Any) -> Spec:
    """A numeric axis; a logarithmic one does not begin at 0."""
    found: Spec = {"field": field, "type": "quantitative", "title": title, **more}
    if log:
        axis = {"tickCount": 5, "labelOverlap": "greedy"} | found.pop("axis", {})
        found |= {"scale": {"type": "log", "nice": False, "padding": 12}, "axis": axis}
    return found


def names(field: str, order: Sequence[str] | None = None, title: str | None = None) -> Spec:
    """An axis of names in the order that they are given, None: that of the rows."""
    return {
        "field": field,
        "type": "nominal",
        "title": title,
        "sort": None if order is None else list(order),
    }


def colour(field: str, order: Sequence[str], title: str | None = None) -> Spec:
    """A colour a name, the same for a name in every chart that lists it in the same place."""
    return {
        "field": field,
        "type": "nominal",
        "title": title,
        "scale": {"domain": list(order)},
        "legend": None if len(order) < 2 else {},
    }


def stage_colour(stages: Sequence[str]) -> Spec:
    """A colour a stage; only those that occur are in the legend."""
    found = [stage for stage in STAGE_ORDER if stage in stages]
    return colour("stage", STAGE_ORDER) | {"legend": {"values": found, "title": None}}


def hints(*fields: tuple[str, str] | tuple[str, str, str]) -> list[Spec]:
    """What hovering shows: (field, title) of words, (field, title, format) of numbers."""
    made = []
    for field, title, *how in fields:
        kind = {"type": "quantitative", "format": how[0]} if how else {"type": "nominal"}
        made.append({"field": field, "title": title, **kind})
    return made


def dots(rows: Rows, y: Spec, x: Spec, tint: Spec, tips: list[Spec], **more: Any) -> Spec:
    """A point a row with the line from its 5th to its 95th percentile behind it."""
    span = {
        "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.45, "strokeCap": "round"},
        "encoding": {"x": x | {"field": "p05_ms"}, "x2": {"field": "p95_ms"}},
    }
    point = {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
             "encoding": {"x": x, "tooltip": tips}}  # fmt: skip
    count = len({row[y["field"]] for row in rows})
    shared = {"encoding": {"y": y, "color": tint}, "layer": [span, point]}
    return spec(rows, bars_high(count), **shared, **more)


def spread(row: dict[str, Any]) -> dict[str, Any]:
    """A row's times with their percentiles, the median's where it has none above 0."""
    ends = {key: row.get(key) or 0.0 for key in ("p05_ms", "p95_ms")}
    median = row["median_ms"]
    return {"median_ms": median} | {k: end if end > 0 else median for k, end in ends.items()}


MS = ("median_ms", "median ms", ",.4~g")
P05, P95 = ("p05_ms", "5th percentile", ",.4~g"), ("p95_ms", "95th percentile", ",.4~g")
