"""Sheets of many digits: connected ink joined to digits, in reading order, prepared like MNIST."""

from dataclasses import dataclass
from pathlib import Path

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.pictures.as_mnist import as_mnist, ink_of
from lenetgpu.pictures.digits import box_around, is_rim
from lenetgpu.pictures.masks import Box, Island, blurred, grown, islands, stroke_of
from lenetgpu.pictures.read import read_grey

SHEET_SIDE = 3600  # maximum pixels of a sheet's side during analysis: A4 at 300 dpi
_MOST = 10_000  # connected parts of ink
# share of full ink, of pixels and of 3x3 means; minimum stroke width in pixels for means
_INK, _MEAN, _BROAD = 0.35, 0.4, 4.0
# relative to the median size: minimum size of a part, of a digit; maximum size of a digit
_SPECK, _SMALL, _LARGE = 0.12, 0.4, 2.5
# relative to the median size: maximum gap between rows of a broken stroke; height of a whole digit;
# maximum size of joined parts; maximum distance between centres of neighbours in a row
_GAP, _WHOLE, _JOINED, _SAME_ROW = 0.25, 0.75, 1.6, 0.6
# a line's minimum aspect ratio; relative to the sheet's longer side: its length, that of its runs
_LINE, _LENGTH, _RUN = 8.0, 0.2, 0.03
_CONTENT = 0.25  # minimum ink in a frame, relative to the frame's
PLACE = ("row", "column", "x", "y", "width", "height")
_LEAST = 0.5  # minimum share of the ink, and of the parts, that digits have


@dataclass(frozen=True)
class Sheet:
    """A picture's digits in reading order: pixels (n, 28, 28) uint8, bright on black, and places.

    `places` are of PLACE: row and column from 1, and the box in pixels of the picture, whose (H, W)
    is `size`. `grey` (h, w) float32, 0 to 255, is the picture, averaged if large.
    """

    pixels: Array
    places: list[dict[str, int]]
    grey: Array
    size: tuple[int, int]


def read_sheet(path: Path) -> Sheet:
    """Read every digit of a picture file, in rows from top to bottom and from left to right.

    Raises LenetError naming the file if it cannot be read or shows no digits.
    """
    grey, _, size = read_grey(path, SHEET_SIDE)
    try:
        rows = _rows(_prepared(grey))
    except LenetError as error:
        found = str(error).replace("a digit", "digits")
        raise LenetError(f"{path}: {found}") from error
    scale, places = max(size) / max(grey.shape), []
    for row, digits in enumerate(rows, 1):
        for column, (box, _) in enumerate(digits, 1):
            sides = (round(scale * n) for n in (box.left, box.top, box.width, box.height))
            places.append(dict(zip(PLACE, (row, column, *sides), strict=True)))
    return Sheet(np.stack([pixels for row in rows for _, pixels in row]), places, grey, size)


def _prepared(grey: Array) -> list[tuple[Box, Array]]:
    """Return the box and pixels (28, 28) of each digit in `grey` (H, W); LenetError if none."""
    ink, _ = ink_of(grey)
    mask = blurred(ink) > _MEAN
    if not mask.any() or stroke_of(mask) < _BROAD:
        mask = ink > _INK
    nothing = np.zeros_like(mask)
    strokes = mask & ~_ruling(mask, nothing) & ~_ruling(mask.T, nothing.T).T
    ruling = _ruling(mask, strokes) | _ruling(mask.T, strokes.T).T
    ink, mask = np.where(ruling, 0, ink), mask & ~ruling
    parts, numbers = islands(mask)
    if len(parts) > _MOST:
        raise LenetError(f"expected at most {_MOST:,} parts of ink, found {len(parts):,}")
    parts = _without_frames(parts, numbers)
    if not parts:
        raise LenetError("expected a digit, found a blank picture")
    sizes, masses = np.array(sorted((part.size, part.mass) for part in parts)).T
    typical = float(sizes[np.searchsorted(masses.cumsum(), masses.sum() / 2)])
    near = [part for part in parts if _SPECK * typical <= part.size <= _LARGE * typical]
    groups = [g for g in _joined(near, typical) if box_around(g).size >= _SMALL * typical]
    found, mass = [], 0
    for group in groups:
        try:
            found.append((box_around(group), as_mnist(_cropped(ink, numbers, group)).pixels))
        except LenetError:  # a solid shape or noise
            continue
        mass += sum(part.mass for part in group)
    if len(found) < _LEAST * len(groups) or mass < _LEAST * masses.sum():
        raise LenetError("expected a digit, found other shapes")
    return found


def _ruling(mask: Array, strokes: Array) -> Array:
    """Return the nearly horizontal lines in `mask` (H, W), except where `strokes` cross them."""
    longest, ruling = max(mask.shape), np.zeros_like(mask)
    steps = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    (rows, lefts), (_, rights) = (steps == 1).nonzero(), (steps == -1).nonzero()
    short = rights - lefts < _RUN * longest
    steps[rows[short], lefts[short]] = steps[rows[short], rights[short]] = 0
    lines, numbers = islands(steps[:, :-1].cumsum(axis=1) > 0)
    for line in lines:
        if line.width < _LENGTH * longest or line.width**2 < _LINE * line.mass:
            continue
        on = numbers[line.top : line.bottom, line.left : line.right] == line.number
        tops, bottoms = line.top + on.argmax(axis=0), line.bottom - on[::-1].argmax(axis=0)
        columns, by = np.arange(line.left, line.right), int((bottoms - tops).max())
        beside = np.maximum(tops - 2, 0), np.minimum(bottoms + 1, len(mask) - 1)
        above, below = (grown(strokes[side, columns][None], by) for side in beside)
        y = np.arange(len(mask))[max(0, line.top - 1) : line.bottom + 1, None]
        ruling[y, columns] |= (y >= tops - 1) & (y <= bottoms) & ~(above & below)
    return np.asarray(ruling & mask)


def _without_frames(parts: list[Island], numbers: Array) -> list[Island]:
    """Return `parts` of `numbers` (H, W) without frames, and without empty ones of their size."""
    edges = np.array([(p.top, p.left, -p.bottom, -p.right) for p in parts]).reshape(-1, 4)
    masses = np.array([part.mass for part in parts])
    inside = np.array([masses[(edges > edge).all(axis=1)].sum() for edge in edges])
    frames = (inside > _CONTENT * masses).tolist()
    sizes = [(part.height // 4, part.width // 4) for part in parts]
    cells = {size for size, frame in zip(sizes, frames, strict=True) if frame}
    kept = zip(parts, sizes, frames, strict=True)
    return [p for p, size, frame in kept if not (frame or (size in cells and is_rim(p, numbers)))]


def _joined(parts: list[Island], typical: float) -> list[list[Island]]:
    """Join parts (largest first) whose boxes overlap and that together have a digit's size.

    Two parts as high as a digit are joined only if half of one's columns belong to both.
    """
    groups: list[list[Island]] = []
    boxes: list[Box] = []
    for part in parts:
        for number, box in enumerate(boxes):
            rows, columns = box.gaps(part)
            if columns >= 0 or rows >= _GAP * typical:
                continue
            both = box_around([box, part])
            inside = -columns >= 0.5 * min(box.width, part.width)
            is_one = inside or (rows < 0 and min(box.height, part.height) < _WHOLE * typical)
            if is_one and both.size <= _JOINED * max(box.size, typical):
                groups[number].append(part)
                boxes[number] = both
                break
        else:
            groups.append([part])
            boxes.append(part)
    return groups


def _cropped(ink: Array, numbers: Array, group: list[Island]) -> Array:
    """Return the grey crop (h, w), 0 to 255, of a digit alone, bright on black with a border."""
    box = box_around(group)
    rows = slice(max(0, box.top - 2), box.bottom + 2)
    columns = slice(max(0, box.left - 2), box.right + 2)
    mask = grown(np.isin(numbers[rows, columns], [part.number for part in group]), 1)
    crop = np.where(mask, ink[rows, columns], 0) * np.float32(PIXEL_SCALE)
    return np.pad(crop, 2 + box.size // 4)


def _rows(digits: list[tuple[Box, Array]]) -> list[list[tuple[Box, Array]]]:
    """Group digits to rows, which may lean: one continues the row with the nearest last digits."""
    typical = float(np.median([box.size for box, _ in digits]))
    rows: list[list[tuple[Box, Array]]] = []
    for digit in sorted(digits, key=lambda digit: digit[0].left):
        distances = [abs(_middle(row[-3:]) - _middle([digit])) for row in rows]
        if distances and min(distances) <= _SAME_ROW * typical:
            rows[distances.index(min(distances))].append(digit)
        else:
            rows.append([digit])
    return sorted(rows, key=_middle)


def _middle(row: list[tuple[Box, Array]]) -> float:
    return sum(box.top + box.bottom for box, _ in row) / 2 / len(row)
