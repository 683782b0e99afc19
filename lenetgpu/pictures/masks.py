"""Greys and masks: averaged, resized, grown; which pixels of a mask hang together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

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
    image = Image.fromarray(np.ascontiguousarray(grey, np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def blurred(grey: Array) -> Array:
    """`grey` (H, W) averaged over 3x3, where it has many pixels."""
    if min(grey.shape) < MANY:
        return grey
    wide = np.pad(grey, 1, mode="edge")
    tall = wide[:-2] + wide[1:-1] + wide[2:]
    found: Array = (tall[:, :-2] + tall[:, 1:-1] + tall[:, 2:]) / 9
    return found


def grown(values: Array, by: int) -> Array:
    """`values` (H, W), each pixel the largest of those within `by` rows and columns."""
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
    found: Array = ~grown(np.pad(~mask, by, constant_values=True), by)[by:-by, by:-by]
    return found


def box_of(mask: Array) -> tuple[slice, slice]:
    """The rows and columns of the least box round what is true in `mask` (H, W): some is."""
    rows, columns = (np.flatnonzero(np.any(mask, axis=axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def edges_of(mask: Array) -> int:
    """Sides of pixels at which `mask` (H, W) bool ends."""
    wide = np.pad(mask, 1)
    return int((wide[1:] != wide[:-1]).sum() + (wide[:, 1:] != wide[:, :-1]).sum())


def stroke_of(mask: Array) -> float:
    """About how many pixels wide strokes are: twice their area over their edges' length."""
    return 2 * float(mask.sum()) / (edges_of(mask) * _STAIRS)


@dataclass(frozen=True)
class Island:
    """Ink that hangs together: its number, its box (rows top..bottom, columns left..right)."""

    number: int
    top: int
    bottom: int
    left: int
    right: int
    mass: int
    """Pixels of it."""

    @property
    def height(self) -> int:
        """Rows of its box."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Columns of its box."""
        return self.right - self.left

    @property
    def size(self) -> int:
        """The longer side of its box."""
        return max(self.height, self.width)


def islands(mask: Array) -> tuple[list[Island], Array]:
    """The parts of `mask` (H, W) bool that hang together, corners count, the largest first.

    Beside them int32 (H, W): the number of each pixel's part, -1 where there is none.
    """
    height, width = mask.shape
    edges = np.zeros((height, width + 2), np.int8)
    edges[:, 1:-1] = mask
    steps = np.diff(edges, axis=1).reshape(-1)
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    numbers = np.full((height, width), -1, np.int32)
    if not len(starts):
        return [], numbers
    rows, lefts = np.divmod(starts, width + 1)
    rights = ends % (width + 1)
    names = _joined(starts, ends, width + 1)
    kinds, of = np.unique(names, return_inverse=True)
    count = len(kinds)
    tops, bottoms = np.full(count, height), np.zeros(count, np.int64)
    least, most = np.full(count, width), np.zeros(count, np.int64)
    np.minimum.at(tops, of, rows)
    np.maximum.at(bottoms, of, rows + 1)
    np.minimum.at(least, of, lefts)
    np.maximum.at(most, of, rights)
    mass = np.bincount(of, rights - lefts, count).astype(np.int64)
    flat = np.repeat(of, rights - lefts)
    numbers[mask] = flat
    boxes = zip(tops, bottoms, least, most, mass, strict=True)
    found = [Island(number, *map(int, box)) for number, box in enumerate(boxes)]
    return sorted(found, key=lambda island: -island.mass), numbers


def _joined(starts: Array, ends: Array, pitch: int) -> Array:
    """A name (n,) for each run, the same for those that hang together.

    Runs lie at `starts` to `ends` (n,) of rows of `pitch`, the last place of which is empty. The
    runs that one touches in the row above are neighbours in the list: from the first that ends at
    its left corner on, to the last that starts at its right one.
    """
    first = np.searchsorted(ends, starts - pitch, "left")
    last = np.searchsorted(starts, ends - pitch, "right")
    counts = np.maximum(last - first, 0)
    below = np.repeat(np.arange(len(starts)), counts)
    above = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    above += np.repeat(first, counts)
    names = np.arange(len(starts))
    while True:
        least = np.minimum(names[below], names[above])
        known = names.copy()
        np.minimum.at(known, names[below], least)
        np.minimum.at(known, names[above], least)
        while True:  # each run points to the first of those it knows of
            further = known[known]
            if (further == known).all():
                break
            known = further
        if (known == names).all():
            return names
        names = known
