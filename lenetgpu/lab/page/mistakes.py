"""Mistakes as a page, a page section or a picture: the confusion matrix and the misread images."""

import textwrap
from pathlib import Path
from typing import Any

from lenetgpu.check.mistakes import Gallery, confusions, per_digit
from lenetgpu.lab import charts
from lenetgpu.lab.charts import Spec
from lenetgpu.lab.mistakes import bounded, lead, probability, share, title
from lenetgpu.lab.page import base
from lenetgpu.lab.summary import shown
from lenetgpu.measure.document import head
from lenetgpu.measure.outcome import Outcome

_PAIRS = 8
_INK, _SOFT, _RIGHT, _WRONG, _READ = "#1d1c1a", "#5d5a55", "#6fa8dc", "#f0a35e", "#a64b06"
# Tiles per row; tile (width, height) with its captions, and side of its digit, in pixels
_ACROSS, _TILE, _SIDE = 12, (90, 108), 64


def section(counts: Any, gallery: Gallery | None = None) -> Any:
    """Return Markup with the confusion matrix `counts` (10, 10) and the gallery, if given."""
    return base.fragment(
        "mistakes.html.j2",
        rows=_cells(counts),
        digits={row["digit"]: share(row["accuracy"]) for row in per_digit(counts)},
        pairs=confusions(counts)[:_PAIRS],
        wrong=int(counts.sum() - counts.trace()),
        tiles=None if gallery is None else gallery.worst,
        percent=probability,
        sheet=None if gallery is None else base.sheet(gallery.images),
        bounded="" if gallery is None else bounded(len(gallery.worst), len(gallery.rows)),
    )


def _cells(counts: Any) -> list[list[dict[str, Any]]]:
    """Return each cell's count and colour depth: the root of its share of the largest count."""
    # Right labels and mistakes have separate scales, so that a few mistakes remain visible.
    most = {"right": max(counts.diagonal().tolist())}
    most["wrong"] = max((pair["images"] for pair in confusions(counts)), default=1)
    return [
        [
            {"images": images, "kind": kind, "level": round((images / (most[kind] or 1)) ** 0.5, 3)}
            for predicted, images in enumerate(row)
            for kind in ["right" if label == predicted else "wrong"]
        ]
        for label, row in enumerate(counts.tolist())
    ]


def _head(outcome: Outcome) -> base.Head:
    origin = head("infer", outcome.gpu)
    facts = {
        "data": shown(outcome.data),
        "weights": shown(outcome.weights.source),
        "plan": f"{outcome.plan.name}, {outcome.plan.precision}",
    }
    if outcome.done < outcome.requested:
        facts["interrupted"] = f"{outcome.done:,} of {outcome.requested:,} images read"
    return base.Head(
        title=title(outcome.counts),
        lead=lead(outcome.counts),
        device=origin["device"]["name"],
        date=origin["date"],
        commit=origin["commit"],
        facts=facts,
    )


def write(path: Path, outcome: Outcome) -> None:
    """Write the page of a run that recorded its mistakes; raise LenetError if that fails."""
    content = section(outcome.counts, outcome.mistakes)
    page = base.render("mistakes_page.html.j2", head=_head(outcome), content=content)
    base.write_page(path, page)


def draw(path: Path, outcome: Outcome) -> None:
    """Write the picture of a run that recorded its mistakes; raise LenetError if that fails."""
    assert outcome.mistakes is not None
    origin, mistakes = _head(outcome), outcome.mistakes
    facts = ", ".join(f"{name} {value}" for name, value in origin.shown.items())
    drawn = {"Images by true label (rows) and predicted label (columns)": _matrix(outcome.counts)}
    if len(mistakes.worst):
        title = (
            f"The mistakes. {bounded(len(mistakes.worst), len(mistakes.rows))} Below each: the "
            "predicted label and its probability, the second choice, the image's number from 0."
        )
        drawn[title] = _gallery(mistakes)
    charts.save(path, [origin.title, origin.lead, *textwrap.wrap(facts, 150, max_lines=3)], drawn)


def _text(rows: Any, field: str, colour: str = _INK, **encoding: Any) -> Spec:
    return charts.layer(rows, {"type": "text", "color": colour}, text={"field": field}, **encoding)


def _matrix(counts: Any) -> Spec:
    rows = [
        cell | {"is": label, "read": read, "shown": f"{cell['images']:,}" if cell["images"] else ""}
        for label, row in enumerate(_cells(counts))
        for read, cell in enumerate(row)
    ]
    right = [
        {"is": row["digit"], "read": "right", "shown": share(row["accuracy"])}
        for row in per_digit(counts)
    ]
    x = charts.names("read") | {"axis": {"orient": "top", "labelAngle": 0}}
    x["scale"] = {"domain": [*range(len(counts)), "right"]}
    tint = charts.colour("kind", ("right", "wrong"))
    tint["scale"]["range"], tint["legend"] = [_RIGHT, _WRONG], None
    level: Spec = {"field": "level", "type": "quantitative", "legend": None}
    level["scale"] = {"domain": [0, 1], "range": [0, 1]}
    cells = charts.layer(None, "cell", color=tint, opacity=level)
    layers = [cells, _text(None, "shown"), _text(right, "shown", _SOFT)]
    return charts.spec(rows, 320, encoding={"x": x, "y": charts.names("is")}, layer=layers)


def _gallery(gallery: Gallery) -> Spec:
    """Return the worst mistakes in rows, dark ink on a light ground, with captions."""
    wide, high = _TILE
    rows = []
    for rank, (row, image) in enumerate(zip(gallery.worst, gallery.images, strict=True)):
        down, across = divmod(rank, _ACROSS)
        rows.append(
            {
                "x": across * wide + _SIDE / 2,
                "y": down * high + _SIDE / 2,
                "image": base.png_uri(255 - image),
                "read": f"{row['label']} read as {row['predicted']}",
                "sure": f"{probability(row['probability'])}, then {row['runner_up']}",
                "number": f"{row['index']:,}",
            }
        )
    size = (_ACROSS * wide, -(-len(rows) // _ACROSS) * high)
    ends = [{"domain": [0, size[0]]}, {"domain": [size[1], 0]}]
    x, y = (
        charts.quantity(field, None, axis=None, scale=scale | {"nice": False})
        for field, scale in zip("xy", ends, strict=True)
    )
    picture = {"type": "image", "width": _SIDE, "height": _SIDE}
    layers = [charts.layer(None, picture, url={"field": "image", "type": "nominal"})]
    colours = {"read": _READ, "sure": _INK, "number": _SOFT}
    for line, field in enumerate(colours):
        text = _text(None, field, colours[field])
        text["mark"] |= {"dy": _SIDE / 2 + 9 + 12 * line, "fontSize": 10}
        layers.append(text)
    return charts.spec(rows, size[1], encoding={"x": x, "y": y}, layer=layers) | {"width": size[0]}
