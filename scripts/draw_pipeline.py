"""Draw docs/pipeline.svg: the seven stages, what each computes, and its registered variants."""

from __future__ import annotations

from html import escape
from pathlib import Path

from lenetgpu.network import IMAGE_SHAPE, SPANS, STAGES
from lenetgpu.stages import variants

TARGET = Path(__file__).resolve().parent.parent / "docs" / "pipeline.svg"
COLOURS = {"conv": "#2563eb", "pool": "#0d9488", "fc": "#c2410c", "argmax": "#7c3aed"}
SPAN_COLOUR = "#be123c"
WHAT = {"conv": "5x5 convolution", "pool": "ReLU, 2x2 mean", "fc": "fully connected",
        "argmax": "largest score"}  # fmt: skip
BOX_W, BOX_H, GAP, LEFT, TOP = 132, 64, 34, 92, 60
COLUMN_W, LINE = 286, 17
FONT = "font-family='DejaVu Sans Mono, Menlo, Consolas, monospace'"


def _text(x: float, y: float, words: str, size: int = 12, extra: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' {FONT} font-size='{size}' {extra}>{escape(words)}</text>"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) if shape else "label"


def draw() -> str:
    """The picture as SVG text."""
    centre = "text-anchor='middle'"
    parts = [
        _text(LEFT / 2 + 4, TOP + BOX_H / 2 + 4, "image", 12, f"{centre} font-weight='bold'"),
        _text(LEFT / 2 + 4, TOP + BOX_H / 2 + 20, _shape(IMAGE_SHAPE), 10, f"{centre} fill='#555'"),
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
            _text(middle, TOP + 21, stage.name, 14, f"{centre} fill='#fff' font-weight='bold'"),
            _text(middle, TOP + 38, WHAT[stage.kind], 11, f"{centre} fill='#fff'"),
            _text(middle, TOP + 54, weights, 10, f"{centre} fill='#fff'"),
            _text(middle, TOP + BOX_H + 16, _shape(stage.problem.out_shape), 11,
                  f"{centre} fill='#555'"),
        ]  # fmt: skip
        x += BOX_W + GAP
    width = x - GAP + 20
    column, depth = 20.0, 0
    list_top = TOP + BOX_H + 58
    for kind, colour in COLOURS.items():
        names = ", ".join(stage.name for stage in STAGES if stage.kind == kind)
        parts.append(_text(column, list_top, f"{kind}: {names}", 12,
                           f"fill='{colour}' font-weight='bold'"))  # fmt: skip
        rows = [(v.needs.device, v) for device in ("cpu", "cuda") for v in variants(kind, device)]
        for index, (device, v) in enumerate(rows):
            y = list_top + (index + 1) * LINE
            badge = "#64748b" if device == "cpu" else "#15803d"
            parts.append(f"<rect x='{column:g}' y='{y - 10:g}' width='32' height='13' rx='3' "
                         f"fill='{badge}'/>")  # fmt: skip
            label = "CPU" if device == "cpu" else "GPU"
            parts.append(_text(column + 16, y, label, 9, f"{centre} fill='#fff'"))
            parts.append(_text(column + 40, y, v.full_name, 11, "fill='#111'"))
        depth = max(depth, len(rows))
        column += COLUMN_W
    column -= COLUMN_W
    start = list_top + (len(rows) + 3) * LINE
    for span in SPANS:
        parts.append(
            _text(column, start, span.name, 12, f"fill='{SPAN_COLOUR}' font-weight='bold'")
        )
        for v in variants(span.kind, "cuda"):
            start += LINE
            parts.append(f"<rect x='{column:g}' y='{start - 10:g}' width='32' height='13' rx='3' "
                         "fill='#15803d'/>")  # fmt: skip
            parts.append(_text(column + 16, start, "GPU", 9, f"{centre} fill='#fff'"))
            parts.append(_text(column + 40, start, v.full_name, 11, "fill='#111'"))
        start += 1.5 * LINE
    depth = max(depth, int((start - list_top) / LINE))
    height = list_top + (depth + 1) * LINE + 8
    title = "lenetgpu: seven stages, each switchable between the variants below"
    parts.insert(0, _text(20, 28, title, 14, "font-weight='bold' fill='#111'"))
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}' "
        f"viewBox='0 0 {width:g} {height:g}'>"
        "<defs><marker id='tip' markerWidth='8' markerHeight='8' refX='6' refY='3' orient='auto'>"
        "<path d='M0 0 L6 3 L0 6 z' fill='#666'/></marker></defs>"
        f"<rect width='{width:g}' height='{height:g}' fill='#fff'/>"
    )
    return head + "\n".join(parts) + "</svg>\n"


if __name__ == "__main__":
    TARGET.write_text(draw())
    print(TARGET)
