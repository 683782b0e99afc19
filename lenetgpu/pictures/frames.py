"""Ink that is no digit: a frame drawn round one, empty cells of a form, a line or a pen beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.pictures.islands import Island

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FRAME, LINE = "a frame was left out", "a line was left out"
_HELD, _LIKE = 0.2, 0.15
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
    import numpy as np

    if one.mass > 0.4 * one.height * one.width:
        return False
    rows, columns = _inside(one, numbers)
    y, x = 2 * (rows + 0.5) / one.height - 1, 2 * (columns + 0.5) / one.width - 1
    angles = np.histogram(np.arctan2(y, x), 16, (-np.pi, np.pi))[0]
    square, round_ = np.maximum(np.abs(y), np.abs(x)), np.hypot(y, x)
    on = max(float((far > 1 - 2 * _RIM).mean()) for far in (square, np.minimum(round_, 2 - round_)))
    return bool(angles.min() > 0) and on > _ON_RIM


def _holds(one: Island, other: Island) -> bool:
    """Whether the other is in its box, and no speck there."""
    return (
        other.size >= _HELD * one.size
        and one.top < other.top
        and one.left < other.left
        and one.bottom > other.bottom
        and one.right > other.right
    )


def _alike(one: Island, other: Island) -> bool:
    """Whether it is another island, as high and as wide."""
    most = _LIKE * other.size
    return (
        one is not other
        and abs(one.height - other.height) <= most
        and abs(one.width - other.width) <= most
    )


def _is_straight(one: Island, numbers: Array) -> bool:
    """Whether it is many times longer than wide, whichever way it lies."""
    import numpy as np

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
