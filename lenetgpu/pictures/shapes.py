"""Shapes of masks: sheets of paper, and outlines whose strokes are filled."""

from lenetgpu.arrays import Array, np
from lenetgpu.pictures.masks import box_of, edges_of, eroded, grown, islands, stroke_of

FILLED = "an outline was filled"
# minimum share of its smallest rectangle that a sheet fills (an ellipse: 0.79); maximum aspect
# ratio of a sheet; rotations tried
_RECTANGLE, _LONG, _TURNS = 0.87, 5.0, 30
# minimum cover of an empty sheet; tolerance around a line's mean width; minimum share of its
# smallest rectangle that a bar fills; maximum line width relative to the hole's width
_SOLID, _STROKE, _BAR, _SLIT = 0.98, 0.62, 0.66, 4.0
# minimum size of a sheet relative to the shorter side; maximum cover of a frame; its edge's width
# relative to its size
_LARGE, _RING, _EDGE = 0.25, 0.5, 0.012
# minimum length of a stroke's inside (circle: 1); minimum share of ink along it; maximum stroke
# width relative to the digit; aspect ratio of a bar
_WOUND, _ON_INSIDES, _BROAD, _SLIM = 1.9, 0.85, 0.3, 2.2


def sheet_of(mask: Array) -> Array | None:
    """Return bool (H, W), the content of a sheet or frame with ink `mask` (H, W), or None.

    A sheet is a rectangle at any angle, with anything cut out of it. Its edge is excluded.
    """
    size = max(mask[box_of(mask)].shape)
    if size < max(16, _LARGE * min(mask.shape)):
        return None
    short, long, area = _rectangle_of(mask)
    if long > _LONG * short or area < _RECTANGLE * short * long:
        return None
    sheet = _filled(mask)
    if sheet.sum() < _RECTANGLE * short * long:
        return None
    if mask.sum() < _RING * sheet.sum():
        holes, numbers = islands(sheet & ~mask)
        content = _filled(numbers == holes[0].number) if holes else ~sheet
        if content.sum() < _RING * sheet.sum():
            return None
        sheet = content
    elif mask.sum() < _SOLID * sheet.sum() and _is_stroke(mask, sheet):
        return None
    inner = eroded(sheet, max(2, round(_EDGE * size)))
    return inner if inner.any() else None


def _filled(mask: Array) -> Array:
    """Return `mask` (H, W) with its holes filled."""
    _, numbers = islands(~np.pad(mask, 1))
    return np.asarray(numbers[1:-1, 1:-1] != numbers[0, 0])


def _is_stroke(mask: Array, filled: Array) -> bool:
    """Return True if `mask` (H, W) is an angular 0 or 8: constant width, bar-shaped holes."""
    broad = stroke_of(mask)
    if eroded(mask, max(1, round(_STROKE * broad))).any():
        return False
    holes, numbers = islands(filled & ~mask)
    masks = [numbers == hole.number for hole in holes]
    return all(_is_bar(hole, 1.0) and _SLIT * stroke_of(hole) > broad for hole in masks)


def _is_bar(mask: Array, ratio: float) -> bool:
    """Return True if `mask` (H, W) nearly fills its smallest rectangle, of at least this ratio."""
    short, long, _ = _rectangle_of(mask)
    return bool(mask.sum() > _BAR * short * long and long >= ratio * short)


def _rectangle_of(mask: Array) -> tuple[float, float, float]:
    """Return the sides of the smallest rectangle around `mask` (H, W), and its covered pixels."""
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
    return short, long, float((right - left).sum())


def filled_outline(mask: Array) -> Array | None:
    """Return `mask` (H, W), a digit's ink, with the inside of its outline filled, or None.

    A hole is the inside of a stroke if it is long and narrow; holes of 0 and 8 are round, also
    a narrow 0's. In an outline, nearly all ink lies along such holes, unlike the tail of a 6. A
    bar is ambiguous (a hollow 1, a narrow 0 or 8) and gives None.
    """
    box = box_of(mask)
    size = max(mask[box].shape)
    ink = np.pad(mask[box], 3)
    closed = grown(ink, 1)
    holes, numbers = islands(~closed)
    if len(holes) < 2:
        return None
    outside = numbers[0, 0]
    _, closed_numbers = islands(closed)
    outer = np.unique(closed_numbers[grown(numbers == outside, 1) & closed])
    inner = np.zeros(closed.shape, bool)
    for island in holes:
        hole = numbers == island.number
        touching = closed_numbers[grown(hole, 1) & closed]
        if island.number != outside and np.isin(touching, outer).any() and _length(hole) >= _WOUND:
            inner |= hole
    if not inner.any():
        return None
    thick = max(2, round(float(ink.sum()) / max(1.0, _boundary(ink) / 2)))
    if (ink & grown(inner, 1 + thick)).sum() < _ON_INSIDES * ink.sum():
        return None
    stroke = np.asarray(~grown(~(closed | inner), 1))
    too_broad = 2 * float(stroke.sum()) / _boundary(stroke) > _BROAD * size
    if _length(stroke) < _WOUND or too_broad or _is_bar(stroke, _SLIM):
        return None
    filled = mask.copy()
    filled[box] |= stroke[3:-3, 3:-3]
    return filled


def _length(mask: Array) -> float:
    """Return the squared ratio of the boundary length of `mask` (H, W) bool to that of a circle."""
    return _boundary(mask) ** 2 / (4 * np.pi * float(mask.sum()))


def _boundary(mask: Array) -> float:
    """Estimate the boundary length of `mask` (H, W) bool from crossings in four directions."""
    padded = np.pad(mask, 1)
    aslant = (padded[1:, 1:] != padded[:-1, :-1]).sum()
    aslant += (padded[1:, :-1] != padded[:-1, 1:]).sum()
    return float(np.pi / 8 * (edges_of(mask) + aslant / np.sqrt(2)))
