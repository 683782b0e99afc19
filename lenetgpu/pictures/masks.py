"""Operations on grey arrays and masks: averaging, resizing, growing, connected components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]

SIDE = 512  # maximum pixels of a picture's longer side during analysis
MANY = 60  # pixels of the shorter side from which on neighbours are averaged against noise
_STAIRS = 0.8  # boundary length per pixel side


def averaged_by(shape: tuple[int, ...], side: int = SIDE) -> int:
    """Return the side of the averaging squares that makes no side of `shape` exceed `side`."""
    return -(-max(shape) // side)


def averaged(grey: Array, by: int) -> Array:
    """Average `grey` (H, W) over squares of `by` pixels, float32; drop the remainder."""
    height, width = (max(1, length // by) for length in grey.shape)
    down, across = (min(by, length) for length in grey.shape)
    rows = grey[: height * down, : width * across].reshape(height, down, width * across)
    lines = rows.mean(axis=1, dtype=np.float32).reshape(height, width, across)
    found: Array = lines.mean(axis=2)
    return found


def shrunk(grey: Array, side: int = SIDE) -> Array:
    """Average `grey` (H, W) over squares so that no side exceeds `side`."""
    by = averaged_by(grey.shape, side)
    return grey if by == 1 else averaged(grey, by)


def resized(grey: Array, height: int, width: int) -> Array:
    """Resize `grey` (H, W) float32 to (height, width) by area averaging."""
    image = Image.fromarray(np.ascontiguousarray(grey, np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def blurred(grey: Array) -> Array:
    """Average `grey` (H, W) over 3x3 if the picture is large."""
    if min(grey.shape) < MANY:
        return grey
    wide = np.pad(grey, 1, mode="edge")
    tall = wide[:-2] + wide[1:-1] + wide[2:]
    found: Array = (tall[:, :-2] + tall[:, 1:-1] + tall[:, 2:]) / 9
    return found


def grown(values: Array, by: int) -> Array:
    """Return the maximum of `values` (H, W) within `by` rows and columns."""
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
    """Remove from `mask` (H, W) bool all pixels within `by` of its edge or the array's."""
    found: Array = ~grown(np.pad(~mask, by, constant_values=True), by)[by:-by, by:-by]
    return found


def box_of(mask: Array) -> tuple[slice, slice]:
    """Return the row and column slices of the bounding box of `mask` (H, W), which is not empty."""
    rows, columns = (np.flatnonzero(np.any(mask, axis=axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def edges_of(mask: Array) -> int:
    """Return the number of pixel sides on the boundary of `mask` (H, W) bool."""
    wide = np.pad(mask, 1)
    return int((wide[1:] != wide[:-1]).sum() + (wide[:, 1:] != wide[:, :-1]).sum())


def stroke_of(mask: Array) -> float:
    """Estimate the stroke width in pixels: twice the area divided by the boundary length."""
    return 2 * float(mask.sum()) / (edges_of(mask) * _STAIRS)


@dataclass(frozen=True)
class Island:
    """A connected component: number and bounding box (rows top..bottom, columns left..right)."""

    number: int
    top: int
    bottom: int
    left: int
    right: int
    mass: int  # number of pixels

    @property
    def height(self) -> int:
        """Rows of the box."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Columns of the box."""
        return self.right - self.left

    @property
    def size(self) -> int:
        """The longer side of the box."""
        return max(self.height, self.width)


def islands(mask: Array) -> tuple[list[Island], Array]:
    """Return the 8-connected components of `mask` (H, W) bool, largest first, and their numbers.

    Numbers are int32 (H, W), -1 outside.
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
    """Return a label (n,) for each run; connected runs share it.

    Runs span `starts` to `ends` (n,) in rows of `pitch`, whose last column is empty. The runs
    that touch a run in the row above are consecutive: from the first that ends at its left
    corner to the last that starts at its right one.
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
