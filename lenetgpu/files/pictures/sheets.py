"""A sheet of paper or a screen that stands on another ground: found, so that it is read alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.files.pictures.islands import islands
from lenetgpu.files.pictures.sizes import box_of, eroded

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_RECTANGLE, _LONG, _TURNS = 0.87, 5.0, 30
"""Of the least rectangle round it, how much a sheet fills, an ellipse fills 0.79; a sheet's sides
are to each other at most as this to one; so many turns of a rectangle are tried."""
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
    whole = filled(mask)
    if not _is_rectangle(whole):
        return None
    if mask.sum() < _RING * whole.sum():
        holes, numbers = islands(whole & ~mask)
        held = filled(numbers == holes[0].number) if holes else ~whole
        if held.sum() < _RING * whole.sum():
            return None
        whole = held
    inner: Array = eroded(whole, max(2, round(_EDGE * size)))
    return inner if inner.any() else None


def filled(mask: Array) -> Array:
    """`mask` (H, W) and what it encloses."""
    import numpy as np

    _, numbers = islands(~np.pad(mask, 1))
    found: Array = numbers[1:-1, 1:-1] != numbers[0, 0]
    return found


def _is_rectangle(whole: Array) -> bool:
    """Whether `whole` (H, W) fills the least of the rectangles round it, which is not long."""
    import numpy as np

    rows = np.flatnonzero(np.any(whole, axis=1))
    left = whole[rows].argmax(axis=1)
    right = whole.shape[1] - whole[rows, ::-1].argmax(axis=1)
    x = np.concatenate([left, right, left, right]).astype(np.float64)
    y = np.concatenate([rows, rows, rows + 1, rows + 1]).astype(np.float64)
    turns = np.arange(_TURNS)[:, None] * (np.pi / 2 / _TURNS)
    across = np.ptp(np.cos(turns) * x + np.sin(turns) * y, axis=1)
    along = np.ptp(np.cos(turns) * y - np.sin(turns) * x, axis=1)
    best = int((across * along).argmin())
    sides = across[best], along[best]
    return bool(
        whole.sum() >= _RECTANGLE * sides[0] * sides[1] and max(sides) <= _LONG * min(sides)
    )
