"""Pictures' labels for people: a table, the digits as the network saw them, a count a digit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import one_line
from lenetgpu.network import CLASSES, PIXEL_SCALE
from lenetgpu.show.tables import Column, as_rich, percent, used

if TYPE_CHECKING:
    from lenetgpu.show.console import Console

MOST = 30
"""Images that have a row of their own; of more the digits are counted."""
_GAP = 2
_BRAILLE, _DOTS = 0x2800, ((0, 1, 2, 6), (3, 4, 5, 7))
_SHADES = " .:*#"
_LEAST_NAME = 12
_NARROW = 70
_REST = 48
"""Characters of the table beside a file's name and its notes."""


def print_pictures(console: Console, rows: Sequence[dict[str, Any]], images: Any) -> None:
    """Up to MOST rows as a table, their `images` (N, 28, 28, 1) drawn; more as a count a digit."""
    if len(rows) > MOST:
        _print_counts(console, rows)
        return
    shown = [
        {
            "number": number,
            "file": _shortened(row["file"], max(_LEAST_NAME, console.width - _REST)),
            "digit": row["label"],
            "probability": row["probability"],
            "runner_up": f"{row['runner_up']['label']} {percent(row['runner_up']['probability'])}",
            "note": "; ".join(row["notes"]) or None,
        }
        for number, row in enumerate(rows, 1)
    ]
    likely, second = ("prob.", "next") if console.width < _NARROW else ("probability", "runner-up")
    columns = (
        Column("", "number"),
        Column("file", "file", numeric=False),
        Column("digit", "digit"),
        Column(likely, "probability", percent),
        Column(second, "runner_up"),
        Column("note", "note", numeric=False),
    )
    console.print(as_rich(used(columns, shown), shown, width=console.width))
    for line in drawn(images, [row["label"] for row in rows], console.width, _encodes(_BRAILLE)):
        console.print(line, highlight=False, soft_wrap=True)


def _print_counts(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    counts = [0] * CLASSES
    least = [1.0] * CLASSES
    for row in rows:
        counts[row["label"]] += 1
        least[row["label"]] = min(least[row["label"]], row["probability"])
    shown = [
        {"digit": digit, "images": counts[digit], "least": least[digit]}
        for digit in range(CLASSES)
        if counts[digit]
    ]
    columns = (
        Column("digit", "digit"),
        Column("images", "images", "{:,}".format),
        Column("least sure", "least", percent),
    )
    console.print(as_rich(columns, shown, width=console.width))


def drawn(images: Any, labels: Sequence[int], width: int, braille: bool) -> list[str]:
    """Lines of at most `width` characters: `images` (N, 28, 28, 1) beside each other, numbered.

    Each is 14 characters by 7: a dot a pixel in braille, else a shade for each 2x4 pixels.
    """
    import numpy as np

    pixels = np.asarray(images, np.float32).reshape(len(labels), *images.shape[1:3])
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
