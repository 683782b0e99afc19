"""Draw docs/pipeline.svg: the seven stages, what each computes, and its registered variants."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Sequence
from html import escape
from pathlib import Path

from lenetgpu.network import IMAGE_SHAPE, SPANS, STAGES
from lenetgpu.stages import Variant, variants
from lenetgpu.stages.registry import SUPPORT_KINDS

TARGET = Path(__file__).resolve().parent.parent / "docs" / "pipeline.svg"
COLOURS = {"conv": "#2563eb", "pool": "#0d9488", "fc": "#c2410c", "argmax": "#7c3aed"}
SPAN_COLOUR = "#be123c"
BADGES = {"CPU": "#64748b", "GPU": "#15803d"}
CENTRE = "text-anchor='middle'"
WRAP = 36
WHAT = {"conv": "5x5 convolution", "pool": "ReLU, 2x2 mean", "fc": "fully connected",
        "argmax": "largest score"}  # fmt: skip
BOX_W, BOX_H, GAP, LEFT, TOP = 132, 64, 34, 92, 60
COLUMN_W, LINE = 286, 17
FONT = "font-family='DejaVu Sans Mono, Menlo, Consolas, monospace'"


def _text(x: float, y: float, words: str, size: int = 12, extra: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' {FONT} font-size='{size}' {extra}>{escape(words)}</text>"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) if shape else "label"


def _name(variant: Variant) -> str:
    return f"{variant.kind}:{variant.full_name}"


def registered() -> list[str]:
    """Return `kind:family.variant` of everything that the picture should show."""
    return [_name(variant) for variant in variants() if variant.kind not in SUPPORT_KINDS]


def shown_in(picture: str) -> list[str]:
    """Return the variants that a drawn picture says it shows."""
    found = re.search("<desc>(.*)</desc>", picture)
    return found.group(1).split() if found else []


def _families(kind: str, names: Container[str]) -> list[tuple[str, str]]:
    """Return (badge, line) rows: each family of `kind` with its variants; "" continues a row."""
    rows = []
    for device, badge in (("cpu", "CPU"), ("cuda", "GPU")):
        members: dict[str, list[str]] = {}
        for variant in variants(kind, device):
            if _name(variant) in names:
                members.setdefault(variant.family, []).append(variant.name)
        for family, found in members.items():
            lines = textwrap.wrap(f"{family}: {', '.join(found)}", WRAP, subsequent_indent="  ")
            rows += [(badge if index == 0 else "", line) for index, line in enumerate(lines)]
    return rows


def _list(
    x: float, y: float, title: str, colour: str, rows: list[tuple[str, str]]
) -> tuple[list[str], float]:
    """Return the rows of `_families` below `title`, and the y coordinate of the end."""
    parts = [_text(x, y, title, 12, f"fill='{colour}' font-weight='bold'")]
    for badge, line in rows:
        y += LINE
        if badge:
            parts.append(
                f"<rect x='{x:g}' y='{y - 10:g}' width='32' height='13' rx='3' "
                f"fill='{BADGES[badge]}'/>"
            )
            parts.append(_text(x + 16, y, badge, 9, f"{CENTRE} fill='#fff'"))
        parts.append(_text(x + 40, y, line, 11, "fill='#111' xml:space='preserve'"))
    return parts, y


def draw(names: Sequence[str]) -> str:
    """Return the picture as SVG with the variants in `names`, in the form of `registered`."""
    parts = [
        _text(LEFT / 2 + 4, TOP + BOX_H / 2 + 4, "image", 12, f"{CENTRE} font-weight='bold'"),
        _text(LEFT / 2 + 4, TOP + BOX_H / 2 + 20, _shape(IMAGE_SHAPE), 10, f"{CENTRE} fill='#555'"),
    ]
    x = LEFT + 10.0
    for stage in STAGES:
        colour = COLOURS[stage.kind]
        middle = x + BOX_W / 2
        weights = f"w {_shape(stage.problem.weight_shape)}" if stage.weight else ""
        parts += [
            f"<path d='M{x - GAP + 6:g} {TOP + BOX_H / 2:g} H{x - 8:g}' stroke='#666' "
            "stroke-width='1.5' marker-end='url(#tip)'/>",
            f"<rect x='{x:g}' y='{TOP}' width='{BOX_W}' height='{BOX_H}' rx='8' fill='{colour}'/>",
            _text(middle, TOP + 21, stage.name, 14, f"{CENTRE} fill='#fff' font-weight='bold'"),
            _text(middle, TOP + 38, WHAT[stage.kind], 11, f"{CENTRE} fill='#fff'"),
            _text(middle, TOP + 54, weights, 10, f"{CENTRE} fill='#fff'"),
            _text(middle, TOP + BOX_H + 16, _shape(stage.problem.out_shape), 11,
                  f"{CENTRE} fill='#555'"),
        ]  # fmt: skip
        x += BOX_W + GAP
    width = x - GAP + 20
    top = TOP + BOX_H + 58
    ends = []
    for index, (kind, colour) in enumerate(COLOURS.items()):
        slots = ", ".join(stage.name for stage in STAGES if stage.kind == kind)
        drawn, end = _list(
            20.0 + index * COLUMN_W, top, f"{kind}: {slots}", colour, _families(kind, names)
        )
        parts += drawn
        ends.append(end)
    below = max(ends[1:]) + 2 * LINE
    for index, span in enumerate(SPANS):
        column = min(1 + index, 3)
        start = below if index < 3 else ends[-1] + 1.5 * LINE
        title = f"in one: {span.name}"
        rows = _families(span.kind, names)
        drawn, end = _list(20.0 + column * COLUMN_W, start, title, SPAN_COLOUR, rows)
        parts += drawn
        ends.append(end)
    height = max(ends) + LINE + 8
    title = "lenetgpu: seven stages, each switchable between the variants below"
    parts.insert(0, _text(20, 28, title, 14, "font-weight='bold' fill='#111'"))
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}' "
        f"viewBox='0 0 {width:g} {height:g}'>"
        f"<desc>{' '.join(names)}</desc>"
        "<defs><marker id='tip' markerWidth='8' markerHeight='8' refX='6' refY='3' orient='auto'>"
        "<path d='M0 0 L6 3 L0 6 z' fill='#666'/></marker></defs>"
        f"<rect width='{width:g}' height='{height:g}' fill='#fff'/>"
    )
    return head + "\n".join(parts) + "</svg>\n"


if __name__ == "__main__":
    TARGET.write_text(draw(registered()))
    print(TARGET)
