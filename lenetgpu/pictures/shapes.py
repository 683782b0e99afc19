"""Shapes of a mask: a sheet of paper that is read alone, an outline whose strokes are filled."""

from __future__ import annotations

from typing import Any

import numpy as np

from lenetgpu.pictures.masks import box_of, eroded, grown, islands, stroke_of

Array = np.ndarray[Any, Any]

_RECTANGLE, _LONG, _TURNS = 0.87, 5.0, 30
"""Of the least rectangle round it, how much a sheet fills, an ellipse fills 0.79; a sheet's sides
are to each other at most as this to one; so many turns of a rectangle are tried."""
_SOLID, _STROKE, _BAR, _SLIT = 0.98, 0.62, 0.66, 4.0
"""Of its area, what a sheet with nothing on it covers; of a line's mean width, within how much of
its edges all of it lies; of the least rectangle round it, how much a bar fills; times a hole's
width, how wide the line round it is at most."""
_LARGE, _RING, _EDGE = 0.25, 0.5, 0.012
"""Of the picture's shorter side, how large a sheet is at least; of its area, what a frame covers
at most; of its size, how far its edge reaches."""


def sheet_of(mask: Array) -> Array | None:
    """bool (H, W): what a sheet whose ink is `mask` (H, W) holds, or a frame; None: it is none.

    A sheet is a rectangle, however turned and whatever is cut out of it. Its edge is left out.
    """
    size = max(mask[box_of(mask)].shape)
    if size < max(16, _LARGE * min(mask.shape)):
        return None
    (short, long), most = rectangle_of(mask)
    if long > _LONG * short or most < _RECTANGLE * short * long:
        return None
    whole = filled(mask)
    if whole.sum() < _RECTANGLE * short * long:
        return None
    if mask.sum() < _RING * whole.sum():
        holes, numbers = islands(whole & ~mask)
        held = filled(numbers == holes[0].number) if holes else ~whole
        if held.sum() < _RING * whole.sum():
            return None
        whole = held
    elif mask.sum() < _SOLID * whole.sum() and _is_stroke(mask, whole):
        return None
    inner: Array = eroded(whole, max(2, round(_EDGE * size)))
    return inner if inner.any() else None


def filled(mask: Array) -> Array:
    """`mask` (H, W) and what it encloses."""
    _, numbers = islands(~np.pad(mask, 1))
    found: Array = numbers[1:-1, 1:-1] != numbers[0, 0]
    return found


def _is_stroke(mask: Array, whole: Array) -> bool:
    """Whether `mask` (H, W) is an angular 0 or 8: as wide everywhere, its holes bars."""
    broad = stroke_of(mask)
    if eroded(mask, max(1, round(_STROKE * broad))).any():
        return False
    holes, numbers = islands(whole & ~mask)
    masks = [numbers == hole.number for hole in holes]
    return all(is_bar(one, 1.0) and _SLIT * stroke_of(one) > broad for one in masks)


def is_bar(mask: Array, ratio: float) -> bool:
    """Whether `mask` (H, W) nearly fills its least rectangle, `ratio` times as long as wide."""
    (short, long), _ = rectangle_of(mask)
    return bool(mask.sum() > _BAR * short * long and long >= ratio * short)


def rectangle_of(mask: Array) -> tuple[tuple[float, float], float]:
    """Of the least rectangle round `mask` (H, W) the sides, the shorter first, in pixels.

    Beside them, in pixels, what the mask covers at most when it is filled.
    """
    rows = np.flatnonzero(np.any(mask, axis=1))
    left = mask[rows].argmax(axis=1)
    right = mask.shape[1] - mask[rows, ::-1].argmax(axis=1)
    x = np.concatenate([left, right, left, right]).astype(np.float64)
    y = np.concatenate([rows, rows, rows + 1, rows + 1]).astype(np.float64)
    turns = np.arange(_TURNS)[:, None] * (np.pi / 2 / _TURNS)
    across = np.ptp(np.cos(turns) * x + np.sin(turns) * y, axis=1)
    along = np.ptp(np.cos(turns) * y - np.sin(turns) * x, axis=1)
    best = int((across * along).argmin())
    short, long = sorted((float(across[best]), float(along[best])))
    return (short, long), float((right - left).sum())


FILLED = "an outline was filled"
_WOUND, _ON_INSIDES, _BROAD, _SLIM = 1.9, 0.85, 0.3, 2.2
"""What is inside of a stroke is as long, a circle is 1; so much of an outline's ink lies along it;
of the digit's size, how broad the stroke is at most; so many times longer than wide is a bar."""


def filled_outline(mask: Array) -> Array | None:
    """`mask` (H, W), a digit's ink, with the inside of its outline; None: it is no outline.

    What ink encloses is the inside of a stroke where it is long and narrow; a 0's or an 8's hole is
    round, and so is a narrow 0 with it. Nearly all ink of an outline lies along such insides: the
    tail of a 6 does not. A bar is none: it may be a hollow 1, or a narrow 0 or 8 as well.
    """
    box = box_of(mask)
    size = max(mask[box].shape)
    closed = grown(np.pad(mask[box], 3), 1)
    holes, numbers = islands(~closed)
    if len(holes) < 2:
        return None
    outside = numbers[0, 0]
    inner = np.zeros(closed.shape, bool)
    rim = grown(numbers == outside, 1)
    _, names = islands(closed)
    outer = np.unique(names[rim & closed])
    for hole in holes:
        one = numbers == hole.number
        if hole.number == outside or not np.isin(names[grown(one, 1) & closed], outer).any():
            continue
        if _longness(one) >= _WOUND:
            inner |= one
    if not inner.any():
        return None
    ink = np.pad(mask[box], 3)
    thick = max(2, round(float(ink.sum()) / max(1.0, _edge(ink) / 2)))
    if (ink & grown(inner, 1 + thick)).sum() < _ON_INSIDES * ink.sum():
        return None
    whole: Array = ~grown(~(closed | inner), 1)
    if _longness(whole) < _WOUND or 2 * float(whole.sum()) / _edge(whole) > _BROAD * size:
        return None
    if is_bar(whole, _SLIM):
        return None
    found = mask.copy()
    found[box] |= whole[3:-3, 3:-3]
    return found


def _longness(one: Array) -> float:
    """How much longer the edge of `one` (H, W) bool is than a circle's: squared, by its area."""
    return _edge(one) ** 2 / (4 * np.pi * float(one.sum()))


def _edge(one: Array) -> float:
    """The length of the edge of `one` (H, W) bool: how often lines of four directions cross it."""
    wide = np.pad(one, 1)
    straight = (wide[1:] != wide[:-1]).sum() + (wide[:, 1:] != wide[:, :-1]).sum()
    aslant = (wide[1:, 1:] != wide[:-1, :-1]).sum() + (wide[1:, :-1] != wide[:-1, 1:]).sum()
    return float(np.pi / 8 * (straight + aslant / np.sqrt(2)))
