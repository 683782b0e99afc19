"""A sheet of paper or a screen that stands on another ground: found, so that it is read alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.pictures.islands import islands
from lenetgpu.pictures.sizes import box_of, eroded, stroke_of

if TYPE_CHECKING:
    import numpy as np

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
    import numpy as np

    _, numbers = islands(~np.pad(mask, 1))
    found: Array = numbers[1:-1, 1:-1] != numbers[0, 0]
    return found


def _is_stroke(mask: Array, whole: Array) -> bool:
    """Whether `mask` (H, W) is an angular 0 or 8 and no sheet: as wide everywhere, its holes bars.

    A sheet's margins and what is left between the strokes on it differ. `whole` (H, W): it, filled.
    """
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
    import numpy as np

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
