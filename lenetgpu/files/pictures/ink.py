"""Ink found on paper: its shading taken away, darker or brighter than it, by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.pictures.sizes import blurred, resized

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_FIT = 64
_FAINTEST, _NOISES = 12.0, 5.0
"""Ink stands out by so many of 255 levels, and by so many times the noise of the paper."""


def ink_of(grey: Array) -> tuple[Array, bool]:
    """How much each pixel (H, W) stands out of the paper, in 0..1, and whether it is darker.

    LenetError where nothing does.
    """
    import numpy as np

    away = grey - _paper(grey)
    smooth = blurred(away)
    far = float(np.abs(smooth).max())
    dark = float(smooth[np.abs(smooth) > far / 2].sum()) < 0
    if dark:
        away, smooth = -away, -smooth
    top = smooth[smooth > far / 2]
    level = float(np.median(top)) if top.size else 0.0
    if level < _FAINTEST:
        raise LenetError("expected a digit, found a blank picture")
    noise = _spread(smooth[np.abs(smooth) < level / 2])
    if level < _NOISES * noise:
        raise LenetError("expected a digit, found only noise")
    floor = min(0.4 * level, max(0.1 * level, 3 * noise))
    return np.clip((away - floor) / (level - floor), 0, 1), dark


def _paper(grey: Array) -> Array:
    """What `grey` (H, W) would be without ink: a surface of second order.

    It is fitted to a small picture, again and again without what lies far from it.
    """
    import numpy as np

    height, width = grey.shape
    small = resized(grey, min(height, _FIT), min(width, _FIT))
    terms = _surface(*small.shape)
    values = small.reshape(-1).astype(np.float64)
    border = _border(small.shape).reshape(-1)
    kept = border & _of_most(values, border)
    clear = kept.sum() > 0.8 * border.sum()
    found = np.full(values.shape, np.median(values[kept]))
    for order in (1, 3, 6, 6, 6) if clear else (1, 1):
        if kept.sum() < 4 * order:
            break
        fit = np.linalg.lstsq(terms[kept, :order], values[kept], rcond=None)[0]
        found = terms[:, :order] @ fit
        away = np.abs(values - found)
        kept = away <= max(4.0, 3 * _spread(values[kept] - found[kept]))
    lowest, highest = values.min(), values.max()
    surface = np.clip(found, lowest, highest).reshape(small.shape).astype(np.float32)
    return resized(surface, height, width)


def _spread(values: Array) -> float:
    """The standard deviation that the median distance from the median stands for."""
    import numpy as np

    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _of_most(values: Array, border: Array) -> Array:
    """Which of `values` (n,) are like most of those at the border: paper, where ink touches it.

    Where the border's fall into two heaps, those of the larger heap; else those near its median.
    """
    import numpy as np

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


def _border(shape: tuple[int, ...]) -> Array:
    """bool `shape`: the outer twelfth of a picture on each side, a pixel at least."""
    import numpy as np

    height, width = shape
    down, across = max(1, height // 12), max(1, width // 12)
    found = np.ones(shape, bool)
    found[down : height - down, across : width - across] = False
    return found


def _surface(height: int, width: int) -> Array:
    """(height * width, 6) float64: 1, y, x, y*y, y*x, x*x of each pixel, from -1 to 1."""
    import numpy as np

    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    columns = (np.ones_like(y), y, x, y * y, y * x, x * x)
    return np.stack([column.reshape(-1) for column in columns], axis=1)
