"""Sheets of many digits: connected ink joined to digits, in reading order, prepared like MNIST."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError
from lenetgpu.pictures.as_mnist import ink_of, prepared
from lenetgpu.pictures.digits import Digit, box_around
from lenetgpu.pictures.masks import Box, Island, islands, shrunk
from lenetgpu.pictures.read import read_grey

# maximum pixels of a sheet's side during analysis, A4 at 300 dpi; of its `grey`
SHEET_SIDE, _KEPT_SIDE = 3600, 1600
_MOST = 10_000  # connected parts of ink
_INK = 0.35  # minimum share of full ink
_RULED = 0.8  # minimum share of ink in a row or column of pixels that is a ruled line
# relative to the median size: minimum size of a part, of a digit; maximum size of a digit
_SPECK, _SMALL, _LARGE = 0.12, 0.4, 2.5
# of joined parts: maximum gap in rows and size, relative to the median; minimum share of columns
_GAP, _JOINED, _SHARED = 0.25, 1.6, 0.5
_SAME_ROW = 0.6  # maximum distance between centres of neighbours in a row, relative to the median
_ALIKE = 1.8  # maximum ratio of the digits' heights, without the fifth at each end


@dataclass(frozen=True)
class Sheet:
    """A picture's digits in reading order: pixels (n, 28, 28) uint8, bright on black, and places.

    `places`: row and column from 1; x, y, width and height in pixels of the picture, whose (H, W)
    is `size`. `grey` (h, w) float32, 0 to 255: the picture, averaged if large.
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
        ink, numbers, digits = _found(grey)
    except LenetError as error:
        raise LenetError(f"{path}: {error}") from error
    scale, pixels, places = max(size) / max(grey.shape), [], []
    for row, own in enumerate(_rows(digits), 1):
        for column, box in enumerate(own, 1):
            sides = {"x": box.left, "y": box.top, "width": box.width, "height": box.height}
            at = {name: round(scale * side) for name, side in sides.items()}
            places.append({"row": row, "column": column} | at)
            window = slice(box.top, box.bottom), slice(box.left, box.right)
            digit = Digit(Box(0, box.height, 0, box.width), numbers[window] == box.number, [])
            pixels.append(prepared(ink[window], digit, []).pixels)
    return Sheet(np.stack(pixels), places, shrunk(grey, _KEPT_SIDE), size)


def _found(grey: Array) -> tuple[Array, Array, list[Island]]:
    """Return the ink of `grey` (H, W), the number of the digit at each pixel, and the digits."""
    ink, _ = ink_of(grey)
    mask = ink > _INK
    mask &= (mask.mean(axis=1, keepdims=True) < _RULED) & (mask.mean(axis=0) < _RULED)
    parts, numbers = islands(mask)
    if len(parts) > _MOST:
        raise LenetError(f"expected at most {_MOST:,} parts of ink, found {len(parts):,}")
    if not parts:
        raise LenetError("expected digits, found a blank picture")
    sizes, masses = np.array(sorted((part.size, part.mass) for part in parts)).T
    typical = float(sizes[np.searchsorted(masses.cumsum(), masses.sum() / 2)])
    near = [part for part in parts if _SPECK * typical <= part.size <= _LARGE * typical]
    joined = _joined(near, numbers, typical)
    digits = [digit for digit in joined if digit.size >= _SMALL * typical]
    low, high = np.percentile([digit.height for digit in digits], (20, 80))
    if high > _ALIKE * low:
        raise LenetError("expected digits of one size, found a photo or other shapes")
    return ink, numbers, digits


def _joined(parts: list[Island], numbers: Array, typical: float) -> list[Island]:
    """Join parts (largest first) that share columns to digits, also in `numbers` (H, W)."""
    digits: list[Island] = []
    for part in parts:
        for at, digit in enumerate(digits):
            (rows, columns), both = digit.gaps(part), box_around([digit, part])
            is_near = rows < _GAP * typical and both.size <= _JOINED * typical
            if is_near and -columns >= _SHARED * min(digit.width, part.width):
                window = numbers[part.top : part.bottom, part.left : part.right]
                window[window == part.number] = digit.number
                digits[at] = replace(digit, **asdict(both))
                break
        else:
            digits.append(part)
    return digits


def _rows(digits: list[Island]) -> list[list[Island]]:
    """Group digits to rows, which may lean: one continues the row with the nearest last digits."""
    reach = _SAME_ROW * np.median([digit.size for digit in digits])
    rows: list[list[Island]] = []
    for digit in sorted(digits, key=lambda digit: digit.left):
        near = min(rows, key=lambda row: abs(_middle(row[-3:]) - _middle([digit])), default=[])
        if near and abs(_middle(near[-3:]) - _middle([digit])) <= reach:
            near.append(digit)
        else:
            rows.append([digit])
    return sorted(rows, key=_middle)


def _middle(row: list[Island]) -> float:
    return sum(digit.top + digit.bottom for digit in row) / 2 / len(row)
