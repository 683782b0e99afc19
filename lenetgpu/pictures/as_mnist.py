"""Preparation of grey pictures like MNIST's digits: bright ink on black, 20x20, centred in 28x28.

Steps: fit and remove the paper's shading; decide whether ink is darker or brighter than the paper;
extract what stands out as ink; join its parts to digits; crop the largest digit, thicken thin
strokes, fit it into 20x20 and centre it by mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lenetgpu.errors import LenetError
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE
from lenetgpu.pictures.digits import Digit, digits_of
from lenetgpu.pictures.masks import (
    MANY,
    averaged,
    averaged_by,
    blurred,
    box_of,
    eroded,
    grown,
    resized,
    shrunk,
)
from lenetgpu.pictures.shapes import FILLED, filled_outline, sheet_of

Array = np.ndarray[Any, Any]

BOX = 20  # pixels of the square that a digit is fitted into
_STROKE = 2.0  # minimum stroke width in pixels of a 20-pixel digit; MNIST has two to four
_EDGE = 0.15  # share of full ink at which a digit's box ends
# nested sheets tried; width of the strokes of an empty sheet, relative to its size
_SHEETS, _EMPTY = 3, 0.36
_HOLLOW = 0.1  # maximum line width of an outline, relative to the digit's size
_TURNED, _COLOUR = "dark on light, turned", "told by colour, not by brightness"
_FIT = 64
# minimum contrast of ink in levels of 255, and in standard deviations of the paper's noise
_FAINTEST, _NOISES = 12.0, 5.0


@dataclass(frozen=True)
class Prepared:
    """A prepared digit: `pixels` (28, 28) uint8, bright ink on black, and `notes`."""

    pixels: Array
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """Extracted `ink` (H, W) in 0..1, whether it is darker than the paper, and digits by size."""

    ink: Array
    turned: bool
    digits: list[Digit]
    depth: int  # nesting depth of the sheet


def as_mnist(grey: Array) -> Prepared:
    """Prepare `grey` (H, W) float32, 0 black to 255 white, like MNIST's digits.

    Raises LenetError beginning with "expected a digit" if there is no connected ink: a blank
    picture or noise.
    """
    found = _found(shrunk(grey))
    return _made(found, [_TURNED] if found.turned else [])


def of_colours(bands: list[Array]) -> Prepared:
    """Prepare `bands`, three (H, W) float32 arrays or none, like `as_mnist`, by colour contrast.

    Brightness does not tell which of two colours is ink, so ink is the part that stands out.
    Raises LenetError if it has no strokes. Faint lines are not searched for.
    """
    if not bands:
        raise LenetError("expected a digit, found no colours")
    found = _found(_apart([shrunk(band) for band in bands]), lines=False)
    digit = found.digits[0]
    if digit.doubtful or digit.cut > 2:
        raise LenetError("expected a digit, found fields of colour")
    return _made(found, [_COLOUR])


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
    """Extract ink and digits from `grey` (H, W), or from its `sheet`; raise LenetError if there are
    none.

    A sheet or screen on darker or brighter ground is read alone, up to three nested ones. If
    the result looks like a shadow or a part of a sheet rather than strokes and `lines` is set,
    thin dark lines are tried, and used if they form a digit.
    """
    refused, standing = None, None
    try:
        ink, turned = _ink_of(grey, sheet)
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
        thin = _lines_of(grey)
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
    """Return what lies on the sheet in `grey` (H, W), or None if there is no sheet or no digit on
    it.
    """
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
    """Resize `grey` (H, W) float32, 0 to 255, to 28x28 if necessary, and change nothing else.

    `size` is the picture's original (H, W), for the note.
    """
    height, width, _ = IMAGE_SHAPE
    notes: tuple[str, ...] = ()
    if grey.shape != (height, width):
        notes = (f"resized from {size[1]}x{size[0]}",)
        grey = resized(shrunk(grey), height, width)
    pixels = np.clip(np.rint(grey), 0, PIXEL_SCALE).astype(np.uint8)
    return Prepared(pixels, notes)


def _cropped(ink: Array, digit: Digit) -> Array:
    """Crop the digit's ink with its blurred border, without other parts; thicken thin strokes."""
    top, bottom, left, right = digit.box
    height, width = bottom - top, right - left
    length = max(height, width)
    mask = digit.mask[top:bottom, left:right]
    more = (_STROKE * length / BOX - digit.stroke) / 2
    margin = 1 + max(0, round(more))
    framed = np.zeros((height + 2 * margin, width + 2 * margin), np.float32)
    inside = np.zeros(framed.shape, bool)
    inside[margin:-margin, margin:-margin] = mask
    near = grown(inside, 1)
    rows = slice(max(0, top - margin), bottom + margin)
    columns = slice(max(0, left - margin), right + margin)
    from_row, from_column = margin - (top - rows.start), margin - (left - columns.start)
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
    """Place `fitted` (h, w) in (28, 28) uint8 with its centre of mass near the middle."""
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


def _ink_of(grey: Array, sheet: Array | None = None) -> tuple[Array, bool]:
    """Return how much each pixel (H, W) stands out from the paper, in 0..1, and if ink is darker.

    Pixels outside `sheet` (H, W) bool are zero. Raises LenetError if nothing stands out.
    """
    away = grey - _paper(grey, sheet)
    if sheet is not None:
        away[~sheet] = 0
    smooth = blurred(away)
    far = float(np.abs(smooth).max())
    dark = float(smooth[np.abs(smooth) > far / 2].sum()) < 0
    if dark:
        away, smooth = -away, -smooth
    return _scaled(away, smooth), dark


def _lines_of(grey: Array) -> Array:
    """Return how much each pixel (H, W) is darker than the paper nearby, in 0..1, for thin lines
    only.

    The paper is found by a morphological closing over a tenth of the picture, so edges of
    sheets and shadows are no lines. Raises LenetError if nothing stands out.
    """
    if min(grey.shape) < MANY:
        raise LenetError("expected a digit, found a small picture of other things")
    smooth, by = blurred(blurred(grey)), min(grey.shape) // 20
    away = -grown(-grown(smooth, by), by) - smooth
    away -= np.median(away)
    return _scaled(away, away)


def _scaled(away: Array, smooth: Array) -> Array:
    """Scale `away` (H, W) to 0..1 from paper noise to full ink; raise LenetError without ink."""
    top = smooth[smooth > float(smooth.max()) / 2]
    level = float(np.median(top)) if top.size else 0.0
    if level < _FAINTEST:
        raise LenetError("expected a digit, found a blank picture")
    noise = _spread(smooth[np.abs(smooth) < level / 2])
    if level < _NOISES * noise:
        raise LenetError("expected a digit, found only noise")
    floor = min(0.4 * level, max(0.1 * level, 3 * noise))
    found: Array = np.clip((away - floor) / (level - floor), 0, 1)
    return found


def _paper(grey: Array, sheet: Array | None = None) -> Array:
    """Fit a quadratic surface to the paper in `grey` (H, W), or in its part `sheet`.

    The fit uses a reduced picture and is repeated without outliers.
    """
    small = shrunk(grey, _FIT)
    terms = np.stack([term.reshape(-1) for term in _terms(*small.shape)], axis=1)
    values = small.reshape(-1).astype(np.float64)
    on = np.ones(small.shape, bool)
    if sheet is not None:
        on = averaged(sheet.astype(np.float32), averaged_by(grey.shape, _FIT)) > 0.99
        if not on.any():
            raise LenetError("expected a digit, found a blank picture")
    border, inside = _border(on).reshape(-1), on.reshape(-1)
    kept = border & _of_most(values, border)
    clear = kept.sum() > 0.8 * border.sum()
    fit = np.array([np.median(values[kept])])
    for order in (1, 3, 6, 6, 6) if clear else (1, 1):
        if kept.sum() < 4 * order:
            break
        near, wanted = terms[kept, :order].astype(np.float64), values[kept]
        squares = np.einsum("ij,ik->jk", near, near)  # no library's threads for what is small
        fit = np.linalg.lstsq(squares, np.einsum("ij,i->j", near, wanted), rcond=None)[0]
        away = values - np.einsum("ij,j->i", terms[:, :order], fit)
        kept = inside & (np.abs(away) <= max(4.0, 3 * _spread(away[kept])))
    surface = np.zeros(grey.shape, np.float32)
    for factor, term in zip(fit, _terms(*grey.shape), strict=False):
        surface += np.float32(factor) * term
    return np.clip(surface, values[inside].min(), values[inside].max(), out=surface)


def _spread(values: Array) -> float:
    """Estimate the standard deviation from the median absolute deviation; 0 for no values."""
    if not values.size:
        return 0.0
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _of_most(values: Array, border: Array) -> Array:
    """Return which `values` (n,) resemble most border values: paper, where ink meets the border."""
    levels = np.sort(values[border])
    counts = np.arange(1, len(levels))
    sums = np.cumsum(levels)
    below, above = sums[:-1] / counts, (sums[-1] - sums[:-1]) / (len(levels) - counts)
    between = counts * (len(levels) - counts) * (above - below) ** 2 / len(levels) ** 2
    if between.size and between.max() > 0.85 * levels.var() > 1:
        cut = levels[between.argmax()]
        lower: Array = values <= cut
        heavier = 2 * counts[between.argmax()] > len(levels)
        return lower if heavier else ~lower
    near: Array = np.abs(values - np.median(levels)) <= 1 + 2 * _spread(levels)
    return near


def _border(on: Array) -> Array:
    """Return bool (H, W): the outer twelfth of the sheet `on` (H, W) on each side, at least a
    pixel.
    """
    height, width = on.shape
    down, across = (max(1, side // 12) for side in on[box_of(on)].shape)
    inner = on.copy()
    inner[:down] = inner[height - down :] = False
    inner[:, :across] = inner[:, width - across :] = False
    if not on.all():
        inner &= eroded(on, max(1, min(down, across)))
    found: Array = on & ~inner
    return found


def _terms(height: int, width: int) -> list[Array]:
    y, x = np.meshgrid(
        np.linspace(-1, 1, height, dtype=np.float32),
        np.linspace(-1, 1, width, dtype=np.float32),
        indexing="ij",
    )
    return [np.ones_like(y), y, x, y * y, y * x, x * x]


def _apart(bands: list[Array]) -> Array:
    """Project `bands` (H, W) onto the axis of largest colour contrast; (H, W) float32 around 128.

    Colours far from the picture's median colour have the largest weight. Differences keep their
    size, up to 442 between opposite corners of the colour cube.
    """
    away = np.stack([band - np.float32(np.median(band)) for band in bands])
    calm = np.stack([blurred(blurred(band)) for band in away]).reshape(len(bands), -1)
    spread = np.einsum("in,jn->ij", calm, calm).astype(np.float64)
    axis = np.linalg.eigh(spread)[1][:, -1].astype(np.float32)
    found: Array = np.einsum("i,ihw->hw", axis, away) + np.float32(128)
    return found
