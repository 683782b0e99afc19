"""A picture's grey at other sizes: averaged, resized, blurred; in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SIDE = 512
"""Pixels of the longer side that a picture is looked at with, at most."""
MANY = 60
"""Pixels of the shorter side, from which on neighbours are averaged against noise."""
_STAIRS = 0.8
"""An edge's length over its pixels' sides."""


def averaged_by(shape: tuple[int, ...], side: int = SIDE) -> int:
    """Pixels of a square's side that are averaged, so that no side of `shape` is above `side`."""
    return -(-max(shape) // side)


def averaged(grey: Array, by: int) -> Array:
    """`grey` (H, W) averaged over squares of `by` pixels, float32; what is left over is cut."""
    import numpy as np

    height, width = (max(1, length // by) for length in grey.shape)
    down, across = (min(by, length) for length in grey.shape)
    rows = grey[: height * down, : width * across].reshape(height, down, width * across)
    lines = rows.mean(axis=1, dtype=np.float32).reshape(height, width, across)
    found: Array = lines.mean(axis=2)
    return found


def shrunk(grey: Array, side: int = SIDE) -> Array:
    """`grey` (H, W) averaged over squares, so that it is nowhere longer than `side`."""
    by = averaged_by(grey.shape, side)
    return grey if by == 1 else averaged(grey, by)


def resized(grey: Array, height: int, width: int) -> Array:
    """`grey` (H, W) float32 at (height, width): each pixel an average over what it covers."""
    import numpy as np

    down, across = _weights(len(grey), height), _weights(grey.shape[1], width)
    found: Array = np.einsum("ij,kj->ik", np.einsum("ij,jk->ik", down, grey), across)
    return found


def _weights(length: int, wanted: int) -> Array:
    """(wanted, length) float32, rows of sum 1: a triangle as wide as two pixels of the coarser."""
    import numpy as np

    step = length / wanted
    reach = max(1.0, step)
    centres = (np.arange(wanted) + 0.5) * step - 0.5
    far = np.abs(np.arange(length) - centres[:, None]) / reach
    rows = np.maximum(0, 1 - far)
    found: Array = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def blurred(grey: Array) -> Array:
    """`grey` (H, W) averaged over 3x3, where it has many pixels."""
    import numpy as np

    if min(grey.shape) < MANY:
        return grey
    wide = np.pad(grey, 1, mode="edge")
    tall = wide[:-2] + wide[1:-1] + wide[2:]
    found: Array = (tall[:, :-2] + tall[:, 1:-1] + tall[:, 2:]) / 9
    return found


def grown(values: Array, by: int) -> Array:
    """`values` (H, W), each pixel the largest of those within `by` rows and columns."""
    import numpy as np

    for axis in (0, 1):
        wide = np.pad(values, [(by, by) if a == axis else (0, 0) for a in (0, 1)], mode="edge")
        wide = np.moveaxis(wide, axis, 0)
        count, reach, length = 1, 2 * by + 1, values.shape[axis]
        while 2 * count <= reach:
            wide = np.maximum(wide[:-count], wide[count:])
            count *= 2
        last = reach - count
        values = np.moveaxis(np.maximum(wide[:length], wide[last : last + length]), 0, axis)
    return values


def eroded(mask: Array, by: int) -> Array:
    """`mask` (H, W) bool without what lies within `by` pixels of its edge or the array's."""
    import numpy as np

    found: Array = ~grown(np.pad(~mask, by, constant_values=True), by)[by:-by, by:-by]
    return found


def box_of(mask: Array) -> tuple[slice, slice]:
    """The rows and columns of the least box round what is true in `mask` (H, W): some is."""
    import numpy as np

    rows, columns = (np.flatnonzero(np.any(mask, axis=axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def edges_of(mask: Array) -> int:
    """Sides of pixels at which `mask` (H, W) bool ends."""
    import numpy as np

    wide = np.pad(mask, 1)
    return int((wide[1:] != wide[:-1]).sum() + (wide[:, 1:] != wide[:, :-1]).sum())


def stroke_of(mask: Array) -> float:
    """About how many pixels wide strokes are: twice their area over their edges' length."""
    return 2 * float(mask.sum()) / (edges_of(mask) * _STAIRS)
