"""Operations on grey arrays and masks: averaging, resizing, growing, connected components."""

from dataclasses import dataclass

from PIL import Image

from lenetgpu.arrays import Array, np

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
    means = rows.mean(axis=1, dtype=np.float32).reshape(height, width, across)
    return np.asarray(means.mean(axis=2))


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
    padded = np.pad(grey, 1, mode="edge")
    sums = padded[:-2] + padded[1:-1] + padded[2:]
    return np.asarray((sums[:, :-2] + sums[:, 1:-1] + sums[:, 2:]) / 9)


def grown(values: Array, by: int) -> Array:
    """Return the maximum of `values` (H, W) within `by` rows and columns."""
    for axis in (0, 1):
        padded = np.pad(values, [(by, by) if a == axis else (0, 0) for a in (0, 1)], mode="edge")
        padded = np.moveaxis(padded, axis, 0)
        count, reach, length = 1, 2 * by + 1, values.shape[axis]
        while 2 * count <= reach:
            padded = np.maximum(padded[:-count], padded[count:])
            count *= 2
        last = reach - count
        values = np.moveaxis(np.maximum(padded[:length], padded[last : last + length]), 0, axis)
    return values


def eroded(mask: Array, by: int) -> Array:
    """Remove from `mask` (H, W) bool all pixels within `by` of its edge or the array's."""
    return np.asarray(~grown(np.pad(~mask, by, constant_values=True), by)[by:-by, by:-by])


def box_of(mask: Array) -> tuple[slice, slice]:
    """Return the row and column slices of the bounding box of `mask` (H, W), which is not empty."""
    rows, columns = (np.flatnonzero(np.any(mask, axis=axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def edges_of(mask: Array) -> int:
    """Return the number of pixel sides on the boundary of `mask` (H, W) bool."""
    padded = np.pad(mask, 1)
    return int((padded[1:] != padded[:-1]).sum() + (padded[:, 1:] != padded[:, :-1]).sum())


def stroke_of(mask: Array) -> float:
    """Estimate the stroke width in pixels: twice the area divided by the boundary length."""
    return 2 * float(mask.sum()) / (edges_of(mask) * _STAIRS)


@dataclass(frozen=True)
class Box:
    """A rectangle: rows from `top` to before `bottom`, columns from `left` to before `right`."""

    top: int
    bottom: int
    left: int
    right: int

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

    def gaps(self, other: "Box") -> tuple[int, int]:
        """Return the free rows and columns between two boxes, negative where they overlap."""
        rows = max(self.top - other.bottom, other.top - self.bottom)
        return rows, max(self.left - other.right, other.left - self.right)


@dataclass(frozen=True)
class Island(Box):
    """A connected component in its bounding box: its number, and its mass in pixels."""

    number: int
    mass: int


def islands(mask: Array) -> tuple[list[Island], Array]:
    """Return the 8-connected components of `mask`, largest first, and (H, W) numbers or -1."""
    height, width = mask.shape
    padded = np.zeros((height, width + 2), np.int8)
    padded[:, 1:-1] = mask
    steps = np.diff(padded, axis=1).reshape(-1)
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    numbers = np.full((height, width), -1, np.int32)
    if not len(starts):
        return [], numbers
    rows, lefts = np.divmod(starts, width + 1)
    rights = ends % (width + 1)
    labels, number = np.unique(_run_labels(starts, ends, width + 1), return_inverse=True)
    count = len(labels)
    top, bottom = np.full(count, height), np.zeros(count, np.int64)
    left, right = np.full(count, width), np.zeros(count, np.int64)
    np.minimum.at(top, number, rows)
    np.maximum.at(bottom, number, rows + 1)
    np.minimum.at(left, number, lefts)
    np.maximum.at(right, number, rights)
    mass = np.bincount(number, rights - lefts, count).astype(np.int64)
    numbers[mask] = np.repeat(number, rights - lefts)
    fields = np.stack([top, bottom, left, right, np.arange(count), mass], axis=1)
    found = [Island(*island) for island in fields.tolist()]
    return sorted(found, key=lambda island: -island.mass), numbers


def _run_labels(starts: Array, ends: Array, pitch: int) -> Array:
    """Return a label (n,) for each run; connected runs share it.

    Runs span `starts` to `ends` (n,) in rows of `pitch`, whose last column is empty. The runs
    that touch a run in the row above are consecutive: from the first that ends at its left
    corner to the last that starts at its right one.
    """
    first = np.searchsorted(ends, starts - pitch, "left")
    counts = np.maximum(np.searchsorted(starts, ends - pitch, "right") - first, 0)
    below = np.repeat(np.arange(len(starts)), counts)
    above = np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)
    labels = np.arange(len(starts))
    while True:
        before = labels.copy()
        least = np.minimum(before[below], before[above])
        np.minimum.at(labels, before[below], least)
        np.minimum.at(labels, before[above], least)
        while (labels != labels[labels]).any():
            labels = labels[labels]
        if (labels == before).all():
            return labels
