"""What a picture's bytes ask of who reads them, looked at before Pillow is handed any.

Each kind is walked through without decoding: a picture that has more pixels, parts or text than
pictures have is refused, a short one too, and of several frames the first is handed on.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable

MOST_BYTES = 256 << 20
"""Bytes of a picture's file, at most."""
MOST_PIXELS = 1024 * 1024 * 1024 // 4 // 3
"""Pixels of a picture, at most: from where on Pillow warns of a bomb, 89,478,485."""
_PARTS, _MARKERS = 50_000, 5_000
_TEXT_BYTES = 16 << 20
_PYTHON_BYTES = 4 << 20
"""Of a picture that Pillow decodes in Python: text, and runs in BMP."""
_CANVAS = 8 << 20
"""Pixels that frames of WebP lie on: libwebp and Pillow hold 16 bytes for each."""
_SCANNED = 20 * MOST_PIXELS
_TAGS, _VALUES = 4096, 1 << 18
_TIFF_SIZES = dict(
    zip(range(1, 19), (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 1, 1, 8, 8, 8), strict=True)
)
_PNM = re.compile(
    rb"P([1-6f])((?:\s|#[^\r\n]*[\r\n])+(\d{1,10}))((?:\s|#[^\r\n]*[\r\n])+(\d{1,10}))"
)


class RefusedError(Exception):
    """What was found in a picture, in words that follow "found"."""


def looked_at(kind: str, data: bytes) -> tuple[bytes, bool]:
    """The bytes to decode, and whether more frames follow the first.

    `data` is a whole file of `kind`. RefusedError of what is not safe to decode.
    """
    return _LOOKS[kind](data)


def require_pixels(width: int, height: int) -> None:
    """RefusedError where a picture has more than MOST_PIXELS pixels, or none."""
    if width < 1 or height < 1:
        raise RefusedError(f"one of {width}x{height} pixels")
    if width * height > MOST_PIXELS:
        raise RefusedError(f"{width:,}x{height:,} pixels, more than {MOST_PIXELS:,}")


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
            require_pixels(*struct.unpack_from(">II", data, at + 8))
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
    while at + 4 <= size:
        parts += 1
        if data[at] != 0xFF:
            raise RefusedError("bytes between its parts")
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:
            at += 1
            continue
        if marker == 0xDA:
            break
        if marker in (0x01, *range(0xD0, 0xDA)):
            at += 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 9 > size:
                raise _short()
            height, width = struct.unpack_from(">HH", data, at + 5)
            require_pixels(width, height)
            if data.count(b"\xff\xda") * width * height > _SCANNED:
                raise RefusedError("more scans than a picture of its size has")
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
    require_pixels(*struct.unpack_from("<HH", data, 6))
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
    require_pixels(left + width, top + height)
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
        require_pixels(*struct.unpack_from("<HH", data, 18))
        return data, False
    if len(data) < 34:
        raise _short()
    width, height = struct.unpack_from("<ii", data, 18)
    require_pixels(abs(width), abs(height))
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
        if several and width * height > _CANVAS:
            raise RefusedError(f"frames on {width:,}x{height:,} pixels, more than {_CANVAS:,}")
    elif name == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif name == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        raise RefusedError("no header")
    require_pixels(width, height)
    return data, several


def _pnm(data: bytes) -> tuple[bytes, bool]:
    found = _PNM.match(data[:_PARTS])
    if found is None:
        raise RefusedError("no width and height")
    require_pixels(int(found[3]), int(found[5]))
    if found[1] in b"123" and len(data) > _PYTHON_BYTES:
        raise RefusedError(f"numbers in more than {_PYTHON_BYTES:,} bytes of text")
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
        for _ in range(count):
            tag, kind = struct.unpack_from(order + "HH", data, at)
            (length,) = struct.unpack_from(order + ("Q" if big else "I"), data, at + 4)
            if length * _TIFF_SIZES.get(kind, 1) > len(data):
                raise _short()
            if kind not in (1, 2, 6, 7) and length > _VALUES:
                raise RefusedError(f"a tag of {length:,} values, more than {_VALUES:,}")
            if tag in (256, 257, 322, 323) and kind in (3, 4) and length == 1:
                code = "H" if kind == 3 else "I"
                (sides[tag],) = struct.unpack_from(order + code, data, at + (12 if big else 8))
            at += 20 if big else 12
        (following,) = struct.unpack_from(order + ("Q" if big else "I"), data, at)
    except (struct.error, OverflowError) as error:
        raise _short() from error
    require_pixels(sides.get(256, 1), sides.get(257, 1))
    require_pixels(sides.get(322, 1), sides.get(323, 1))
    return data, following not in (0, first)


_LOOKS: dict[str, Callable[[bytes], tuple[bytes, bool]]] = {
    "PNG": _png,
    "JPEG": _jpeg,
    "TIFF": _tiff,
    "BMP": _bmp,
    "GIF": _gif,
    "WebP": _webp,
    "PNM": _pnm,
}
