"""`lenetgpu infer` on individual pictures: gather them, label them, and show the results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.arrays import np
from lenetgpu.check.mistakes import probabilities
from lenetgpu.errors import LenetError, one_line, unexpected
from lenetgpu.files.assets import default_digits
from lenetgpu.files.output import LabelWriter
from lenetgpu.lab.infer import infer
from lenetgpu.lab.mistakes import probability
from lenetgpu.measure.outcome import FEW, Outcome, Progress, Request
from lenetgpu.measure.timing import Phases
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.pictures.given import Expanded, Gathered, gather

if TYPE_CHECKING:
    from lenetgpu.lab.tables import Part, Table

_GAP = 2
_BRAILLE, _DOTS = 0x2800, ((0, 1, 2, 6), (3, 4, 5, 7))
_SHADES = " .:*#"
# Minimum width of a name, width of a narrow terminal, width of the columns besides name and note
_LEAST_NAME, _NARROW, _OTHERS = 12, 70, 48


@dataclass(frozen=True)
class Classified:
    """The result of classifying pictures: the run and its inputs; the first `done` are labelled."""

    outcome: Outcome
    found: Gathered
    images: Any  # (N, 28, 28, 1), the network's input
    likely: Any  # probabilities (done, 10) float64

    @classmethod
    def of_file(cls, outcome: Outcome) -> Classified | None:
        """Return the result for a file with few images, or None if it has more."""
        if outcome.images is None or outcome.scores is None:
            return None
        gathered, first = Gathered(), outcome.request.skip
        name = outcome.request.data or default_digits().name
        names = [f"{name}[{number}]" for number in range(first, first + outcome.requested)]
        gathered.add(outcome.images, None, names)
        return cls(outcome, gathered, outcome.images, probabilities(outcome.scores))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per image: file, label, probability, runner-up, notes."""
        rows = []
        for number, label in enumerate(self.outcome.labels.tolist()):
            likely = self.likely[number].tolist()
            second = max((k for k in range(len(likely)) if k != label), key=likely.__getitem__)
            row = {"file": self.found.names[number], "label": label, "probability": likely[label]}
            row["runner_up"] = {"label": second, "probability": likely[second]}
            rows.append(row | {"notes": list(self.found.notes[number])})
        return rows

    def as_json(self) -> dict[str, Any]:
        """Return the additional JSON keys: the rows, and a sentence per bad picture."""
        return {"rows": self.rows(), "bad": self.found.bad}


def gathered(request: Request, files: Expanded, as_is: bool, advance: Progress) -> Gathered:
    """Return the images of `files` that the request selects."""
    request.check()
    phases = Phases()
    with phases.timed("load"):
        skip, limit = request.skip, request.limit
        images = gather(files.paths, as_is, skip, limit, advance, request.orientation)
    images.bad[:0] = files.bad
    images.took_ms = phases["load"]
    return images


def classify(
    request: Request, found: Gathered, progress: Progress | None = None, output: Path | None = None
) -> Classified:
    """Label the gathered images, and write labels and names to `output`; raises as `infer`."""
    if not found.names and not found.bad:
        raise unexpected(f"--skip {request.skip}", "more images than are skipped", "fewer")
    if not found.names:
        bad = f"expected one that can be classified, found {len(found.bad):,} that cannot"
        raise LenetError(found.bad[0] if len(found.bad) == 1 else f"pictures: {bad}")
    request.check_labels(None if found.unlabelled else (), found.unlabelled or "")
    whole = replace(request, scores=True, each=False, skip=0, limit=None)
    source = found.source(request.skip)
    outcome = infer(whole, progress, None, source)
    outcome.phases["load"] = outcome.phases.get("load", 0.0) + found.took_ms
    if output is not None:
        count, scores = outcome.done, outcome.scores if request.scores else None
        with LabelWriter(output, count, request.scores, request.skip, found.names) as writer:
            writer.write(outcome.labels, scores)
            writer.close(outcome.requested if outcome.interrupted else None)
    return Classified(outcome, found, source.images, probabilities(outcome.scores))


def parts(rows: Sequence[dict[str, Any]], images: Any, width: int) -> Iterator[Part]:
    """Yield one row as its answer, up to FEW as a table, with `images` (N, 28, 28, 1) drawn.

    More rows are yielded as counts.
    """
    from lenetgpu.lab.tables import Table, from_file

    if len(rows) > FEW:
        yield counts([row["label"] for row in rows], [row["probability"] for row in rows])
        return
    most = max(_LEAST_NAME, width - _OTHERS)  # characters of a file's name
    shown = [
        row
        | {
            "number": number,
            "file": name if len(name) <= most else "..." + name[3 - most :],
            "second": f"{row['runner_up']['label']} {probability(row['runner_up']['probability'])}",
            "note": "; ".join(row["notes"]) or None,
        }
        for number, row in enumerate(rows, 1)
        for name in [one_line(row["file"])]
    ]
    name = "pictures, narrow" if width < _NARROW else "pictures"
    table = Table(from_file(name, share=probability), shown, below="note")
    if len(rows) == 1:
        yield from answers(rows)
        yield from map("note     {}".format, rows[0]["notes"])
    else:
        yield table
    if len(rows) == 1 or table.notes():
        yield ""
    yield from drawn(images, [row["label"] for row in rows], width, _encodes(_BRAILLE))[:-1]


def answers(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line per row: its name, label and probability."""
    for row in rows:
        yield f"{row['file']}: {row['label']} ({probability(row['probability'])})"


def counts(labels: Sequence[int], likely: Sequence[float] = ()) -> Table:
    """Return a table of images per digit, with each digit's lowest probability if known."""
    from lenetgpu.lab.tables import Table, from_file

    shown = []
    for digit, images in sorted(Counter(labels).items()):
        own = [one for label, one in zip(labels, likely, strict=False) if label == digit]
        shown.append({"digit": digit, "images": images, "least": min(own, default=None)})
    return Table(from_file("digits", share=probability), shown)


def drawn(images: Any, labels: Sequence[int], width: int, braille: bool) -> list[str]:
    """Return `images` (N, 28, 28, 1) and `labels` in lines of `width`, 14 by 7 characters each."""
    pixels = np.asarray(images[: len(labels)], np.float32).reshape(-1, *images.shape[1:3])
    if images.dtype == np.uint8:
        pixels = pixels / np.float32(PIXEL_SCALE)
    across = images.shape[2] // 2
    at_once = max(1, (width + _GAP) // (across + _GAP))
    lines = []
    for first in range(0, len(labels), at_once):
        part = range(first, min(len(labels), first + at_once))
        heads = [f"{number + 1}: {labels[number]}".ljust(across) for number in part]
        pictures = [_characters(pixels[number], braille) for number in part]
        for pieces in (heads, *zip(*pictures, strict=True)):
            lines.append((" " * _GAP).join(pieces)[:width].rstrip())
        lines.append("")
    return lines


def _characters(pixels: Any, braille: bool) -> list[str]:
    """Return one image (28, 28) of floats from 0 to 1 as rows of characters."""
    height, width = pixels.shape
    cells = pixels.reshape(height // 4, 4, width // 2, 2).transpose(0, 2, 3, 1)
    if not braille:
        levels = (cells.mean(axis=(2, 3)) * len(_SHADES) * 1.3).astype(int)
        return ["".join(_SHADES[min(max(k, 0), len(_SHADES) - 1)] for k in row) for row in levels]
    codes = (cells >= 0.5).reshape(height // 4, width // 2, 8) @ (1 << np.array(_DOTS).ravel())
    return ["".join(chr(_BRAILLE + code) for code in row) for row in codes.tolist()]


def _encodes(code: int) -> bool:
    try:
        chr(code).encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
