"""Preparation of grey pictures like MNIST's digits: bright ink on black, 20x20, centred in 28x28.

Steps: fit and remove the paper's shading; decide whether ink is darker or brighter than the paper;
extract what stands out as ink; join its parts to digits; crop the largest digit, thicken thin
strokes, fit it into 20x20 and centre it by mass.
"""

from dataclasses import dataclass

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE
from lenetgpu.pictures import masks
from lenetgpu.pictures.digits import Digit, digit_of
from lenetgpu.pictures.shapes import FILLED, filled_outline, sheet_of

_BOX = 20  # pixels of the square that a digit is fitted into
_STROKE = 2.0  # minimum stroke width in pixels of a 20-pixel digit; MNIST has two to four
_EDGE = 0.15  # share of full ink at which a digit's box ends
# nested sheets tried; width of the strokes of an empty sheet, relative to its size
_SHEETS, _EMPTY = 3, 0.36
_HOLLOW = 0.1  # maximum line width of an outline, relative to the digit's size
_INVERTED, _COLOUR = "dark on light, inverted", "ink found by colour, not by brightness"
_FIT = 64  # maximum pixels of a side of the reduced picture that the paper is fitted to
# minimum contrast of ink in levels of 255, and in standard deviations of the paper's noise
_FAINTEST, _NOISES = 12.0, 5.0


@dataclass(frozen=True)
class Prepared:
    """A prepared digit: `pixels` (28, 28) uint8, bright ink on black, and `notes`."""

    pixels: Array
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Extracted:
    """Extracted `ink` (H, W) in 0..1, whether it is darker than the paper, and its digit."""

    ink: Array
    dark: bool
    digit: Digit
    depth: int = 0  # nesting depth of the sheet


def as_mnist(grey: Array) -> Prepared:
    """Prepare `grey` (H, W) float32, 0 black to 255 white, like MNIST's digits.

    Raises LenetError beginning with "expected a digit" for a blank picture or noise.
    """
    extracted = _extracted(masks.shrunk(grey))
    return _prepared(extracted, [_INVERTED] if extracted.dark else [])


def of_colours(bands: list[Array]) -> Prepared:
    """Prepare `bands`, three (H, W) float32 arrays or none, like `as_mnist`, by colour contrast.

    Brightness does not tell which of two colours is ink, so ink is the part that stands out.
    Raises LenetError if it has no strokes. Faint lines are not searched for.
    """
    if not bands:
        raise LenetError("expected a digit, found no colours")
    extracted = _extracted(_colour_contrast([masks.shrunk(band) for band in bands]), lines=False)
    if extracted.digit.doubtful or extracted.digit.cut > 2:
        raise LenetError("expected a digit, found fields of colour")
    return _prepared(extracted, [_COLOUR])


def _prepared(extracted: _Extracted, notes: list[str]) -> Prepared:
    ink, digit = extracted.ink, extracted.digit
    notes += digit.notes
    filled = filled_outline(digit.mask) if digit.width <= _HOLLOW else None
    if filled is not None:
        ink, digit = np.maximum(ink, filled), Digit(digit.box, filled, [])
        notes.append(FILLED)
    return Prepared(_centred(_fitted(_cropped(ink, digit))), tuple(notes))


def _extracted(
    grey: Array, sheet: Array | None = None, depth: int = 0, lines: bool = True
) -> _Extracted:
    """Extract ink and its digit from `grey` (H, W), or from its `sheet`; LenetError if none.

    A sheet or screen on darker or brighter ground is read alone, up to three nested ones. If
    the result looks like a shadow or a part of a sheet rather than strokes and `lines` is set,
    thin dark lines are tried, and used if they form a digit.
    """
    try:
        ink, dark = _ink_of(grey, sheet)
        extracted = _Extracted(ink, dark, digit_of(ink, sheet), depth)
    except LenetError:
        thin = _thin_lines(grey) if lines else None
        if thin is None:
            raise
        return thin
    inside = _on_sheet(grey, extracted) if depth < _SHEETS else None
    if inside is not None:
        return inside
    if not lines or not extracted.digit.doubtful:
        return extracted
    thin = _thin_lines(grey)
    if thin is None and extracted.digit.solid:
        raise LenetError("expected a digit, found a solid shape")
    return thin or extracted


def _on_sheet(grey: Array, outer: _Extracted) -> _Extracted | None:
    """Extract the ink on the sheet in `grey` (H, W); None if no sheet, or no digit on it."""
    sheet = sheet_of(outer.digit.mask)
    if sheet is None:
        return None
    box = masks.box_of(sheet)
    try:
        inner = _extracted(grey[box], sheet[box], outer.depth + 1, lines=False)
    except LenetError as error:
        if outer.digit.cut or outer.digit.width < _EMPTY:
            return None
        raise LenetError("expected a digit, found a solid shape or an empty sheet") from error
    is_shadow = outer.digit.cut and inner.depth == outer.depth + 1
    crosses_edge = is_shadow and (inner.digit.mask & ~masks.eroded(sheet[box], 2)).any()
    return None if inner.digit.doubtful or crosses_edge else inner


def as_it_is(grey: Array, size: tuple[int, int]) -> Prepared:
    """Resize `grey` (H, W) float32, 0 to 255, to 28x28; `size` is the original (H, W)."""
    height, width, _ = IMAGE_SHAPE
    notes: tuple[str, ...] = ()
    if grey.shape != (height, width):
        notes = (f"resized from {size[1]}x{size[0]}",)
        grey = masks.resized(masks.shrunk(grey), height, width)
    return Prepared(np.clip(np.rint(grey), 0, PIXEL_SCALE).astype(np.uint8), notes)


def _cropped(ink: Array, digit: Digit) -> Array:
    """Crop the digit's ink with its blurred border, without other parts; thicken thin strokes."""
    box = digit.box
    missing = (_STROKE * box.size / _BOX - digit.stroke) / 2
    border = 1 + max(0, round(missing))
    window = slice(box.top, box.bottom + 2 * border), slice(box.left, box.right + 2 * border)
    cropped, mask = (np.pad(values, border)[window] for values in (ink, digit.mask))
    cropped[~masks.grown(mask, 1)] = 0
    return masks.grown(cropped, round(missing)) if missing > 0.5 else cropped


def _fitted(ink: Array) -> Array:
    ink = ink[masks.box_of(ink > _EDGE)]
    sides = (max(1, round(_BOX * side / max(ink.shape))) for side in ink.shape)
    fitted = masks.resized(ink, *sides)
    return np.asarray(fitted / max(float(fitted.max()), 1e-6))


def _centred(fitted: Array) -> Array:
    """Place `fitted` (h, w) in (28, 28) uint8 with its centre of mass near the middle."""
    out = np.zeros(IMAGE_SHAPE[:2], np.uint8)
    total = float(fitted.sum())
    corner = []
    for axis, side in enumerate(fitted.shape):
        centre = float((fitted.sum(axis=1 - axis) * (np.arange(side) + 0.5)).sum()) / total
        corner.append(min(max(round(out.shape[axis] / 2 - centre), 0), out.shape[axis] - side))
    top, left = corner
    pixels = np.rint(fitted * PIXEL_SCALE).astype(np.uint8)
    out[top : top + len(pixels), left : left + pixels.shape[1]] = pixels
    return out


def _ink_of(grey: Array, sheet: Array | None = None) -> tuple[Array, bool]:
    """Return how far pixels (H, W) stand out from the paper, in 0..1, and if ink is darker."""
    contrast = grey - _paper(grey, sheet)
    if sheet is not None:
        contrast[~sheet] = 0
    smooth = masks.blurred(contrast)
    dark = float(smooth[np.abs(smooth) > float(np.abs(smooth).max()) / 2].sum()) < 0
    if dark:
        contrast, smooth = -contrast, -smooth
    return _scaled(contrast, smooth), dark


def _thin_lines(grey: Array) -> _Extracted | None:
    """Extract the thin lines of `grey` (H, W) that are darker than the paper nearby.

    The paper is a morphological closing over a tenth of the picture. None if they form no digit.
    """
    if min(grey.shape) < masks.MANY:
        return None
    smooth, by = masks.blurred(masks.blurred(grey)), min(grey.shape) // 20
    contrast = -masks.grown(-masks.grown(smooth, by), by) - smooth
    contrast -= np.median(contrast)
    try:
        ink = _scaled(contrast, contrast)
        digit = digit_of(ink, lines=True)
    except LenetError:
        return None
    return None if digit.doubtful else _Extracted(ink, True, digit)


def _scaled(contrast: Array, smooth: Array) -> Array:
    """Scale `contrast` (H, W) to 0..1 from paper noise to full ink; LenetError without ink."""
    top = smooth[smooth > float(smooth.max()) / 2]
    level = float(np.median(top)) if top.size else 0.0
    if level < _FAINTEST:
        raise LenetError("expected a digit, found a blank picture")
    noise = _spread(smooth[np.abs(smooth) < level / 2])
    if level < _NOISES * noise:
        raise LenetError("expected a digit, found only noise")
    floor = min(0.4 * level, max(0.1 * level, 3 * noise))
    return np.asarray(np.clip((contrast - floor) / (level - floor), 0, 1))


def _paper(grey: Array, sheet: Array | None = None) -> Array:
    """Fit a quadratic surface to the paper in `grey` (H, W), or in its part `sheet`."""
    small = masks.shrunk(grey, _FIT)
    terms = np.stack([term.reshape(-1) for term in _terms(*small.shape)], axis=1)
    values = small.reshape(-1).astype(np.float64)
    on = np.ones(small.shape, bool)
    if sheet is not None:
        on = masks.averaged(sheet.astype(np.float32), masks.averaged_by(grey.shape, _FIT)) > 0.99
        if not on.any():
            raise LenetError("expected a digit, found a blank picture")
    border, inside = _border(on).reshape(-1), on.reshape(-1)
    used = border & _most_common(values, border)
    fit = np.array([np.median(values[used])])
    for order in (1, 3, 6, 6, 6) if used.sum() > 0.8 * border.sum() else (1, 1):
        if used.sum() < 4 * order:
            break
        used_terms = terms[used, :order].astype(np.float64)
        # einsum: no library's threads, as it is small
        squares = np.einsum("ij,ik->jk", used_terms, used_terms)
        products = np.einsum("ij,i->j", used_terms, values[used])
        fit = np.linalg.lstsq(squares, products, rcond=None)[0]
        residual = values - np.einsum("ij,j->i", terms[:, :order], fit)
        used = inside & (np.abs(residual) <= max(4.0, 3 * _spread(residual[used])))
    surface = np.zeros(grey.shape, np.float32)
    for factor, term in zip(fit, _terms(*grey.shape), strict=False):
        surface += np.float32(factor) * term
    return np.clip(surface, values[inside].min(), values[inside].max(), out=surface)


def _spread(values: Array) -> float:
    """Estimate the standard deviation from the median absolute deviation; 0 for no values."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if values.size else 0.0


def _most_common(values: Array, border: Array) -> Array:
    """Return which `values` (n,) resemble most border values: paper, where ink meets the border."""
    levels = np.sort(values[border])
    counts = np.arange(1, len(levels))
    sums = np.cumsum(levels)
    below, above = sums[:-1] / counts, (sums[-1] - sums[:-1]) / (len(levels) - counts)
    between = counts * (len(levels) - counts) * (above - below) ** 2 / len(levels) ** 2
    if between.size and between.max() > 0.85 * levels.var() > 1:
        lower = values <= levels[between.argmax()]
        return np.asarray(lower if 2 * counts[between.argmax()] > len(levels) else ~lower)
    return np.asarray(np.abs(values - np.median(levels)) <= 1 + 2 * _spread(levels))


def _border(on: Array) -> Array:
    """Return the outer twelfth of the sheet `on`, bool (H, W), on each side, at least a pixel."""
    height, width = on.shape
    down, across = (max(1, side // 12) for side in on[masks.box_of(on)].shape)
    inner = np.zeros_like(on)
    inner[down : height - down, across : width - across] = True
    inner &= on
    if not on.all():
        inner &= masks.eroded(on, max(1, min(down, across)))
    return np.asarray(on & ~inner)


def _terms(height: int, width: int) -> list[Array]:
    down, across = (np.linspace(-1, 1, side, dtype=np.float32) for side in (height, width))
    y, x = np.meshgrid(down, across, indexing="ij")
    return [np.ones_like(y), y, x, y * y, y * x, x * x]


def _colour_contrast(bands: list[Array]) -> Array:
    """Project `bands` (H, W) onto the axis of largest colour contrast; (H, W) float32 around 128.

    Colours far from the picture's median colour have the largest weight. Differences keep their
    size, up to 442 between opposite corners of the colour cube.
    """
    contrast = np.stack([band - np.float32(np.median(band)) for band in bands])
    smooth = np.stack([masks.blurred(masks.blurred(band)).reshape(-1) for band in contrast])
    spread = np.einsum("in,jn->ij", smooth, smooth).astype(np.float64)
    axis = np.linalg.eigh(spread)[1][:, -1].astype(np.float32)
    return np.asarray(np.einsum("i,ihw->hw", axis, contrast) + np.float32(128))
