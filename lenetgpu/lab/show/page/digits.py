"""Digits as pictures inside a page: data URIs, many of them as one sheet."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from math import isqrt
from typing import Any

from lenetgpu.network import IMAGE_SHAPE

_SIDE = IMAGE_SHAPE[0]


def png_uri(pixels: Any) -> str:
    """A picture (H, W) or (H, W, 3) of uint8 as a data URI that holds a PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@dataclass(frozen=True)
class Sheet:
    """Digits side by side in one picture, `columns` a row; `digits` in parts.html.j2 cuts it."""

    uri: str
    columns: int
    rows: int

    def place(self, number: int) -> tuple[int, int]:
        """(column, row) of a digit."""
        return number % self.columns, number // self.columns


def sheet(images: Any) -> Sheet:
    """A sheet of images (N, 28, 28) or (N, 28, 28, 1), uint8, in order; N may be 0.

    A page holds one far cheaper than a picture a digit: 30 KB for 120 of them.
    """
    import numpy as np

    count = len(images)
    columns = max(1, isqrt(max(0, count - 1)) + 1)
    rows = max(1, -(-count // columns))
    cells = np.zeros((rows * columns, _SIDE, _SIDE), np.uint8)
    cells[:count] = np.asarray(images).reshape(count, _SIDE, _SIDE)
    grid = cells.reshape(rows, columns, _SIDE, _SIDE).swapaxes(1, 2)
    return Sheet(png_uri(grid.reshape(rows * _SIDE, columns * _SIDE)), columns, rows)
