"""Misread images of a run: recorded as labels arrive, summarised, listed or drawn to a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import Gallery, Mistakes, confusions, gallery, per_digit
from lenetgpu.errors import require_extra, unexpected
from lenetgpu.files.forms import csv_rows
from lenetgpu.files.output import LabelWriter, replacing

if TYPE_CHECKING:
    from lenetgpu.files.reading import Source
    from lenetgpu.measure.outcome import Outcome

_COLUMNS = ["index", "label", "predicted", "probability", "label_probability"]
_COLUMNS += ["runner_up", "runner_up_probability"]
_PAIRS = 5  # most frequent confusions named in the summary
_LABEL = 9  # width of the label of a summary line


class MistakeRecorder:
    """A label writer that records mistakes and passes the labels to `inner`, if there is one."""

    with_scores = True

    def __init__(self, source: Source, inner: LabelWriter | None) -> None:
        self._source, self._inner, self._count = source, inner, 0
        self._mistakes = Mistakes(source.labels, source.selection.start)

    @property
    def done(self) -> int:
        """The number of labels written so far, or recorded if there is no `inner`."""
        return self._count if self._inner is None else self._inner.done

    def write(self, labels: Any, scores: Any) -> None:
        """Add the next labels (n,) and scores (n, 10); LenetError as of the inner writer."""
        self._mistakes.add(self.done, labels, scores)
        if self._inner is not None:
            self._inner.write(labels, scores if self._inner.with_scores else None)
        self._count += len(labels)

    def close(self, requested: int | None = None) -> None:
        """Close the file if there is one; `requested` is as in LabelWriter."""
        if self._inner is not None:
            self._inner.close(requested)

    def found(self, done: int) -> Gallery:
        """Return the mistakes among the first `done` images; the worst images are read again."""
        return gallery(self._mistakes.rows(done), self._source)


def share(part: float, places: int = 1) -> str:
    """Format a share as a percentage that shows 0% and 100% only for exactly none and all."""
    if part in (0, 1):
        return f"{part:.0%}"
    least = 10.0 ** -(places + 2)
    return f"{min(max(part, least), 1 - least):.{places}%}"


def probability(value: float) -> str:
    """Format a probability with one decimal; the extremes are <0.1% and >99.9%."""
    return ">99.9%" if value >= 0.9995 else "<0.1%" if value < 0.0005 else f"{value:.1%}"


def lines(counts: Any, width: int) -> Iterator[str]:
    """Yield lines on accuracies and confusions in `counts` (10, 10), none if all are right."""
    pairs = confusions(counts)
    if not pairs:
        return
    digits = [f"{row['digit']} {share(row['accuracy'])}" for row in per_digit(counts)]
    yield from _folded("digits", digits, width)
    shown, others = pairs[:_PAIRS], pairs[_PAIRS:]
    words = [f"{p['label']} read as {p['predicted']}: {p['images']:,}" for p in shown]
    if others:
        total = sum(pair["images"] for pair in others)
        words.append(f"{len(others)} other pair{'s' * (len(others) > 1)}: {total:,}")
    yield from _folded("mistakes", words, width)


def _folded(name: str, words: list[str], width: int) -> list[str]:
    """Return `words`, comma-separated after `name`, on as few lines as `width` allows."""
    lines = [f"{name:<{_LABEL}}"]
    for number, word in enumerate(words):
        piece = word + ("," if number + 1 < len(words) else "")
        if len(lines[-1]) > _LABEL and len(lines[-1]) + len(piece) > width:
            lines.append(" " * _LABEL)
        lines[-1] += piece + " "
    return [line.rstrip() for line in lines]


def title(counts: Any) -> str:
    """Return a title with the number of misread images."""
    images, wrong = int(counts.sum()), int(counts.sum() - counts.trace())
    noun = "digit" if images == 1 else "digits"
    return f"{format(wrong, ',') if wrong else 'None'} of {images:,} {noun} read wrong"


def lead(counts: Any) -> str:
    """Return a sentence with the accuracy and one with the most frequent confusion."""
    right = f"{share(float(counts.trace() / counts.sum()), 2)} are classified correctly."
    pairs = confusions(counts)
    if not pairs:
        return right
    most = pairs[0]
    times = "once" if most["images"] == 1 else f"{most['images']:,} times"
    pair = f"{most['label']} read as {most['predicted']}"
    return f"{right} The most frequent mistake is {pair}, {times}."


def bounded(shown: int, total: int) -> str:
    """Return a sentence that states how many of the mistakes are shown, and which."""
    if total == 1:
        return "One mistake."
    if shown == total:
        return f"All {total:,} shown, sorted by probability of the wrong label."
    return f"{shown:,} of {total:,} shown: those with the most probable wrong labels."


def check_errors(path: Path) -> None:
    """Raise LenetError unless mistakes can be written in the format of `path`."""
    ending = path.suffix.lower()
    if ending not in (".png", ".html", ".csv"):
        wanted = "a name ending in .png, .html or .csv"
        raise unexpected(f"--errors {path}", wanted, path.suffix or "no ending")
    if ending == ".png":
        require_extra("--errors", "vl_convert", "report")


def write_errors(path: Path, outcome: Outcome) -> None:
    """Write a run's mistakes atomically; raise LenetError if that fails."""
    assert outcome.mistakes is not None
    if path.suffix.lower() == ".csv":
        _write_list(path, outcome.mistakes)
        return
    from lenetgpu.lab.page import mistakes as pages

    (pages.draw if path.suffix.lower() == ".png" else pages.write)(path, outcome)


def _write_list(path: Path, found: Gallery) -> None:
    """Write a CSV line per misread image, in order."""
    rows = zip(found.names, found.rows[_COLUMNS].tolist(), strict=True)
    cells = (
        (index, name, *(f"{x:.9g}" if isinstance(x, float) else x for x in values))
        for name, (index, *values) in rows
    )
    with replacing(path) as new:
        head = _COLUMNS[0], "file", *_COLUMNS[1:]
        new.write_text(csv_rows(head, *cells), encoding="utf-8", errors="surrogateescape")
