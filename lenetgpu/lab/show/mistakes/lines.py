"""Mistakes in words: what the summary of a run says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lenetgpu.check.mistakes import confusions, per_digit

_PAIRS = 5
_LABEL = 9
"""Characters before a summary line's words."""


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
