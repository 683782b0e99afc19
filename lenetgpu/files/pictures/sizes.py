"""A picture's grey at other sizes: averaged, resized, blurred; in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SIDE = 512
"""Pixels of the longer side that a picture is looked at with, at most."""
_MANY = 60


def shrunk(grey: Array) -> Array:
    """`grey` (H, W) averaged over squares, so that no side is longer than SIDE."""
    import numpy as np

    by = -(-max(grey.shape) // SIDE)
    if by == 1:
        return grey
    height, width = (max(1, side // by) for side in grey.shape)
    down, across = (by if side >= by else side for side in grey.shape)
    squares = grey[: height * down, : width * across].reshape(height, down, width, across)
    averaged: Array = squares.mean(axis=(1, 3), dtype=np.float32)
    return averaged


def resized(grey: Array, height: int, width: int) -> Array:
    """`grey` (H, W) float32 at (height, width): each pixel an average over what it covers."""
    found: Array = _weights(len(grey), height) @ grey @ _weights(grey.shape[1], width).T
    return found


def _weights(length: int, wanted: int) -> Array:
    """(wanted, length) float32, rows of sum 1: a triangle as wide as two pixels of the coarser."""
    import numpy as np

    step = length / wanted
    reach = max(1.0, step)
    centres = (np.arange(wanted) + 0.5) * step - 0.5
    far = np.abs(np.arange(length) - centres[:, None]) / reach
    rows = np.maximum(0, 1 - far)
    found: Array = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def blurred(grey: Array) -> Array:
    """`grey` (H, W) averaged over 3x3, where it has many pixels."""
    import numpy as np

    if min(grey.shape) < _MANY:
        return grey
    wide = np.pad(grey, 1, mode="edge")
    tall = wide[:-2] + wide[1:-1] + wide[2:]
    found: Array = (tall[:, :-2] + tall[:, 1:-1] + tall[:, 2:]) / 9
    return found
