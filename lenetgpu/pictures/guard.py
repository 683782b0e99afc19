"""What a picture's bytes ask of who reads them, looked at before Pillow is handed any.

Each kind is walked through without decoding: a picture that has more pixels, parts or text than
pictures have is refused, a short one too, and of several frames the first is handed on.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable

MOST_BYTES = 128 << 20
"""Bytes of a picture's file, at most."""
_MOST = 40_000_000
MOST_PIXELS = {"JPEG": 1024 * 1024 * 1024 // 4 // 3, "WebP": 12 << 20}
"""Pixels of a picture, at most, where they are not _MOST: what is decoded of it has at most 4 bytes
a pixel, of WebP 16 (libwebp and Pillow hold two canvases and two copies), of JPEG a fraction; of
more than 89,478,485 Pillow says that it is a bomb."""
_MOST_SIDE = 65_535
"""Pixels of a side, as JPEG and GIF have: rows are decoded in memory of their own."""
_HELD = 80_000_000
"""Numbers of two bytes that are held of a JPEG whose scans have not all of each pixel."""
_TIFF_BYTES = 200_000_000
"""Of a TIFF's pixels and of a strip or tile, which libtiff decodes into memory of its own."""
_PARTS, _MARKERS = 50_000, 5_000
_TEXT_BYTES = 16 << 20
_PYTHON_BYTES = 4 << 20
"""Of a picture that Pillow decodes in Python: runs in BMP, PNM's text and its odd greys."""
_SCANNED = 20 * MOST_PIXELS["JPEG"]
_SIDES = (256, 257, 259, 277, 278, 322, 323)
_TAGS, _VALUES = 4096, 1 << 18
_TIFF_SIZES = dict(
    zip(range(1, 19), (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 1, 1, 8, 8, 8), strict=True)
)
_PNM = re.compile(
    rb"P([1-6f])((?:\s|#[^\r\n]*[\r\n])+(\d{1,10}))((?:\s|#[^\r\n]*[\r\n])+(\d{1,10}))"
)
_NUMBER = re.compile(rb"(?:\s|#[^\r\n]*[\r\n])+(\d{1,10})\s")


class RefusedError(Exception):
    """What was found in a picture, in words that follow "found".

    `wanted` follows "expected"; None: a whole picture of its kind.
    """

    def __init__(self, found: str, wanted: str | None = None) -> None:
        super().__init__(found)
        self.wanted = wanted


def looked_at(kind: str, data: bytes) -> tuple[bytes, bool]:
    """The bytes to decode, and whether more frames follow the first.

    `data` is a whole file of `kind`. RefusedError of what is not safe to decode.
    """
    return _LOOKS[kind](data)


def require_pixels(width: int, height: int, kind: str) -> None:
    """RefusedError where a picture of `kind` has more pixels than are decoded of it, or none."""
    if width < 1 or height < 1:
        raise RefusedError(f"one of {width}x{height} pixels")
    if max(width, height) > _MOST_SIDE:
        raise RefusedError(
            f"{width:,}x{height:,} pixels", f"a {kind} picture of sides up to {_MOST_SIDE:,} pixels"
        )
    most = MOST_PIXELS.get(kind, _MOST)
    if width * height > most:
        raise RefusedError(
            f"{width:,}x{height:,} pixels", f"a {kind} picture of at most {most:,} pixels"
        )


def _short() -> RefusedError:
    return RefusedError("a file that ends too early")


def _png(data: bytes) -> tuple[bytes, bool]:
    at, frames, inked, size = 8, 1, False, len(data)
    for _ in range(_PARTS):
        if at + 12 > size:
            raise _short()
        length, name = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > size:
            raise _short()
        if (
            name[0] & 32 == 0
            and zlib.crc32(data[at + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]
        ):
            raise RefusedError("a part whose checksum is wrong")
        if at == 8:
            if name != b"IHDR" or length != 13:
                raise RefusedError("no header")
            width, height = struct.unpack_from(">II", data, at + 8)
            require_pixels(width, height, "PNG")
        elif name == b"acTL" and length >= 4:
            frames = struct.unpack_from(">I", data, at + 8)[0]
        elif name == b"IDAT":
            inked = True
        elif name == b"IEND":
            if not inked:
                raise RefusedError("no pixels")
            return data[:end], frames > 1
        at = end
    raise RefusedError(f"more than {_PARTS:,} parts")


def _jpeg(data: bytes) -> tuple[bytes, bool]:
    at, text, parts, size = 2, 0, 0, len(data)
    bands = held = 0
    whole = False
    while at + 5 <= size:
        parts += 1
        if data[at] != 0xFF:
            raise RefusedError("bytes between its parts")
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:
            at += 1
            continue
        if marker == 0xDA:
            if held > _HELD and (whole or data[at + 4] < bands):
                most = (
                    f"a JPEG picture of {bands} bands in scans of at most {_HELD // bands:,} pixels"
                )
                raise RefusedError(f"{held // bands:,}", most)
            break
        if marker in (0x01, *range(0xD0, 0xDA)):
            at += 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 10 > size:
                raise _short()
            height, width = struct.unpack_from(">HH", data, at + 5)
            require_pixels(width, height, "JPEG")
            if data.count(b"\xff\xda") * width * height > _SCANNED:
                raise RefusedError("more scans than a picture of its size has")
            bands, whole = data[at + 9], marker not in (0xC0, 0xC1) or data[at + 9] > 3
            held = width * height * bands
        elif marker >= 0xE0:
            text += length
        at += 2 + length
        if text > _TEXT_BYTES:
            raise RefusedError(f"more than {_TEXT_BYTES:,} bytes of notes")
        if parts > _MARKERS:
            raise RefusedError(f"more than {_MARKERS:,} parts")
    else:
        raise _short()
    return data, False


def _gif(data: bytes) -> tuple[bytes, bool]:
    """The first frame alone, with what controls it."""
    if len(data) < 13:
        raise _short()
    width, height = struct.unpack_from("<HH", data, 6)
    require_pixels(width, height, "GIF")
    at = 13 + (3 << (data[10] & 7) + 1 if data[10] & 128 else 0)
    kept = [data[:at]]
    control = b""
    while True:
        if at >= len(data):
            raise _short()
        if data[at] == 0x3B:
            raise RefusedError("no frame")
        if data[at] == 0x21:
            end = _past_blocks(data, at + 2)
            if data[at + 1 : at + 2] == b"\xf9" and end - at == 8:
                control = data[at:end]
            at = end
        elif data[at] == 0x2C:
            break
        else:
            raise RefusedError("bytes between its parts")
    if at + 11 > len(data):
        raise _short()
    left, top, width, height = struct.unpack_from("<HHHH", data, at + 1)
    require_pixels(left + width, top + height, "GIF")
    table = 3 << (data[at + 9] & 7) + 1 if data[at + 9] & 128 else 0
    end = _past_blocks(data, at + 10 + table + 1)
    kept += [control, data[at:end], b"\x3b"]
    return b"".join(kept), data.find(b"\x2c", end) > 0 and data[end : end + 1] != b"\x3b"


def _past_blocks(data: bytes, at: int) -> int:
    """Where the sub-blocks that begin at `at` end."""
    while at < len(data):
        length = data[at]
        at += 1 + length
        if not length:
            return at
    raise _short()


def _bmp(data: bytes) -> tuple[bytes, bool]:
    if len(data) < 26:
        raise _short()
    header = int.from_bytes(data[14:18], "little")
    if header == 12:
        width, height = struct.unpack_from("<HH", data, 18)
        require_pixels(width, height, "BMP")
        return data, False
    if len(data) < 34:
        raise _short()
    width, height = struct.unpack_from("<ii", data, 18)
    require_pixels(abs(width), abs(height), "BMP")
    if data[30] in (1, 2) and len(data) > _PYTHON_BYTES:
        raise RefusedError(f"runs in more than {_PYTHON_BYTES:,} bytes")
    return data, False


def _webp(data: bytes) -> tuple[bytes, bool]:
    if len(data) < 30:
        raise _short()
    if len(data) < 8 + int.from_bytes(data[4:8], "little"):
        raise _short()
    name, several = data[12:16], False
    if name == b"VP8X":
        width, height = (1 + int.from_bytes(data[k : k + 3], "little") for k in (24, 27))
        several = bool(data[20] & 2)
    elif name == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif name == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        raise RefusedError("no header")
    require_pixels(width, height, "WebP")
    return data, several


def _pnm(data: bytes) -> tuple[bytes, bool]:
    found = _PNM.match(data[:_PARTS])
    if found is None:
        raise RefusedError("no width and height")
    require_pixels(int(found[3]), int(found[5]), "PNM")
    if found[1] in b"123" and len(data) > _PYTHON_BYTES:
        raise RefusedError(f"numbers in more than {_PYTHON_BYTES:,} bytes of text")
    if found[1] in b"56" and len(data) > _PYTHON_BYTES:
        white = _NUMBER.match(data, found.end(), found.end() + _PARTS)
        if white is None or int(white[1]) not in (255, 65535):
            raise RefusedError(f"greys up to others than 255 in more than {_PYTHON_BYTES:,} bytes")
    return data, False


def _tiff(data: bytes) -> tuple[bytes, bool]:
    order, big = "<" if data[:2] == b"II" else ">", 43 in (data[2], data[3])
    try:
        (first,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
        at = first
        (count,) = struct.unpack_from(order + ("Q" if big else "H"), data, at)
        at += 8 if big else 2
        if count > _TAGS:
            raise RefusedError(f"{count:,} tags, more than {_TAGS:,}")
        sides: dict[int, int] = {}
        bits = 1
        for _ in range(count):
            tag, kind = struct.unpack_from(order + "HH", data, at)
            (length,) = struct.unpack_from(order + ("Q" if big else "I"), data, at + 4)
            if length * _TIFF_SIZES.get(kind, 1) > len(data):
                raise _short()
            if kind not in (1, 2, 6, 7) and length > _VALUES:
                raise RefusedError(f"a tag of {length:,} values, more than {_VALUES:,}")
            if tag in _SIDES and kind in (3, 4) and length == 1:
                code = "H" if kind == 3 else "I"
                (sides[tag],) = struct.unpack_from(order + code, data, at + (12 if big else 8))
            elif tag == 258 and kind == 3 and length:
                where = at + (12 if big else 8)
                if 2 * length > (8 if big else 4):
                    (where,) = struct.unpack_from(order + ("Q" if big else "I"), data, where)
                bits = max(struct.unpack_from(f"{order}{length}H", data, where))
            at += 20 if big else 12
        (following,) = struct.unpack_from(order + ("Q" if big else "I"), data, at)
    except (struct.error, OverflowError) as error:
        raise _short() from error
    require_pixels(sides.get(256, 1), sides.get(257, 1), "TIFF")
    require_pixels(sides.get(322, 1), sides.get(323, 1), "TIFF")
    _require_strips(sides, bits)
    return data, following not in (0, first)


def _require_strips(sides: dict[int, int], bits: int) -> None:
    """RefusedError where a TIFF's pixels with one of its strips or tiles are too many bytes.

    `sides` are tags of one number; samples have `bits` at most.
    """
    width, height, samples = sides.get(256, 1), sides.get(257, 1), sides.get(277, 1)
    strip = width * min(height, sides.get(278, height))
    if 322 in sides or 323 in sides:
        strip = sides.get(322, width) * sides.get(323, height)
    if sides.get(259, 1) == 1:  # read as it lies
        strip = 0
    held = width * height * (1 if samples == 1 and bits <= 8 else 4)
    if held + strip * samples * bits // 8 > _TIFF_BYTES:
        raise RefusedError(
            f"{held:,} and {strip * samples * bits // 8:,}",
            f"a TIFF picture whose pixels and one strip are at most {_TIFF_BYTES:,} bytes",
        )


_LOOKS: dict[str, Callable[[bytes], tuple[bytes, bool]]] = {
    "PNG": _png,
    "JPEG": _jpeg,
    "TIFF": _tiff,
    "BMP": _bmp,
    "GIF": _gif,
    "WebP": _webp,
    "PNM": _pnm,
}
