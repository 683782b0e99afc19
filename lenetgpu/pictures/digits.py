"""Parts of ink put together to digits, without frames and lines; the largest is chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lenetgpu.errors import LenetError
from lenetgpu.pictures.masks import MANY, Island, blurred, edges_of, eroded, islands, stroke_of

Array = np.ndarray[Any, Any]

FRAME, LINE = "a frame was left out", "a line was left out"
_HELD, _SAME = 0.2, 0.15
"""Of a frame's size: what it holds is as large at least; its empty neighbours differ by it."""
_RIM, _ON_RIM = 0.07, 0.9
"""Of a box's side: how far from it a frame's ink lies; how much of the ink does."""
_STRAIGHT, _LONGER, _OTHER, _APART = 8.0, 1.25, 0.25, 0.08
"""A line is so many times longer than wide, and longer than what it stands by; that is a share of
it at least, and so far from it."""


def digits_only(parts: list[Island], numbers: Array) -> tuple[list[Island], list[str]]:
    """`parts` of `numbers` (H, W) without frames and lines, and what was left out in words."""
    rims = [one for one in parts if one.height > 8 and one.width > 8 and _is_rim(one, numbers)]
    frames = [one for one in rims if any(_holds(one, other) for other in parts)]
    frames += [one for one in rims if any(_alike(one, other) for other in frames)]
    kept = [one for one in parts if one not in frames]
    straight = [one for one in kept if one.size > 8 and _is_straight(one, numbers)]
    others = [one for one in kept if one not in straight]
    lines = [one for one in straight if any(_is_beside(one, other) for other in others)]
    said = [FRAME] * bool(frames) + [LINE] * bool(lines)
    return [one for one in kept if one not in lines], said


def _inside(one: Island, numbers: Array) -> tuple[Array, Array]:
    """Rows and columns of an island's pixels, (n,) each, from its box's corner."""
    box = numbers[one.top : one.bottom, one.left : one.right]
    rows, columns = (box == one.number).nonzero()
    return rows, columns


def _is_rim(one: Island, numbers: Array) -> bool:
    """Whether it is the outline of its box, or of the ellipse in it, on all sides."""
    if one.mass > 0.4 * one.height * one.width:
        return False
    rows, columns = _inside(one, numbers)
    y, x = 2 * (rows + 0.5) / one.height - 1, 2 * (columns + 0.5) / one.width - 1
    angles = np.histogram(np.arctan2(y, x), 16, (-np.pi, np.pi))[0]
    square, round_ = np.maximum(np.abs(y), np.abs(x)), np.hypot(y, x)
    on = max(float((far > 1 - 2 * _RIM).mean()) for far in (square, np.minimum(round_, 2 - round_)))
    return bool(angles.min() > 0) and on > _ON_RIM


def _holds(one: Island, other: Island) -> bool:
    return (
        other.size >= _HELD * one.size
        and one.top < other.top
        and one.left < other.left
        and one.bottom > other.bottom
        and one.right > other.right
    )


def _alike(one: Island, other: Island) -> bool:
    most = _SAME * other.size
    return (
        one is not other
        and abs(one.height - other.height) <= most
        and abs(one.width - other.width) <= most
    )


def _is_straight(one: Island, numbers: Array) -> bool:
    """Whether it is many times longer than wide, whichever way it lies."""
    places = np.stack(_inside(one, numbers)).astype(np.float64)
    places -= places.mean(axis=1, keepdims=True)
    yy, xx, yx = (float((places[a] * places[b]).mean()) for a, b in ((0, 0), (1, 1), (0, 1)))
    half, turn = (yy + xx) / 2, float(np.hypot((yy - xx) / 2, yx))
    across = max(half - turn, 1 / 12)
    return half + turn > _STRAIGHT**2 * across


def _is_beside(line: Island, other: Island) -> bool:
    """Whether it is longer than the other, which is no speck, and apart from it."""
    down = max(line.top - other.bottom, other.top - line.bottom)
    wide = max(line.left - other.right, other.left - line.right)
    return (
        line.size >= _LONGER * other.size
        and other.size >= _OTHER * line.size
        and max(down, wide) >= _APART * line.size
    )


_SPECK, _LIKE, _NEAR = 0.12, 0.5, 0.35
"""Of the largest part's size: what is smaller is a speck; from what on it is a digit of its own;
within what distance it belongs to the largest."""
_JAGGED = 40
"""Times its size that a digit's edges are long, at most: an 8's are ten times."""
_ALONG = 0.15
"""Of the picture's border: what covers more, and touches two sides, is more of a shadow."""
_RULED, _SOLID, _CUT, _SHAPE = 0.05, 0.3, 0.24, 0.45
"""Of a digit's size: a page's lines are narrower than this; strokes that are wider are none, are
none where borders cut them off, are a solid shape for sure."""


_MOST, _SOME, _THIN, _PIECES = 0.4, 0.2, 2.5, 60
"""Of full ink, averaged over 3x3: from what on it is a stroke's; where strokes are narrower than so
many pixels, which an average thins out, and lie in so many pieces at most: more are noise."""


_ALONG_SHEET = 0.5
"""Of its size: what lies further along a sheet's edge is that edge, or what is beside the sheet."""


@dataclass
class Digit:
    """Islands that make a digit, their box, and of the one that is taken the mask (H, W)."""

    parts: list[Island]
    mask: Array = field(default_factory=lambda: np.zeros((0, 0), bool))
    said: list[str] = field(default_factory=list)
    """What was left out beside it, in words."""

    @property
    def stroke(self) -> float:
        """About how many pixels wide its strokes are."""
        return stroke_of(self.mask)

    @property
    def doubtful(self) -> bool:
        """Whether it is more of a sheet, a shadow or lines: solid, or cut off by two borders."""
        if self.cut < 2:
            return self.width > _SOLID
        return self.along > _ALONG or not _RULED < self.width < _CUT

    @property
    def solid(self) -> bool:
        """Whether it has no strokes at all: a square, a disc, half of the picture."""
        return self.width > (_SOLID if self.cut >= 3 else _SHAPE)

    @property
    def width(self) -> float:
        """Its strokes' width, of its size."""
        top, bottom, left, right = self.box
        return self.stroke / max(bottom - top, right - left)

    @property
    def along(self) -> float:
        """How much of the picture's border its ink covers: a shadow's much, a digit's little."""
        sides = (self.mask[0], self.mask[-1], self.mask[:, 0], self.mask[:, -1])
        return float(sum(side.sum() for side in sides)) / (2 * sum(self.mask.shape))

    @property
    def cut(self) -> int:
        """How many of the picture's borders it touches."""
        top, bottom, left, right = self.box
        height, width = self.mask.shape
        return int((top == 0) + (left == 0) + (bottom == height) + (right == width))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Rows top to bottom, columns left to right."""
        return (
            min(part.top for part in self.parts),
            max(part.bottom for part in self.parts),
            min(part.left for part in self.parts),
            max(part.right for part in self.parts),
        )


def digits_of(ink: Array, sheet: Array | None = None, lines: bool = False) -> list[Digit]:
    """The digits of `ink` (H, W), the largest first, its mask made; LenetError of none.

    What touches the edge of the picture, or of the `sheet` (H, W) bool, is none where others are.
    `lines`: the ink is what `lines_of` found, whose faint rims are no strokes.
    """
    smooth = blurred(ink)
    mask = smooth > _MOST
    parts, numbers = islands(mask)
    if not lines and smooth is not ink and 0 < len(parts) <= _PIECES and stroke_of(mask) < _THIN:
        parts, numbers = islands(smooth > _SOME)
    parts, said = digits_only(_inner(parts, numbers, sheet), numbers)
    if not parts:
        raise LenetError("expected a digit, found a blank picture")
    whole, largest = sum(part.mass for part in parts), max(part.size for part in parts)
    parts = [part for part in parts if part.size >= max(1, _SPECK * largest)]
    parts.sort(key=lambda part: -part.size * part.mass)
    digits = [Digit([parts[0]])]
    for part in parts[1:]:
        near = min(digits, key=lambda digit: _gap(digit.box, part))
        alike = part.size >= _LIKE * digits[0].parts[0].size
        if _beside(near.parts[0], part) and alike:
            digits.append(Digit([part]))
        elif _gap(near.box, part) <= _NEAR * near.parts[0].size:
            near.parts.append(part)
        elif alike:
            digits.append(Digit([part]))
    share = sum(part.mass for digit in digits for part in digit.parts) / whole
    if len(digits) > 12 or share < 0.15:
        raise LenetError(f"expected a digit, found ink in {len(parts):,} places")
    chosen = np.isin(numbers, [part.number for part in digits[0].parts])
    digits[0].mask, digits[0].said = chosen, said
    if edges_of(digits[0].mask) > _JAGGED * max(largest, MANY):
        raise LenetError("expected a digit, found only noise")
    return digits


def _inner(parts: list[Island], numbers: Array, sheet: Array | None) -> list[Island]:
    """`parts` without those at the picture's border, where one of a fair size is not there."""
    if sheet is None:
        height, width = numbers.shape
        inner = [
            part
            for part in parts
            if part.top > 0 and part.left > 0 and part.bottom < height and part.right < width
        ]
    else:
        rim = ~eroded(sheet, 2) & (numbers >= 0)
        along = np.bincount(numbers[rim], minlength=len(parts))
        inner = [part for part in parts if along[part.number] <= _ALONG_SHEET * part.size]
    largest = max((part.size for part in parts), default=0)
    return inner if max((part.size for part in inner), default=0) >= 0.25 * largest else parts


def _beside(one: Island, other: Island) -> bool:
    """Whether two parts stand in a line, each at its own columns."""
    rows = min(one.bottom, other.bottom) - max(one.top, other.top)
    columns = min(one.right, other.right) - max(one.left, other.left)
    return columns <= 0 and rows >= 0.5 * min(one.height, other.height)


def _gap(box: tuple[int, int, int, int], part: Island) -> float:
    top, bottom, left, right = box
    down = max(part.top - bottom, top - part.bottom, 0)
    across = max(part.left - right, left - part.right, 0)
    return float(max(down, across))
