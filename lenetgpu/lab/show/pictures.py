"""Pictures' labels for people: a table, the digits as the network saw them, a count a digit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import one_line
from lenetgpu.lab.show.mistakes.lines import probability
from lenetgpu.lab.show.tables import Column, as_rich, fitting, used
from lenetgpu.measure.outcome import FEW
from lenetgpu.network import CLASSES, PIXEL_SCALE

if TYPE_CHECKING:
    from lenetgpu.lab.show.console import Console

_GAP = 2
_BRAILLE, _DOTS = 0x2800, ((0, 1, 2, 6), (3, 4, 5, 7))
_SHADES = " .:*#"
_LEAST_NAME = 12
_NARROW = 70
_REST = 48
"""Characters of the table beside a file's name and its notes."""


def print_pictures(console: Console, rows: Sequence[dict[str, Any]], images: Any) -> None:
    """Up to FEW rows as a table, the first of `images` (N, 28, 28, 1) drawn; more as counts."""
    if len(rows) > FEW:
        sure = [row["probability"] for row in rows]
        print_counts(console, [row["label"] for row in rows], sure)
        return
    shown = [
        {
            "number": number,
            "file": _shortened(row["file"], max(_LEAST_NAME, console.width - _REST)),
            "digit": row["label"],
            "probability": row["probability"],
            "runner_up": _sure(row["runner_up"]),
            "note": "; ".join(row["notes"]) or None,
        }
        for number, row in enumerate(rows, 1)
    ]
    likely, second = ("prob.", "next") if console.width < _NARROW else ("probability", "runner-up")
    columns = used(
        (
            Column("", "number"),
            Column("file", "file", numeric=False),
            Column("digit", "digit"),
            Column(likely, "probability", probability),
            Column(second, "runner_up"),
            Column("note", "note", numeric=False),
        ),
        shown,
    )
    left = [one for one in columns if one not in fitting(columns, shown, console.width)]
    below = any(one.key == "note" for one in left)
    columns = tuple(one for one in columns if not (below and one.key == "note"))
    console.print(as_rich(columns, shown, width=console.width))
    if below:
        for line in _notes(rows):
            console.print(line, highlight=False, soft_wrap=True)
        console.print("", highlight=False)
    for line in drawn(images, [row["label"] for row in rows], console.width, _encodes(_BRAILLE)):
        console.print(line, highlight=False, soft_wrap=True)


def _sure(one: dict[str, Any]) -> str:
    return f"{one['label']} {probability(one['probability'])}"


def _notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each note, with the numbers of the rows that have it."""
    having: dict[str, list[int]] = {}
    for number, row in enumerate(rows, 1):
        for note in row["notes"]:
            having.setdefault(note, []).append(number)
    return [f"note     {_numbers(numbers)}: {note}" for note, numbers in having.items()]


def _numbers(numbers: Sequence[int]) -> str:
    """Ascending numbers as 1-3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def print_counts(
    console: Console, labels: Sequence[int], likely: Sequence[float] | None = None
) -> None:
    """How many images are each digit, and the least of their probabilities where there are any."""
    shown: list[dict[str, Any]] = [
        {"digit": digit, "images": labels.count(digit)}
        for digit in range(CLASSES)
        if digit in labels
    ]
    for row in shown if likely is not None else ():
        of = zip(labels, likely or (), strict=True)
        row["least"] = min(one for label, one in of if label == row["digit"])
    columns = (
        Column("digit", "digit"),
        Column("images", "images", "{:,}".format),
        Column("least sure", "least", probability),
    )
    console.print(as_rich(used(columns, shown), shown, width=console.width))


def drawn(images: Any, labels: Sequence[int], width: int, braille: bool) -> list[str]:
    """Lines of at most `width` characters: `images` (N, 28, 28, 1) beside each other, numbered.

    Each is 14 characters by 7: a dot a pixel in braille, else a shade for each 2x4 pixels. Images
    behind those that have labels are not drawn.
    """
    import numpy as np

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
    """One image (28, 28) of floats from 0 to 1 as rows of characters."""
    height, width = pixels.shape
    cells = pixels.reshape(height // 4, 4, width // 2, 2).transpose(0, 2, 3, 1)
    if not braille:
        shades = (
            (cells.mean(axis=(2, 3)) * len(_SHADES) * 1.3).astype(int).clip(0, len(_SHADES) - 1)
        )
        return ["".join(_SHADES[shade] for shade in row) for row in shades]
    dots = cells >= 0.5
    lines = []
    for row in dots:
        codes = [
            sum(
                1 << bit
                for side, bits in enumerate(_DOTS)
                for y, bit in enumerate(bits)
                if cell[side][y]
            )
            for cell in row.tolist()
        ]
        lines.append("".join(chr(_BRAILLE + code) for code in codes))
    return lines


def _encodes(code: int) -> bool:
    """Whether stdout takes the character of this code."""
    try:
        chr(code).encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _shortened(name: str, most: int) -> str:
    """`name` as a terminal may have it, of at most so many characters; its end is what counts."""
    shown = one_line(name)
    return shown if len(shown) <= most else "..." + shown[3 - most :]
