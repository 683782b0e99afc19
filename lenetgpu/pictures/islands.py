"""Connected parts of a mask, in NumPy: which pixels of ink hang together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


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
    import numpy as np

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
    import numpy as np

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
