"""Ink and paper that differ in colour and not in brightness: made a grey that tells them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.pictures.sizes import blurred

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

COLOUR = "told by colour, not by brightness"


def apart(bands: list[Array]) -> Array:
    """(H, W) float32 about 128, of a picture's `bands` (H, W): along the colours' longest axis.

    It is the direction in which colours lie furthest from the picture's middle one, of most weight
    what lies far. Differences keep their size, up to 442 between two corners of the colours' cube.
    """
    import numpy as np

    away = np.stack([band - np.float32(np.median(band)) for band in bands])
    calm = np.stack([blurred(blurred(band)) for band in away]).reshape(len(bands), -1)
    spread = np.einsum("in,jn->ij", calm, calm).astype(np.float64)
    axis = np.linalg.eigh(spread)[1][:, -1].astype(np.float32)
    found: Array = np.einsum("i,ihw->hw", axis, away) + np.float32(128)
    return found
