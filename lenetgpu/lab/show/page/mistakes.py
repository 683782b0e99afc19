"""Mistakes as a page, or as a part of one: who was read as whom, and the wrong images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import confusions, per_digit
from lenetgpu.lab.show.mistakes.lines import bounded, probability, share
from lenetgpu.lab.show.mistakes.told import told
from lenetgpu.lab.show.page import base
from lenetgpu.lab.show.page.digits import sheet

if TYPE_CHECKING:
    from lenetgpu.check.mistakes import Gallery
    from lenetgpu.measure.outcome import Outcome

_PAIRS = 8


def section(counts: Any, gallery: Gallery | None = None) -> Any:
    """A part of a page, as Markup: sections with the matrix and, where there is one, the gallery.

    `counts` (10, 10) as `confusion` or `counts_of` give them. What it looks like is in style.css.
    """
    digits = {row["digit"]: share(row["accuracy"]) for row in per_digit(counts)}
    return base.fragment(
        "mistakes.html.j2",
        rows=_cells(counts),
        digits=digits,
        pairs=confusions(counts)[:_PAIRS],
        wrong=int(counts.sum() - counts.trace()),
        tiles=None if gallery is None else _tiles(gallery),
        sheet=None if gallery is None else sheet(gallery.images),
        bounded="" if gallery is None else bounded(len(gallery.worst), len(gallery.rows)),
    )


def _cells(counts: Any) -> list[list[dict[str, Any]]]:
    """Each cell's count and how deep its colour is: the root of its share of the most.

    Right ones and wrong ones have a scale each, so that few mistakes show beside many that are
    right.
    """
    rows = counts.tolist()
    most_right = max(rows[digit][digit] for digit in range(len(rows)))
    most_wrong = max((pair["images"] for pair in confusions(counts)), default=1)
    return [
        [
            {
                "images": images,
                "kind": "right" if label == predicted else "wrong",
                "level": round(
                    (images / ((most_right if label == predicted else most_wrong) or 1)) ** 0.5, 3
                ),
            }
            for predicted, images in enumerate(row)
        ]
        for label, row in enumerate(rows)
    ]


def _tiles(gallery: Gallery) -> list[dict[str, Any]]:
    names = gallery.worst.dtype.names
    return [
        dict(zip(names, row, strict=True))
        | {
            "sure": probability(row[names.index("probability")]),
            "second": probability(row[names.index("runner_up_probability")]),
        }
        for row in gallery.worst.tolist()
    ]


def write(path: Path, outcome: Outcome) -> None:
    """The page of a run that kept its mistakes; LenetError where it cannot be written."""
    content = section(outcome.counts, outcome.mistakes)
    base.write_page(path, base.render("mistakes_page.html.j2", told(outcome), content=content))
