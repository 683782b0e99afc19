"""Parts of ink joined to digits, without frames and lines; selection of the largest."""

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError
from lenetgpu.pictures.masks import MANY, Box, Island, blurred, edges_of, eroded, islands, stroke_of

FRAME, LINE = "a frame was left out", "a line was left out"
# relative to a frame's size: minimum size of its content; tolerance between empty cells
_CONTENT, _SAME = 0.2, 0.15
# relative to a box's side: distance of a frame's ink; share of the ink within it
_RIM, _ON_RIM = 0.07, 0.9
# a line's aspect ratio; its length relative to the part next to it; minimum relative size of that
# part, and its relative distance
_STRAIGHT, _LONGER, _OTHER, _APART = 8.0, 1.25, 0.25, 0.08
# relative to the largest part's size: below it is a speck, above it a digit of its own, and the
# distance within which a part belongs to the largest
_SPECK, _LIKE, _NEAR = 0.12, 0.5, 0.35
_JAGGED = 40  # maximum edge length relative to size; an 8 has ten
_ALONG = 0.15  # share of the picture's border; more on two sides is a shadow
# relative to a digit's size: ruled lines are narrower; wider strokes are none, are none if cut off
# by borders, are a solid shape
_RULED, _SOLID, _CUT, _SHAPE = 0.05, 0.3, 0.24, 0.45
# share of full ink (3x3 mean) of a stroke; the same for strokes narrower than the third figure in
# pixels, in at most so many pieces (more is noise)
_MOST, _SOME, _THIN, _PIECES = 0.4, 0.2, 2.5, 60
# relative to its size: parts that lie further along a sheet's edge belong to the edge
_ALONG_SHEET = 0.5


def _without_frames(parts: list[Island], numbers: Array) -> tuple[list[Island], list[str]]:
    """Return `parts` of `numbers` (H, W) without frames and lines, and notes on those."""
    rims = [part for part in parts if min(part.height, part.width) > 8 and _is_rim(part, numbers)]
    frames = [rim for rim in rims if any(_surrounds(rim, part) for part in parts)]
    frames += [rim for rim in rims if any(_same_size(rim, frame) for frame in frames)]
    parts = [part for part in parts if part not in frames]
    straight = [part for part in parts if part.size > 8 and _is_straight(part, numbers)]
    others = [part for part in parts if part not in straight]
    lines = [part for part in straight if any(_is_line_of(part, other) for other in others)]
    notes = [FRAME] * bool(frames) + [LINE] * bool(lines)
    return [part for part in parts if part not in lines], notes


def _pixels(part: Island, numbers: Array) -> tuple[Array, Array]:
    """Return rows and columns (n,) of an island's pixels, relative to its box."""
    box = numbers[part.top : part.bottom, part.left : part.right]
    rows, columns = (box == part.number).nonzero()
    return rows, columns


def _is_rim(part: Island, numbers: Array) -> bool:
    """Return True if the island is the outline of its box or of the inscribed ellipse."""
    if part.mass > 0.4 * part.height * part.width:
        return False
    rows, columns = _pixels(part, numbers)
    y, x = 2 * (rows + 0.5) / part.height - 1, 2 * (columns + 0.5) / part.width - 1
    angles = np.histogram(np.arctan2(y, x), 16, (-np.pi, np.pi))[0]
    square, circle = np.maximum(np.abs(y), np.abs(x)), np.hypot(y, x)
    distances = square, np.minimum(circle, 2 - circle)
    share = max(float((distance > 1 - 2 * _RIM).mean()) for distance in distances)
    return bool(angles.min() > 0) and share > _ON_RIM


def _surrounds(rim: Box, part: Box) -> bool:
    rows = rim.top < part.top < part.bottom < rim.bottom
    columns = rim.left < part.left < part.right < rim.right
    return rows and columns and part.size >= _CONTENT * rim.size


def _same_size(rim: Box, frame: Box) -> bool:
    differences = abs(rim.height - frame.height), abs(rim.width - frame.width)
    return rim is not frame and max(differences) <= _SAME * frame.size


def _is_straight(part: Island, numbers: Array) -> bool:
    """Return True if the island is many times longer than wide, in any direction."""
    points = np.stack(_pixels(part, numbers)).astype(np.float64)
    points -= points.mean(axis=1, keepdims=True)
    yy, xx, yx = (float((points[a] * points[b]).mean()) for a, b in ((0, 0), (1, 1), (0, 1)))
    half, turn = (yy + xx) / 2, float(np.hypot((yy - xx) / 2, yx))
    return half + turn > _STRAIGHT**2 * max(half - turn, 1 / 12)


def _is_line_of(line: Box, part: Box) -> bool:
    """Return True if `line` is longer than `part`, separate from it, and `part` is no speck."""
    is_longer, is_part = line.size >= _LONGER * part.size, part.size >= _OTHER * line.size
    return is_longer and is_part and max(line.gaps(part)) >= _APART * line.size


class Digit:
    """A digit: its `box`, its `mask` (H, W), and `notes` on other ink.

    - `stroke`: approximate stroke width in pixels; `width`: the same relative to the digit's size.
    - `cut`: number of picture borders that it touches.
    - `along`: share of the picture's border that its ink covers; large for a shadow.
    """

    def __init__(self, box: Box, mask: Array, notes: list[str]) -> None:
        self.box, self.mask, self.notes = box, mask, notes
        self.stroke = stroke_of(mask)
        self.width = self.stroke / box.size
        height, width = mask.shape
        self.cut = sum((box.top == 0, box.left == 0, box.bottom == height, box.right == width))
        sides = (mask[0], mask[-1], mask[:, 0], mask[:, -1])
        self.along = float(sum(side.sum() for side in sides)) / (2 * sum(mask.shape))

    @property
    def doubtful(self) -> bool:
        """True if it looks like a sheet, a shadow or lines: solid, or cut off by two borders."""
        if self.cut < 2:
            return self.width > _SOLID
        return self.along > _ALONG or not _RULED < self.width < _CUT

    @property
    def solid(self) -> bool:
        """True if it has no strokes: a square, a disc, half of the picture."""
        return self.width > (_SOLID if self.cut >= 3 else _SHAPE)


def _box(parts: list[Island]) -> Box:
    return Box(
        min(part.top for part in parts),
        max(part.bottom for part in parts),
        min(part.left for part in parts),
        max(part.right for part in parts),
    )


def digit_of(ink: Array, sheet: Array | None = None, lines: bool = False) -> Digit:
    """Return the largest digit of `ink` (H, W); raise LenetError if there is none.

    Parts that touch the border of the picture or of `sheet` (H, W) bool are ignored if there
    are others. `lines`: the ink is that of thin dark lines, whose faint rims are no strokes.
    """
    smooth = blurred(ink)
    mask = smooth > _MOST
    parts, numbers = islands(mask)
    if not lines and smooth is not ink and 0 < len(parts) <= _PIECES and stroke_of(mask) < _THIN:
        parts, numbers = islands(smooth > _SOME)
    parts, notes = _without_frames(_inner(parts, numbers, sheet), numbers)
    if not parts:
        raise LenetError("expected a digit, found a blank picture")
    mass, largest = sum(part.mass for part in parts), max(part.size for part in parts)
    parts = [part for part in parts if part.size >= max(1, _SPECK * largest)]
    parts.sort(key=lambda part: -part.size * part.mass)
    digits = [[parts[0]]]
    for part in parts[1:]:
        near = min(digits, key=lambda digit: _distance(digit, part))
        is_large = part.size >= _LIKE * parts[0].size
        rows, columns = near[0].gaps(part)  # in one line of text, a digit has its own columns
        if is_large and columns >= 0 and -rows >= 0.5 * min(near[0].height, part.height):
            digits.append([part])
        elif _distance(near, part) <= _NEAR * near[0].size:
            near.append(part)
        elif is_large:
            digits.append([part])
    if len(digits) > 12 or sum(part.mass for digit in digits for part in digit) / mass < 0.15:
        raise LenetError(f"expected a digit, found ink in {len(parts):,} places")
    chosen = np.isin(numbers, [part.number for part in digits[0]])
    if edges_of(chosen) > _JAGGED * max(largest, MANY):
        raise LenetError("expected a digit, found only noise")
    if len(digits) > 1:
        notes.insert(0, f"{len(digits)} separate digits; only the largest is read")
    return Digit(_box(digits[0]), chosen, notes)


def _inner(parts: list[Island], numbers: Array, sheet: Array | None) -> list[Island]:
    """Return `parts` without those at the picture's border, if one of fair size remains."""
    if sheet is None:
        height, width = numbers.shape
        inside = [p for p in parts if p.top > 0 and p.bottom < height]
        inner = [part for part in inside if part.left > 0 and part.right < width]
    else:
        along = np.bincount(numbers[~eroded(sheet, 2) & (numbers >= 0)], minlength=len(parts))
        inner = [part for part in parts if along[part.number] <= _ALONG_SHEET * part.size]
    largest, inner_largest = (max((p.size for p in some), default=0) for some in (parts, inner))
    return inner if inner_largest >= 0.25 * largest else parts


def _distance(digit: list[Island], part: Island) -> int:
    return max(0, *_box(digit).gaps(part))
