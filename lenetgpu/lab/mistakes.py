"""What a run reads wrong: noted as it comes, said in lines, listed or drawn in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.check.mistakes import ROW, Gallery, Mistakes, confusions, gallery, per_digit
from lenetgpu.errors import LenetError, require_extra
from lenetgpu.files.output import replacing

if TYPE_CHECKING:
    from lenetgpu.files.output import LabelWriter
    from lenetgpu.files.reading import Source
    from lenetgpu.measure.outcome import Outcome

ENDINGS = (".png", ".html", ".csv")
_EXTRAS = {".png": ("vl_convert", "report")}
_COLUMNS = (
    "index",
    "label",
    "predicted",
    "probability",
    "label_probability",
    "runner_up",
    "runner_up_probability",
)
_ROWS = 1 << 15
_PAIRS = 5
_LABEL = 9
"""Characters before a summary line's words."""


class Noting:
    """A writer of labels that hands them to `inner`, where there is one, and notes the wrong ones.

    `inner` gets scores where it takes them. `source` has the images, with labels.
    """

    with_scores = True

    def __init__(self, source: Source, inner: LabelWriter | None) -> None:
        self._source, self._inner, self._count = source, inner, 0
        self._mistakes = Mistakes(source.labels, source.chosen.start)

    @property
    def done(self) -> int:
        """Labels that were written so far, or noted where none are written."""
        return self._count if self._inner is None else self._inner.done

    def write(self, labels: Any, scores: Any) -> None:
        """The next labels (n,) with their scores (n, 10), in order; LenetError as of a writer."""
        self._mistakes.add(self.done, labels, scores)
        if self._inner is not None:
            self._inner.write(labels, scores if self._inner.with_scores else None)
        self._count += len(labels)

    def close(self, asked: int | None = None) -> None:
        """Close the file where there is one; `asked` as LabelWriter has it."""
        if self._inner is not None:
            self._inner.close(asked)

    def found(self, done: int) -> Gallery:
        """The wrong ones of the first `done` images; the worst are read once more."""
        return gallery(self._mistakes.rows(done), self._source)


def share(part: float, places: int = 1) -> str:
    """A share as a percentage; what is not all is not 100%, nor is a little 0%."""
    if part in (0, 1):
        return f"{part:.0%}"
    least = 10.0 ** -(places + 2)
    return f"{min(max(part, least), 1 - least):.{places}%}"


def probability(value: float) -> str:
    """A probability as a percentage of one decimal, its ends said as bounds."""
    if value >= 0.9995:
        return ">99.9%"
    return "<0.1%" if value < 0.0005 else f"{value:.1%}"


def lines(counts: Any, width: int) -> Iterator[str]:
    """Lines of `width` characters at most about a (10, 10) of `confusion`; none where all is right.

    The share of each digit that is right, and the pairs that are confused most.
    """
    pairs = confusions(counts)
    if not pairs:
        return
    digits = [f"{row['digit']} {share(row['accuracy'])}" for row in per_digit(counts)]
    yield from _folded("digits", digits, width)
    words = [
        f"{pair['label']} read as {pair['predicted']}: {pair['images']:,}"
        for pair in pairs[:_PAIRS]
    ]
    others = pairs[_PAIRS:]
    if others:
        noun = "pair" if len(others) == 1 else "pairs"
        total = sum(pair["images"] for pair in others)
        words.append(f"{len(others)} other {noun}: {total:,}")
    yield from _folded("mistakes", words, width)


def _folded(name: str, words: list[str], width: int) -> Iterator[str]:
    """`words` with commas behind `name`, on as few lines as `width` allows."""
    line = f"{name:<{_LABEL}}"
    for number, word in enumerate(words):
        piece = word + ("," if number + 1 < len(words) else "")
        if len(line.rstrip()) > _LABEL and len(line) + len(piece) > width:
            yield line.rstrip()
            line = " " * _LABEL
        line += piece + " "
    yield line.rstrip()


def title(counts: Any) -> str:
    """How many of the images were read wrong."""
    images, wrong = int(counts.sum()), int(counts.sum() - counts.trace())
    noun = "digit" if images == 1 else "digits"
    return f"{format(wrong, ',') if wrong else 'None'} of {images:,} {noun} read wrong"


def lead(counts: Any) -> str:
    """The share that is right, and the pair that is confused most."""
    right = f"{share(float(counts.trace() / counts.sum()), 2)} are read right."
    pairs = confusions(counts)
    if not pairs:
        return right
    most = pairs[0]
    times = "once" if most["images"] == 1 else f"{most['images']:,} times"
    pair = f"{most['label']} read as {most['predicted']}"
    return f"{right} The most frequent mistake is {pair}, {times}."


def bounded(shown: int, total: int) -> str:
    """How many of the wrong ones are shown, and which."""
    if total == 1:
        return "One mistake."
    if shown == total:
        return f"All {total:,} shown, the surest mistakes first."
    return f"{shown:,} of {total:,} shown, the surest mistakes."


def check_errors(path: Path) -> None:
    """Raise LenetError unless mistakes can be written in the form that `path` ends in."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise LenetError(
            f"--errors {path}: expected a name ending in {', '.join(ENDINGS[:-1])} or "
            f"{ENDINGS[-1]}, found {path.suffix or 'no ending'}"
        )
    if ending in _EXTRAS:
        require_extra("--errors", *_EXTRAS[ending])


def write_errors(path: Path, outcome: Outcome) -> None:
    """Write what a run read wrong, whole or not at all; LenetError where it cannot be written."""
    assert outcome.mistakes is not None
    if path.suffix.lower() == ".csv":
        write_list(path, outcome.mistakes.rows)
        return
    from lenetgpu.lab.page import mistakes as pages

    (pages.draw if path.suffix.lower() == ".png" else pages.write)(path, outcome)


def write_list(path: Path, rows: Any) -> None:
    """A line a wrong image, in order; `rows` (k,) of ROW."""
    kinds = dict(ROW)
    line = ",".join("%.9g" if kinds[name] == "<f8" else "%d" for name in _COLUMNS) + "\n"
    with replacing(path) as made, made.open("w", encoding="ascii", newline="") as file:
        file.write(",".join(_COLUMNS) + "\n")
        for lo in range(0, len(rows), _ROWS):
            part = [rows[name][lo : lo + _ROWS].tolist() for name in _COLUMNS]
            file.writelines(line % values for values in zip(*part, strict=True))
