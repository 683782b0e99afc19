"""A picture's grey prepared as MNIST's digits were: ink bright on black, 20x20, centred on 28x28.

In order: the paper's shading is fitted and taken away; whether ink is darker or brighter than the
paper is found; ink is what stands out; its parts are put together to digits, the largest of which
is cropped, thickened where its strokes would be lost, fitted into 20x20 and centred by its mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lenetgpu.errors import LenetError
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE
from lenetgpu.pictures.digits import Digit, digits_of
from lenetgpu.pictures.ink import COLOUR, apart, ink_of, lines_of
from lenetgpu.pictures.masks import box_of, eroded, grown, resized, shrunk
from lenetgpu.pictures.shapes import FILLED, filled_outline, sheet_of

Array = np.ndarray[Any, Any]

BOX = 20
"""Pixels of the square that a digit is fitted into."""
_STROKE = 2.0
"""Pixels of a digit of 20 that its strokes have at least; MNIST's have two to four."""
_EDGE = 0.15
"""Of full ink: where a digit's box ends."""
_SHEETS, _EMPTY = 3, 0.36
"""Sheets in each other that are looked at; of its size, how wide one is that has nothing on it."""
_HOLLOW = 0.1
"""Of a digit's size: how wide the line of an outline is at most."""
_TURNED = "dark on light, turned"


@dataclass(frozen=True)
class Prepared:
    """`pixels` (28, 28) uint8, ink bright on black; what is said of the picture, in order."""

    pixels: Array
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """`ink` (H, W) in 0..1, whether it is the darker, and its digits, the largest first."""

    ink: Array
    turned: bool
    digits: list[Digit]
    depth: int
    """Of how many sheets in each other it is on the innermost."""


def as_mnist(grey: Array) -> Prepared:
    """`grey` (H, W) float32, 0 black to 255 white, as MNIST's digits are.

    LenetError, whose text begins with "expected a digit", where there is no ink that hangs
    together: a blank picture, or one of noise.
    """
    found = _found(shrunk(grey))
    return _made(found, [_TURNED] if found.turned else [])


def of_colours(bands: list[Array]) -> Prepared:
    """`bands`, three (H, W) float32, as `as_mnist` makes grey, by what tells their colours apart.

    Which of two colours is ink no brightness says: it is what stands out of the other. LenetError
    where that has no strokes; lines in it are not looked for.
    """
    found = _found(apart([shrunk(band) for band in bands]), lines=False)
    digit = found.digits[0]
    if digit.doubtful or digit.cut > 2:
        raise LenetError("expected a digit, found fields of colour")
    return _made(found, [COLOUR])


def _made(found: Found, notes: list[str]) -> Prepared:
    ink, digits = found.ink, found.digits
    if len(digits) > 1:
        notes.append(f"{len(digits)} digits stand apart, the largest is taken")
    notes += digits[0].said
    whole = filled_outline(digits[0].mask) if digits[0].width <= _HOLLOW else None
    if whole is not None:
        ink, digits[0].mask = np.maximum(ink, whole), whole
        notes.append(FILLED)
    return Prepared(_centred(_fitted(_cropped(ink, digits[0]))), tuple(notes))


def _found(grey: Array, sheet: Array | None = None, depth: int = 0, lines: bool = True) -> Found:
    """What there is in `grey` (H, W), or on its `sheet`; LenetError of nothing.

    What stands out and is a sheet or a screen, the ground around it darker or brighter, is read
    alone, up to three in each other. Where it is no stroke either, but a shadow or more of a sheet,
    thin dark lines are looked for if `lines`, and taken where they make a digit.
    """
    refused, standing = None, None
    try:
        ink, turned = ink_of(grey, sheet)
        standing = Found(ink, turned, digits_of(ink, sheet), depth)
    except LenetError as error:
        if not lines:
            raise
        refused = error
    if standing is not None:
        inside = _on_sheet(grey, standing) if depth < _SHEETS else None
        if inside is not None:
            return inside
        if not standing.digits[0].doubtful or not lines:
            return standing
    try:
        thin = lines_of(grey)
        drawn = digits_of(thin, lines=True)
        if not drawn[0].doubtful:
            return Found(thin, True, drawn, depth)
    except LenetError as error:
        refused = refused or error
    if standing is None:
        assert refused is not None
        raise refused
    if standing.digits[0].solid:
        raise LenetError("expected a digit, found a solid shape")
    return standing


def _on_sheet(grey: Array, standing: Found) -> Found | None:
    """What is on the sheet that stands out of `grey` (H, W); None: it is none, or has no digit."""
    digit = standing.digits[0]
    sheet = sheet_of(digit.mask)
    if sheet is None:
        return None
    box = box_of(sheet)
    try:
        found = _found(grey[box], sheet[box], standing.depth + 1, lines=False)
    except LenetError as error:
        if digit.cut or digit.width < _EMPTY:
            return None
        raise LenetError("expected a digit, found a solid shape or an empty sheet") from error
    inner = found.digits[0]
    shadow = digit.cut and found.depth == standing.depth + 1
    crossed = shadow and (inner.mask & ~eroded(sheet[box], 2)).any()
    return None if inner.doubtful or crossed else found


def as_it_is(grey: Array, size: tuple[int, int]) -> Prepared:
    """`grey` (H, W) float32, 0 to 255, at 28x28 and nothing else: resized where it is not.

    `size` is the picture's (H, W) before it was averaged, which is said.
    """
    height, width, _ = IMAGE_SHAPE
    notes: tuple[str, ...] = ()
    if grey.shape != (height, width):
        notes = (f"resized from {size[1]}x{size[0]}",)
        grey = resized(shrunk(grey), height, width)
    pixels = np.clip(np.rint(grey), 0, PIXEL_SCALE).astype(np.uint8)
    return Prepared(pixels, notes)


def _cropped(ink: Array, digit: Digit) -> Array:
    """The digit's ink and what blurs around it, with nothing else, thickened if it is thin."""
    top, bottom, left, right = digit.box
    height, width = bottom - top, right - left
    length = max(height, width)
    mask = digit.mask[top:bottom, left:right]
    more = (_STROKE * length / BOX - digit.stroke) / 2
    room = 1 + max(0, round(more))
    framed = np.zeros((height + 2 * room, width + 2 * room), np.float32)
    inside = np.zeros(framed.shape, bool)
    inside[room:-room, room:-room] = mask
    near = grown(inside, 1)
    rows = slice(max(0, top - room), bottom + room)
    columns = slice(max(0, left - room), right + room)
    from_row, from_column = room - (top - rows.start), room - (left - columns.start)
    part = ink[rows, columns]
    framed[from_row : from_row + part.shape[0], from_column : from_column + part.shape[1]] = part
    framed[~near] = 0
    if more > 0.5:
        framed = grown(framed, round(more))
    return framed


def _fitted(ink: Array) -> Array:
    rows, columns = ((ink.max(axis=axis) > _EDGE).nonzero()[0] for axis in (1, 0))
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = ink.shape
    long = max(height, width)
    fitted = resized(ink, *(max(1, round(BOX * side / long)) for side in (height, width)))
    found: Array = fitted / max(float(fitted.max()), 1e-6)
    return found


def _centred(fitted: Array) -> Array:
    """(28, 28) uint8 with `fitted` (h, w) in it, its mass as near the middle as may be."""
    out = np.zeros(IMAGE_SHAPE[:2], np.uint8)
    total = float(fitted.sum())
    corner = []
    for axis, side in enumerate(fitted.shape):
        mass = fitted.sum(axis=1 - axis)
        centre = float((mass * (np.arange(side) + 0.5)).sum()) / total
        free = out.shape[axis] - side
        corner.append(min(max(round(out.shape[axis] / 2 - centre), 0), free))
    top, left = corner
    pixels = np.rint(fitted * PIXEL_SCALE).astype(np.uint8)
    out[top : top + len(pixels), left : left + pixels.shape[1]] = pixels
    return out
