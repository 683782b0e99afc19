"""A hollow digit, of which only the outline is drawn: found, and its strokes filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.pictures.islands import islands
from lenetgpu.pictures.sheets import is_bar
from lenetgpu.pictures.sizes import box_of, grown

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FILLED = "an outline was filled"
_LONG, _ALONG, _BROAD, _SLIM = 1.9, 0.85, 0.3, 2.2
"""What is inside of a stroke is as long, a circle is 1; so much of an outline's ink lies along it;
of the digit's size, how broad the stroke is at most; so many times longer than wide is a bar."""


def filled_outline(mask: Array) -> Array | None:
    """`mask` (H, W), a digit's ink, with the inside of its outline; None: it is no outline.

    What ink encloses is the inside of a stroke where it is long and narrow; a 0's or an 8's hole is
    round, and so is a narrow 0 with it. Nearly all ink of an outline lies along such insides: the
    tail of a 6 does not. A bar is none: it may be a hollow 1, or a narrow 0 or 8 as well.
    """
    import numpy as np

    box = box_of(mask)
    size = max(mask[box].shape)
    closed = grown(np.pad(mask[box], 3), 1)
    holes, numbers = islands(~closed)
    if len(holes) < 2:
        return None
    outside = numbers[0, 0]
    inner = np.zeros(closed.shape, bool)
    rim = grown(numbers == outside, 1)
    _, names = islands(closed)
    outer = np.unique(names[rim & closed])
    for hole in holes:
        one = numbers == hole.number
        if hole.number == outside or not np.isin(names[grown(one, 1) & closed], outer).any():
            continue
        if _longness(one) >= _LONG:
            inner |= one
    if not inner.any():
        return None
    ink = np.pad(mask[box], 3)
    thick = max(2, round(float(ink.sum()) / max(1.0, _edge(ink) / 2)))
    if (ink & grown(inner, 1 + thick)).sum() < _ALONG * ink.sum():
        return None
    whole: Array = ~grown(~(closed | inner), 1)
    if _longness(whole) < _LONG or 2 * float(whole.sum()) / _edge(whole) > _BROAD * size:
        return None
    if is_bar(whole, _SLIM):
        return None
    found = mask.copy()
    found[box] |= whole[3:-3, 3:-3]
    return found


def _longness(one: Array) -> float:
    """How much longer the edge of `one` (H, W) bool is than a circle's: squared, by its area."""
    import numpy as np

    return _edge(one) ** 2 / (4 * np.pi * float(one.sum()))


def _edge(one: Array) -> float:
    """The length of the edge of `one` (H, W) bool: how often lines of four directions cross it."""
    import numpy as np

    wide = np.pad(one, 1)
    straight = (wide[1:] != wide[:-1]).sum() + (wide[:, 1:] != wide[:, :-1]).sum()
    aslant = (wide[1:, 1:] != wide[:-1, :-1]).sum() + (wide[1:, :-1] != wide[:-1, 1:]).sum()
    return float(np.pi / 8 * (straight + aslant / np.sqrt(2)))
