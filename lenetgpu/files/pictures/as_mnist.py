"""A picture's grey prepared as MNIST's digits were: ink bright on black, 20x20, centred on 28x28.

In order: the paper's shading is fitted and taken away; whether ink is darker or brighter than the
paper is found; ink is what stands out; its parts are put together to digits, the largest of which
is cropped, thickened where its strokes would be lost, fitted into 20x20 and centred by its mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.pictures.digits import Digit, digits_of
from lenetgpu.files.pictures.ink import ink_of, lines_of
from lenetgpu.files.pictures.sizes import grown, resized, shrunk
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BOX = 20
"""Pixels of the square that a digit is fitted into."""
_STROKE = 2.0
"""Pixels of a digit of 20 that its strokes have at least; MNIST's have two to four."""
_EDGE = 0.15
"""Of full ink: where a digit's box ends."""
_TURNED = "dark on light, turned"


@dataclass(frozen=True)
class Prepared:
    """`pixels` (28, 28) uint8, ink bright on black; what is said of the picture, in order."""

    pixels: Array
    notes: tuple[str, ...]


def as_mnist(grey: Array) -> Prepared:
    """`grey` (H, W) float32, 0 black to 255 white, as MNIST's digits are.

    LenetError, whose text begins with "expected a digit", where there is no ink that hangs
    together: a blank picture, or one of noise.
    """
    ink, turned, digits = _found(shrunk(grey))
    notes = [_TURNED] if turned else []
    if len(digits) > 1:
        notes.append(f"{len(digits)} digits stand apart, the largest is taken")
    notes += digits[0].said
    return Prepared(_centred(_fitted(_cropped(ink, digits[0]))), tuple(notes))


def _found(grey: Array) -> tuple[Array, bool, list[Digit]]:
    """Ink (H, W), whether it is the darker, and its digits; LenetError of none.

    Where what stands out of the paper as a whole is no stroke, but a sheet or a shadow, thin dark
    lines are looked for, and taken where they make a digit.
    """
    refused, standing = None, None
    try:
        ink, turned = ink_of(grey)
        standing = ink, turned, digits_of(ink)
        if not standing[2][0].doubtful:
            return standing
    except LenetError as error:
        refused = error
    try:
        lines = lines_of(grey)
        drawn = digits_of(lines)
        if not drawn[0].doubtful:
            return lines, True, drawn
    except LenetError as error:
        refused = refused or error
    if standing is None:
        assert refused is not None
        raise refused
    if standing[2][0].solid:
        raise LenetError("expected a digit, found a solid shape")
    return standing


def as_it_is(grey: Array, size: tuple[int, int]) -> Prepared:
    """`grey` (H, W) float32, 0 to 255, at 28x28 and nothing else: resized where it is not.

    `size` is the picture's (H, W) before it was averaged, which is said.
    """
    import numpy as np

    height, width, _ = IMAGE_SHAPE
    notes: tuple[str, ...] = ()
    if grey.shape != (height, width):
        notes = (f"resized from {size[1]}x{size[0]}",)
        grey = resized(shrunk(grey), height, width)
    pixels = np.clip(np.rint(grey), 0, PIXEL_SCALE).astype(np.uint8)
    return Prepared(pixels, notes)


def _cropped(ink: Array, digit: Digit) -> Array:
    """The digit's ink and what blurs around it, with nothing else, thickened if it is thin."""
    import numpy as np

    assert digit.mask is not None
    top, bottom, left, right = digit.box
    height, width = bottom - top, right - left
    length = max(height, width)
    mask = digit.mask[top:bottom, left:right]
    more = (_STROKE * length / BOX - digit.stroke) / 2
    room = 1 + max(0, round(more))
    framed = np.zeros((height + 2 * room, width + 2 * room), np.float32)
    inside = np.zeros(framed.shape, bool)
    inside[room:-room, room:-room] = mask
    near = grown(inside, 1)
    rows = slice(max(0, top - room), bottom + room)
    columns = slice(max(0, left - room), right + room)
    from_row, from_column = room - (top - rows.start), room - (left - columns.start)
    part = ink[rows, columns]
    framed[from_row : from_row + part.shape[0], from_column : from_column + part.shape[1]] = part
    framed[~near] = 0
    if more > 0.5:
        framed = grown(framed, round(more))
    return framed


def _fitted(ink: Array) -> Array:
    """`ink` (H, W) in 0..1, its longer side BOX pixels long, float32 with 1 at its brightest."""
    rows, columns = ((ink.max(axis=axis) > _EDGE).nonzero()[0] for axis in (1, 0))
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = ink.shape
    long = max(height, width)
    fitted = resized(ink, *(max(1, round(BOX * side / long)) for side in (height, width)))
    found: Array = fitted / max(float(fitted.max()), 1e-6)
    return found


def _centred(fitted: Array) -> Array:
    """(28, 28) uint8 with `fitted` (h, w) in it, its mass as near the middle as may be."""
    import numpy as np

    out = np.zeros(IMAGE_SHAPE[:2], np.uint8)
    total = float(fitted.sum())
    corner = []
    for axis, side in enumerate(fitted.shape):
        mass = fitted.sum(axis=1 - axis)
        centre = float((mass * (np.arange(side) + 0.5)).sum()) / total
        free = out.shape[axis] - side
        corner.append(min(max(round(out.shape[axis] / 2 - centre), 0), free))
    top, left = corner
    pixels = np.rint(fitted * PIXEL_SCALE).astype(np.uint8)
    out[top : top + len(pixels), left : left + pixels.shape[1]] = pixels
    return out
