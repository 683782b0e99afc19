"""Reading pictures as grey or colour bands through Pillow, which only this module imports.

Pictures that would need too much memory or time are refused before their pixels are decoded.
"""

import io
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import methodcaller
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image, ImageFile, TiffImagePlugin, TiffTags

from lenetgpu.arrays import Array, np
from lenetgpu.errors import first_line, unexpected
from lenetgpu.files.kinds import EXPECTED, MOST_BYTES, START, foreign, kind_of
from lenetgpu.files.regular import read_whole
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.pictures.masks import SIDE, averaged, averaged_by

# pixel limits that differ from _MOST: each decoded pixel takes 4 bytes, WebP 16 because libwebp and
# Pillow hold two canvases and two copies; JPEG is decoded at reduced size
MOST_PIXELS = {"JPEG": 1024 * 1024 * 1024 // 4 // 3, "WEBP": 12 << 20}
_MOST, _MOST_SIDE = 40_000_000, 65_535
# file size limits of formats whose comments Pillow joins in quadratic time
_FILE = {"GIF": 4 << 20, "JPEG": 64 << 20}
# codecs that Pillow implements in Python, and their file size limit
_SLOW, _SLOW_BYTES = ("bmp_rle", "ppm", "ppm_plain"), 4 << 20
# limits for JPEG: pixels of all scans; samples of progressive or CMYK files, two bytes each
_SCANNED, _HELD = 20 * MOST_PIXELS["JPEG"], 80_000_000
# limit for a TIFF's pixels and one strip or tile, which libtiff decodes into its own memory
_TIFF_BYTES = 200_000_000
_GROUP4, _JPEG = 4, 7  # TIFF's numbers of compressions
# Group 4 codes of white rows, and of rows whose last pixel is black: first byte, bits of a row
_MARKS = ((0xFF, 1), (0x5F, 2))
_COLOURED = 10_000_000  # pixel limit of a JPEG decoded in colour
_STRIP = 1 << 20  # pixels converted to grey at a time
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)
_NAMES = {"WebP": "WEBP", "PNM": "PPM"}
_DEPTHS = (255, 1023, 4095, 16383, 65535)
_PLAIN, _VISIBLE = 12.0, 128  # maximum grey difference within ink; minimum alpha of a visible pixel
_LIBTIFF = re.compile(rb"(\w+: [^\r\n\x1b]*)\.\n")
_STDERR, _stderr_lock = 2, Lock()
logging.getLogger("PIL").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"PIL\.")  # of bombs and odd tags: they are refused

Planes = Callable[[Image.Image], list[Array]]


class RefusedError(Exception):
    """Refused picture: the text after "found", and `expected` after "expected"."""

    def __init__(self, found: str, expected: str | None = None) -> None:
        super().__init__(found)
        self.expected = expected


def read_grey(path: Path) -> tuple[Array, list[str], tuple[int, int]]:
    """Read a file as grey (H, W) float32, 0 black to 255 white; return it, notes, original (H, W).

    EXIF orientation is applied; pictures with a side longer than SIDE are averaged. Raises
    LenetError naming the file if it is not a supported picture, damaged or too large.
    """
    (grey,), notes, size = _read(path, "L", lambda image: [_grey(image)])
    return grey, notes, size


def read_colours(path: Path) -> list[Array]:
    """Read red, green and blue bands like `read_grey`; [] for grey and large narrow JPEGs."""
    return _read(path, "RGB", _colours)[0]


def _read(path: Path, draft: str, planes: Planes) -> tuple[list[Array], list[str], tuple[int, int]]:
    """Read `planes` of a picture (a JPEG decoded as `draft`), notes, and the original (H, W)."""
    data = read_whole(path, EXPECTED, MOST_BYTES, "a picture of")
    kind = kind_of(data[:START])
    if kind is None:
        raise unexpected(path, EXPECTED, foreign(data[:START], len(data)))
    try:
        return _decoded(data, _NAMES.get(kind, kind), draft, planes)
    except RefusedError as error:
        raise unexpected(path, error.expected or f"a whole {kind} picture", str(error)) from error


@contextmanager
def _without_libtiff() -> Iterator[None]:
    """Capture what libtiff writes to stderr, and raise RefusedError for its first error."""
    with _stderr_lock, ExitStack() as undo, tempfile.TemporaryFile() as file:
        try:
            stderr = os.dup(_STDERR)
        except OSError:  # closed: nobody reads it
            yield
            return
        undo.callback(os.close, stderr)
        os.dup2(file.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, _STDERR)
            file.seek(0)
            captured = file.read()
            os.write(_STDERR, _LIBTIFF.sub(b"", captured))
            errors = [line for line in _LIBTIFF.findall(captured) if b": Warning, " not in line]
            if errors:
                raise RefusedError(f"a damaged one ({errors[0].decode(errors='replace')})")


def _decoded(
    data: bytes, form: str, draft: str, planes: Planes
) -> tuple[list[Array], list[str], tuple[int, int]]:
    """Decode a picture's bytes to rotated and averaged `planes`, notes, and the original (H, W)."""
    if len(data) > _FILE.get(form, MOST_BYTES):
        raise RefusedError(f"{len(data):,}", f"a {form} picture of at most {_FILE[form]:,} bytes")
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RefusedError("Pillow set to LOAD_TRUNCATED_IMAGES, which hides what is cut off")
    try:
        with ExitStack() as files:
            image = files.enter_context(Image.open(io.BytesIO(data), formats=[form]))
            _require_decodable(image, form, data)
            if form == "PNG":
                image.verify()  # the checksums of all its parts; it cannot be used then
                image = files.enter_context(Image.open(io.BytesIO(data), formats=[form]))
            notes = ["the first of several frames"] if getattr(image, "is_animated", False) else []
            width, height = image.size
            image.draft(draft, (SIDE, SIDE))
            if draft != "L" and form == "JPEG" and image.width * image.height > _COLOURED:
                return [], notes, (height, width)
            if form == "TIFF":
                files.enter_context(_without_libtiff())
                _require_rows(data, image.tag_v2, *image.size)  # type: ignore[attr-defined]
            image.load()
            number = image.getexif().get(_ORIENTATION, 1)
            size = (width, height) if number in _ON_ITS_SIDE else (height, width)
            return [_turned(plane, number) for plane in planes(image)], notes, size
    except RefusedError:
        raise
    except Image.DecompressionBombError as error:
        most = MOST_PIXELS.get(form, _MOST)
        raise RefusedError("more", f"a {form} picture of at most {most:,} pixels") from error
    except MemoryError as error:
        raise RefusedError("no memory for it") from error
    except Exception as error:  # what decoders raise of damaged bytes is of many kinds
        raise RefusedError(f"a damaged one ({first_line(error)})") from error


def _require_decodable(image: Image.Image, form: str, data: bytes) -> None:
    """Raise RefusedError if decoding an opened picture would need too much memory or time."""
    width, height = image.size
    found, most = f"{width:,}x{height:,} pixels", MOST_PIXELS.get(form, _MOST)
    if width < 1 or height < 1:
        raise RefusedError(found)
    if max(width, height) > _MOST_SIDE:
        raise RefusedError(found, f"a {form} picture of sides up to {_MOST_SIDE:,} pixels")
    if width * height > most:
        raise RefusedError(found, f"a {form} picture of at most {most:,} pixels")
    codec = image.tile[0][0] if isinstance(image, ImageFile.ImageFile) and image.tile else ""
    if codec in _SLOW and len(data) > _SLOW_BYTES:
        raise RefusedError(f"{codec} in more than {_SLOW_BYTES:,} bytes")
    if form == "JPEG":
        if data.count(b"\xff\xda") * width * height > _SCANNED:
            raise RefusedError("more scans than a picture of its size has")
        bands = len(image.getbands())
        if (bands > 3 or "progressive" in image.info) and width * height * bands > _HELD:
            expected = f"a JPEG, progressive or CMYK, of at most {_HELD // bands:,} pixels"
            raise RefusedError(found, expected)
    if form == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        samples, bits = tags.get(277, 1), max(tags.get(258, (1,)))
        strip = tags.get(322, width) * tags.get(323, min(height, tags.get(278, height)))
        pixels = width * height * (1 if samples == 1 and bits <= 8 else 4)
        if tags.get(259, 1) != 1 and pixels + strip * samples * bits // 8 > _TIFF_BYTES:
            raise RefusedError(f"more than {_TIFF_BYTES:,} bytes of pixels and one strip")


def _require_rows(data: bytes, tags: Any, width: int, height: int) -> None:
    """Raise RefusedError if a TIFF's strip or tile of Group 4 or JPEG has too few rows.

    libtiff leaves missing rows as they were in its buffer. JPEG says how many it has. Group 4 is
    decoded after marking strips of two kinds: rows that differ are missing.
    """
    if tags.get(259) not in (_GROUP4, _JPEG):
        return
    tiled, reverse = 322 in tags, tags.get(266) == 2
    wide, rows = (tags[322], tags[323]) if tiled else (width, min(height, tags.get(278, height)))
    starts = tags[324 if tiled else 273]
    sizes = tags.get(325 if tiled else 279, [len(data) - at for at in starts])
    count = len(starts) if tiled else -(-height // max(1, rows))  # of a plane
    last, read = rows if tiled else height - rows * (count - 1), {*zip(starts, sizes, strict=True)}
    total = rows * (2 * count - 1) + last
    wrong = len(starts) < count or rows < 1 or sum(size for _, size in read) > len(data)
    if wrong or wide * total > 3 * _MOST:
        found = f"{sum(sizes):,} bytes in {len(starts):,} parts of {wide:,}x{rows:,} pixels"
        raise RefusedError(found)
    if tags[259] == _JPEG:
        for number, (at, size) in enumerate(zip(starts, sizes, strict=True), 1):
            with Image.open(io.BytesIO(data[at : at + size]), formats=["JPEG"]) as part:
                (across, down), least = part.size, rows if number % count else last
            if across < wide or down < least:
                raise RefusedError(f"{across:,}x{down:,} pixels in a strip of {wide:,}x{least:,}")
        return
    images, ifd = [], TiffImagePlugin.ImageFileDirectory_v2()
    for first, bits in _MARKS:
        mark = bytes([int(f"{first:08b}"[::-1], 2) if reverse else first])
        mark += b"\xff" * (rows * bits // 8 + 1)
        offsets = [offset for at in starts[:count] for offset in (0, len(mark) + at)]
        lengths = [length for size in sizes[:count] for length in (len(mark), size)]
        ifd.update({256: wide, 257: total, 258: 1, 259: _GROUP4, 262: 0, 266: 1 + reverse,
                    273: tuple(offsets), 278: rows, 279: tuple(lengths)})  # fmt: skip
        ifd.tagtype[273] = TiffTags.LONG
        marked = b"II*\0\x08\0\0\0" + ifd.tobytes(8) + mark + data  # offsets are from the IFD's end
        with Image.open(io.BytesIO(marked), formats=["TIFF"]) as image:
            images.append(np.frombuffer(image.tobytes(), np.uint8).reshape(total, -1))
    differ = (images[0] != images[1]).any(axis=1) & (np.arange(total) // rows % 2 == 1)
    if differ.any():
        raise RefusedError(f"a damaged one (Group 4 data without {differ.sum():,} of its rows)")


def _colours(image: Image.Image) -> list[Array]:
    """Return three bands (H, W) float32, 0 to 255, averaged to SIDE; [] for a grey picture."""
    if image.mode in ("LAB", "YCbCr"):
        return [_averaged(image, methodcaller("getchannel", band)) for band in range(3)]
    if image.mode in ("1", "L", "LA", "La", "F") or image.mode.startswith("I"):
        return []
    form = "RGBA" if image.has_transparency_data else "RGB"
    bands = [
        _averaged(image, lambda strip: strip.convert(form).getchannel(band))  # noqa: B023
        for band in form
    ]
    return [_on_paper(band, bands[3]) for band in bands[:3]] if form == "RGBA" else bands


def _grey(image: Image.Image) -> Array:
    """Convert a picture of any Pillow mode to (H, W) float32, 0 to 255, averaged to SIDE."""
    mode = image.mode
    if mode == "F" or mode.startswith("I"):
        return _deep(_averaged(image, lambda strip: strip), mode == "F")
    if mode in ("LAB", "YCbCr"):
        return _averaged(image, lambda strip: strip.getchannel(0))
    if image.has_transparency_data:
        grey = _averaged(image, lambda strip: strip.convert("RGBA").convert("RGB").convert("L"))
        return _on_paper(grey, _averaged(image, lambda strip: strip.convert("RGBA").getchannel(3)))
    plain = mode in ("1", "L")
    return _averaged(image, lambda strip: (strip if plain else strip.convert("RGB")).convert("L"))


def _averaged(image: Image.Image, plane: Callable[[Image.Image], Image.Image]) -> Array:
    """Apply `plane` to a picture in strips and average to sides of at most SIDE, (H, W) float32."""
    width, height = image.size
    by = averaged_by(image.size)
    if by == 1:
        return np.asarray(plane(image), dtype=np.float32)
    right, end = (max(side - side % by, min(by, side)) for side in (width, height))
    wide = by * max(1, _STRIP // (by * min(by, height)))
    tall = by * max(1, _STRIP // (by * min(wide, width)))
    rows, lefts = [], range(0, right, wide)
    for top in range(0, end, tall):
        boxes = [(left, top, min(left + wide, right), min(top + tall, end)) for left in lefts]
        rows.append([averaged(np.asarray(plane(image.crop(box))), by) for box in boxes])
    return np.asarray(np.block(rows))


def _deep(values: Array, is_float: bool) -> Array:
    """Scale 16-bit, 32-bit or float values (H, W) to 0..255.

    Floats in 0..1 are scaled as such. Otherwise white is the smallest of 8, 10, 12, 14 and 16
    bits that holds the maximum; if values are negative or larger, the range is used.
    """
    if not np.isfinite(values).all():
        raise RefusedError("NaN or infinity in it")
    low, high = float(values.min()), float(values.max())
    if is_float and low >= 0 and high <= 1:
        return values * np.float32(PIXEL_SCALE)
    if low < 0 or high > _DEPTHS[-1]:
        scaled = (values.astype(np.float64) - low) * (PIXEL_SCALE / max(high - low, 1e-30))
        return scaled.astype(np.float32)
    return values * np.float32(PIXEL_SCALE / next(depth for depth in _DEPTHS if high <= depth))


def _on_paper(grey: Array, alpha: Array) -> Array:
    """Blend `grey` (H, W) with `alpha` (both 0 to 255) onto paper with contrast to it.

    If all visible pixels have one grey, they are ink on white or black paper. Otherwise, if
    most pixels are visible, the paper has the most common visible grey.
    """
    visible = grey[alpha >= _VISIBLE]
    if not visible.size:
        return np.full_like(grey, PIXEL_SCALE) if not alpha.any() else PIXEL_SCALE - alpha
    low, middle, high = np.percentile(visible, (5, 50, 95))
    paper = 0.0 if middle >= PIXEL_SCALE / 2 else PIXEL_SCALE
    if high - low > _PLAIN and visible.size > grey.size / 2:
        paper = float(middle)
    share = alpha / np.float32(PIXEL_SCALE)
    return np.asarray(grey * share + np.float32(paper) * (1 - share))


def _turned(grey: Array, number: object) -> Array:
    """Apply EXIF orientation 1 to 8 to `grey`; ignore other values."""
    if number in _ON_ITS_SIDE:
        grey = grey.T
    if number in (2, 3, 6, 7):
        grey = grey[:, ::-1]
    if number in (3, 4, 7, 8):
        grey = grey[::-1]
    return np.ascontiguousarray(grey)
