"""The ten scores of each image, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.lab.show.tables import Column, as_rich, fixed

if TYPE_CHECKING:
    from rich.console import Console

    from lenetgpu.measure.outcome import Outcome

MOST = 20
"""Images whose scores are printed; a file takes those of all."""
_LEAST_WIDTH = 100


def score_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """The first MOST images with their number in the data set, label, true label and scores."""
    rows = []
    for index in range(0 if outcome.scores is None else min(outcome.done, MOST)):
        row = {"image": outcome.request.skip + index, "label": int(outcome.labels[index])}
        if outcome.truth is not None:
            row["truth"] = int(outcome.truth[index])
        rows.append(row | {f"score {k}": float(s) for k, s in enumerate(outcome.scores[index])})
    return rows


def print_scores(console: Console, outcome: Outcome) -> None:
    """A row an image, or in a narrow terminal a paragraph; what is left out is said with a way."""
    if outcome.scores is None:
        console.print(
            "scores   none were kept of so many images: --output FILE.csv writes them, --limit N "
            "prints the first",
            highlight=False,
        )
        return
    rows = score_rows(outcome)
    if console.width >= _LEAST_WIDTH:
        known = (Column("truth", "truth"),) if outcome.truth is not None else ()
        each = (Column(f"of {k}", f"score {k}", fixed(2)) for k in range(outcome.scores.shape[1]))
        columns = (Column("image", "image"), Column("label", "label"), *known, *each)
        console.print(as_rich(columns, rows, "scores", width=console.width))
    else:
        for row in rows:
            truth = f" (truth {row['truth']})" if "truth" in row else ""
            scores = [f"{key[6:]}={row[key]:.2f}" for key in row if key.startswith("score ")]
            console.print(
                f"image {row['image']}  label {row['label']}{truth}, scores {', '.join(scores)}",
                highlight=False,
            )
    left = outcome.done - len(rows)
    if left:
        console.print(
            f"scores   of {left:,} more images: --output FILE.csv writes all, --skip N begins "
            "later",
            highlight=False,
        )
