"""A picture's grey, read by Pillow: the one place that imports it."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.pictures.guard import MOST_BYTES, RefusedError, looked_at, require_pixels
from lenetgpu.files.pictures.kinds import EXPECTED, START, kind_of, other_kind
from lenetgpu.files.pictures.sizes import SIDE, shrunk
from lenetgpu.files.regular import open_regular
from lenetgpu.network import PIXEL_SCALE

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    Array = np.ndarray[Any, Any]

_AT_ONCE = 1 << 20
_ORIENTATION = 0x0112
_NAMES = {"WebP": "WEBP", "PNM": "PPM"}
_DEPTHS = (255, 1023, 4095, 16383, 65535)
_PLAIN, _SEEN = 12.0, 128
"""Greys of ink differ by so much at most; a pixel is seen whose alpha is as much."""


def read_grey(path: Path) -> tuple[Array, list[str]]:
    """A picture file's grey, (H, W) float32 from 0 black to 255 white, and what is said of it.

    It is turned as EXIF says, and no side is longer than SIDE: larger pictures are averaged.
    LenetError, naming the file, where it is no picture that is taken, or damaged, or too large.
    """
    data = _bytes_of(path)
    kind = kind_of(data[:START])
    if kind is None:
        raise LenetError(f"{path}: expected {EXPECTED}, found {unknown(data)}")
    try:
        data, several = looked_at(kind, data)
        grey = _decoded(data, _NAMES.get(kind, kind))
    except RefusedError as error:
        raise LenetError(f"{path}: expected a whole {kind} picture, found {error}") from error
    return grey, ["the first of several frames"] if several else []


def unknown(data: bytes) -> str:
    """What is said of a file's bytes that are no picture that is taken."""
    if not data:
        return "an empty file"
    kind = other_kind(data[:START])
    return f"one in {kind} form" if kind else f"{len(data):,} bytes of another form"


def _bytes_of(path: Path) -> bytes:
    try:
        with open_regular(path, EXPECTED) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise LenetError(
                    f"{path}: expected a picture of at most {MOST_BYTES:,} bytes, found {size:,}"
                )
            parts, left = [], MOST_BYTES
            while left > 0 and (part := file.read(min(left, _AT_ONCE))):
                parts.append(part)
                left -= len(part)
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error
    return b"".join(parts)


@contextmanager
def _quiet() -> Iterator[None]:
    """A block in which Pillow prints nothing and its bombs are errors."""
    from PIL import Image

    logger = logging.getLogger("PIL")
    silent = logging.NullHandler()
    logger.addHandler(silent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        logger.removeHandler(silent)


def _decoded(data: bytes, form: str) -> Array:
    """The grey of a picture's bytes, turned and averaged; RefusedError of what is damaged."""
    from PIL import Image, ImageFile

    try:
        with _quiet(), Image.open(io.BytesIO(data), formats=[form]) as image:
            require_pixels(*image.size)
            image.draft("L", (SIDE, SIDE))
            if ImageFile.LOAD_TRUNCATED_IMAGES:
                raise RefusedError("Pillow told to take what is cut off")
            image.load()
            grey = _grey(image)
            return _turned(grey, image.getexif().get(_ORIENTATION, 1))
    except (RefusedError, LenetError):
        raise
    except MemoryError as error:
        raise RefusedError("no memory for it") from error
    except Exception as error:  # what decoders raise of damaged bytes is of many kinds
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise RefusedError(f"a damaged one ({reason})") from error


def _grey(image: Image.Image) -> Array:
    """(H, W) float32, 0 to 255, of a picture in any of Pillow's modes."""
    import numpy as np

    mode = image.mode
    if mode == "F" or mode.startswith("I"):
        return _deep(shrunk(np.asarray(image)))
    if mode in ("LAB", "YCbCr"):
        return _bytes(_averaged(image.getchannel(0)))
    if image.has_transparency_data:
        both = _averaged(image if mode == "RGBA" else image.convert("RGBA"))
        return _on_paper(_bytes(both.convert("RGB").convert("L")), _bytes(both.getchannel("A")))
    if mode != "L":
        image = _averaged(image.convert("L" if mode == "1" else "RGB")).convert("L")
    return _bytes(_averaged(image))


def _averaged(image: Image.Image) -> Image.Image:
    by = -(-max(image.size) // SIDE)
    return image.reduce((min(by, image.width), min(by, image.height))) if by > 1 else image


def _bytes(image: Image.Image) -> Array:
    import numpy as np

    return np.asarray(image, dtype=np.float32)


def _deep(values: Array) -> Array:
    """Numbers of 16 or 32 bits, or floats, (H, W) from 0 to 255.

    Floats from 0 to 1 are scaled as such; else the least of 8, 10, 12, 14 and 16 bits that holds
    the largest is white, and where some are negative or larger the least is black.
    """
    import numpy as np

    found = values.astype(np.float32)
    if not np.isfinite(found).all():
        raise RefusedError("NaN or infinity in it")
    low, high = float(found.min()), float(found.max())
    if low >= 0 and high <= 1 and values.dtype.kind == "f":
        return found * np.float32(PIXEL_SCALE)
    if low < 0 or high > _DEPTHS[-1]:
        wide = (found.astype(np.float64) - low) * (PIXEL_SCALE / max(high - low, 1e-30))
        return wide.astype(np.float32)
    white = next(depth for depth in _DEPTHS if high <= depth)
    return found * np.float32(PIXEL_SCALE / white)


def _on_paper(grey: Array, alpha: Array) -> Array:
    """`grey` (H, W) laid by its `alpha`, both 0 to 255, on paper that leaves a contrast.

    Where what is seen is all of one grey it is ink, and its paper white or black; else, where most
    of the picture is seen, its paper is what is seen most.
    """
    import numpy as np

    seen = grey[alpha >= _SEEN]
    if not seen.size:
        return np.full_like(grey, PIXEL_SCALE) if not alpha.any() else PIXEL_SCALE - alpha
    low, middle, high = np.percentile(seen, (5, 50, 95))
    if high - low > _PLAIN and seen.size > grey.size / 2:
        paper = float(middle)
    else:
        paper = 0.0 if middle >= PIXEL_SCALE / 2 else PIXEL_SCALE
    share = alpha / np.float32(PIXEL_SCALE)
    found: Array = grey * share + np.float32(paper) * (1 - share)
    return found


def _turned(grey: Array, orientation: object) -> Array:
    """`grey` as it is to be seen, by EXIF's number from 1 to 8; others leave it."""
    import numpy as np

    number = orientation if isinstance(orientation, int) else 1
    if number in (5, 6, 7, 8):
        grey = grey.T
    if number in (2, 3, 6, 7):
        grey = grey[:, ::-1]
    if number in (3, 4, 7, 8):
        grey = grey[::-1]
    return np.ascontiguousarray(grey)
