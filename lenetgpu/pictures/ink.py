"""Ink extraction: shading removed; ink darker or brighter than the paper, or of another colour."""

from __future__ import annotations

from typing import Any

import numpy as np

from lenetgpu.errors import LenetError
from lenetgpu.pictures.masks import (
    MANY,
    averaged,
    averaged_by,
    blurred,
    box_of,
    eroded,
    grown,
    shrunk,
)

Array = np.ndarray[Any, Any]

_FIT = 64
# minimum contrast of ink in levels of 255, and in standard deviations of the paper's noise
_FAINTEST, _NOISES = 12.0, 5.0


def ink_of(grey: Array, sheet: Array | None = None) -> tuple[Array, bool]:
    """Return how much each pixel (H, W) stands out from the paper, in 0..1, and if ink is darker.

    Pixels outside `sheet` (H, W) bool are zero. Raises LenetError if nothing stands out.
    """
    away = grey - _paper(grey, sheet)
    if sheet is not None:
        away[~sheet] = 0
    smooth = blurred(away)
    far = float(np.abs(smooth).max())
    dark = float(smooth[np.abs(smooth) > far / 2].sum()) < 0
    if dark:
        away, smooth = -away, -smooth
    return _scaled(away, smooth), dark


def lines_of(grey: Array) -> Array:
    """Return how much each pixel (H, W) is darker than the paper nearby, in 0..1, for thin lines
    only.

    The paper is found by a morphological closing over a tenth of the picture, so edges of
    sheets and shadows are no lines. Raises LenetError if nothing stands out.
    """
    if min(grey.shape) < MANY:
        raise LenetError("expected a digit, found a small picture of other things")
    smooth, by = blurred(blurred(grey)), min(grey.shape) // 20
    away = -grown(-grown(smooth, by), by) - smooth
    away -= np.median(away)
    return _scaled(away, away)


def _scaled(away: Array, smooth: Array) -> Array:
    """Scale `away` (H, W) to 0..1 from paper noise to full ink; raise LenetError without ink."""
    top = smooth[smooth > float(smooth.max()) / 2]
    level = float(np.median(top)) if top.size else 0.0
    if level < _FAINTEST:
        raise LenetError("expected a digit, found a blank picture")
    noise = _spread(smooth[np.abs(smooth) < level / 2])
    if level < _NOISES * noise:
        raise LenetError("expected a digit, found only noise")
    floor = min(0.4 * level, max(0.1 * level, 3 * noise))
    found: Array = np.clip((away - floor) / (level - floor), 0, 1)
    return found


def _paper(grey: Array, sheet: Array | None = None) -> Array:
    """Fit a quadratic surface to the paper in `grey` (H, W), or in its part `sheet`.

    The fit uses a reduced picture and is repeated without outliers.
    """
    small = shrunk(grey, _FIT)
    terms = np.stack([term.reshape(-1) for term in _terms(*small.shape)], axis=1)
    values = small.reshape(-1).astype(np.float64)
    on = np.ones(small.shape, bool)
    if sheet is not None:
        on = averaged(sheet.astype(np.float32), averaged_by(grey.shape, _FIT)) > 0.99
        if not on.any():
            raise LenetError("expected a digit, found a blank picture")
    border, inside = _border(on).reshape(-1), on.reshape(-1)
    kept = border & _of_most(values, border)
    clear = kept.sum() > 0.8 * border.sum()
    fit = np.array([np.median(values[kept])])
    for order in (1, 3, 6, 6, 6) if clear else (1, 1):
        if kept.sum() < 4 * order:
            break
        near, wanted = terms[kept, :order].astype(np.float64), values[kept]
        squares = np.einsum("ij,ik->jk", near, near)  # no library's threads for what is small
        fit = np.linalg.lstsq(squares, np.einsum("ij,i->j", near, wanted), rcond=None)[0]
        away = values - np.einsum("ij,j->i", terms[:, :order], fit)
        kept = inside & (np.abs(away) <= max(4.0, 3 * _spread(away[kept])))
    surface = np.zeros(grey.shape, np.float32)
    for factor, term in zip(fit, _terms(*grey.shape), strict=False):
        surface += np.float32(factor) * term
    return np.clip(surface, values[inside].min(), values[inside].max(), out=surface)


def _spread(values: Array) -> float:
    """Estimate the standard deviation from the median absolute deviation; 0 for no values."""
    if not values.size:
        return 0.0
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _of_most(values: Array, border: Array) -> Array:
    """Return which `values` (n,) resemble most border values: paper, where ink meets the border."""
    levels = np.sort(values[border])
    counts = np.arange(1, len(levels))
    sums = np.cumsum(levels)
    below, above = sums[:-1] / counts, (sums[-1] - sums[:-1]) / (len(levels) - counts)
    between = counts * (len(levels) - counts) * (above - below) ** 2 / len(levels) ** 2
    if between.size and between.max() > 0.85 * levels.var() > 1:
        cut = levels[between.argmax()]
        lower: Array = values <= cut
        heavier = 2 * counts[between.argmax()] > len(levels)
        return lower if heavier else ~lower
    near: Array = np.abs(values - np.median(levels)) <= 1 + 2 * _spread(levels)
    return near


def _border(on: Array) -> Array:
    """Return bool (H, W): the outer twelfth of the sheet `on` (H, W) on each side, at least a
    pixel.
    """
    height, width = on.shape
    down, across = (max(1, side // 12) for side in on[box_of(on)].shape)
    inner = on.copy()
    inner[:down] = inner[height - down :] = False
    inner[:, :across] = inner[:, width - across :] = False
    if not on.all():
        inner &= eroded(on, max(1, min(down, across)))
    found: Array = on & ~inner
    return found


def _terms(height: int, width: int) -> list[Array]:
    y, x = np.meshgrid(
        np.linspace(-1, 1, height, dtype=np.float32),
        np.linspace(-1, 1, width, dtype=np.float32),
        indexing="ij",
    )
    return [np.ones_like(y), y, x, y * y, y * x, x * x]


COLOUR = "told by colour, not by brightness"


def apart(bands: list[Array]) -> Array:
    """Project `bands` (H, W) onto the axis of largest colour contrast; (H, W) float32 around 128.

    Colours far from the picture's median colour have the largest weight. Differences keep their
    size, up to 442 between opposite corners of the colour cube.
    """
    away = np.stack([band - np.float32(np.median(band)) for band in bands])
    calm = np.stack([blurred(blurred(band)) for band in away]).reshape(len(bands), -1)
    spread = np.einsum("in,jn->ij", calm, calm).astype(np.float64)
    axis = np.linalg.eigh(spread)[1][:, -1].astype(np.float32)
    found: Array = np.einsum("i,ihw->hw", axis, away) + np.float32(128)
    return found
