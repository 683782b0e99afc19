"""Parts of ink joined to digits, without frames and lines; selection of the largest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lenetgpu.errors import LenetError
from lenetgpu.pictures.masks import MANY, Island, blurred, edges_of, eroded, islands, stroke_of

Array = np.ndarray[Any, Any]

FRAME, LINE = "a frame was left out", "a line was left out"
# relative to a frame's size: minimum size of its content; tolerance between empty cells
_HELD, _SAME = 0.2, 0.15
# relative to a box's side: distance of a frame's ink; share of the ink within it
_RIM, _ON_RIM = 0.07, 0.9
# a line's aspect ratio; its length relative to the part next to it; minimum relative size of that
# part, and its relative distance
_STRAIGHT, _LONGER, _OTHER, _APART = 8.0, 1.25, 0.25, 0.08


def digits_only(parts: list[Island], numbers: Array) -> tuple[list[Island], list[str]]:
    """Return `parts` of `numbers` (H, W) without frames and lines, and notes on those."""
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
    """Return rows and columns (n,) of an island's pixels, relative to its box."""
    box = numbers[one.top : one.bottom, one.left : one.right]
    rows, columns = (box == one.number).nonzero()
    return rows, columns


def _is_rim(one: Island, numbers: Array) -> bool:
    """Return True if the island is the outline of its box or of the inscribed ellipse."""
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
    """Return True if the island is many times longer than wide, in any direction."""
    points = np.stack(_inside(one, numbers)).astype(np.float64)
    points -= points.mean(axis=1, keepdims=True)
    yy, xx, yx = (float((points[a] * points[b]).mean()) for a, b in ((0, 0), (1, 1), (0, 1)))
    half, turn = (yy + xx) / 2, float(np.hypot((yy - xx) / 2, yx))
    across = max(half - turn, 1 / 12)
    return half + turn > _STRAIGHT**2 * across


def _is_beside(line: Island, other: Island) -> bool:
    """Return True if `line` is longer than `other`, separate from it, and `other` is no speck."""
    down = max(line.top - other.bottom, other.top - line.bottom)
    wide = max(line.left - other.right, other.left - line.right)
    return (
        line.size >= _LONGER * other.size
        and other.size >= _OTHER * line.size
        and max(down, wide) >= _APART * line.size
    )


# relative to the largest part's size: below it is a speck, above it a digit of its own, and the
# distance within which a part belongs to the largest
_SPECK, _LIKE, _NEAR = 0.12, 0.5, 0.35
_JAGGED = 40  # maximum edge length relative to size; an 8 has ten
_ALONG = 0.15  # share of the picture's border; more on two sides is a shadow
# relative to a digit's size: ruled lines are narrower; wider strokes are none, are none if cut off
# by borders, are a solid shape
_RULED, _SOLID, _CUT, _SHAPE = 0.05, 0.3, 0.24, 0.45
# share of full ink (3x3 mean) of a stroke; the same for strokes narrower than the third figure in
# pixels, in at most so many pieces (more is noise)
_MOST, _SOME, _THIN, _PIECES = 0.4, 0.2, 2.5, 60
# relative to its size: parts that lie further along a sheet's edge belong to the edge
_ALONG_SHEET = 0.5


@dataclass
class Digit:
    """Islands that form a digit, their box, and the mask (H, W) of the selected digit."""

    parts: list[Island]
    mask: Array = field(default_factory=lambda: np.zeros((0, 0), bool))
    said: list[str] = field(default_factory=list)  # notes on what was left out

    @property
    def stroke(self) -> float:
        """Approximate stroke width in pixels."""
        return stroke_of(self.mask)

    @property
    def doubtful(self) -> bool:
        """True if it looks like a sheet, a shadow or lines: solid, or cut off by two borders."""
        if self.cut < 2:
            return self.width > _SOLID
        return self.along > _ALONG or not _RULED < self.width < _CUT

    @property
    def solid(self) -> bool:
        """True if it has no strokes: a square, a disc, half of the picture."""
        return self.width > (_SOLID if self.cut >= 3 else _SHAPE)

    @property
    def width(self) -> float:
        """Stroke width relative to the digit's size."""
        top, bottom, left, right = self.box
        return self.stroke / max(bottom - top, right - left)

    @property
    def along(self) -> float:
        """Share of the picture's border that its ink covers; large for a shadow."""
        sides = (self.mask[0], self.mask[-1], self.mask[:, 0], self.mask[:, -1])
        return float(sum(side.sum() for side in sides)) / (2 * sum(self.mask.shape))

    @property
    def cut(self) -> int:
        """Number of picture borders that it touches."""
        top, bottom, left, right = self.box
        height, width = self.mask.shape
        return int((top == 0) + (left == 0) + (bottom == height) + (right == width))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Rows from top to bottom and columns from left to right."""
        return (
            min(part.top for part in self.parts),
            max(part.bottom for part in self.parts),
            min(part.left for part in self.parts),
            max(part.right for part in self.parts),
        )


def digits_of(ink: Array, sheet: Array | None = None, lines: bool = False) -> list[Digit]:
    """Return the digits of `ink` (H, W), largest first, with masks; raise LenetError if there are
    none.

    Parts that touch the border of the picture or of `sheet` (H, W) bool are ignored if there
    are others. `lines`: the ink is that of thin dark lines, whose faint rims are no strokes.
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
    """Return `parts` without those at the picture's border, if one of fair size remains."""
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
    """Return True if two parts are in one line of text, in separate columns."""
    rows = min(one.bottom, other.bottom) - max(one.top, other.top)
    columns = min(one.right, other.right) - max(one.left, other.left)
    return columns <= 0 and rows >= 0.5 * min(one.height, other.height)


def _gap(box: tuple[int, int, int, int], part: Island) -> float:
    top, bottom, left, right = box
    down = max(part.top - bottom, top - part.bottom, 0)
    across = max(part.left - right, left - part.right, 0)
    return float(max(down, across))
