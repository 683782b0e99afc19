"""Detection of pictures by their first bytes; reads no file and does not import Pillow."""

import os
import re

from lenetgpu.errors import LenetError

START = 16  # bytes read to detect a picture
MOST_BYTES = 128 << 20  # bytes of a picture file, at most
EXPECTED = "a picture (PNG, JPEG, TIFF, BMP, GIF, WebP, PNM) or images in HDF5, IDX or .npy format"
_SIGNATURES: dict[str, bytes | tuple[bytes, ...]] = {
    "PNG": b"\x89PNG\r\n\x1a\n",
    "JPEG": b"\xff\xd8\xff",
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": b"BM",
}
_ENDINGS = frozenset(
    (".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".tif", ".tiff", ".gif", ".bmp", ".webp",
     ".pbm", ".pgm", ".ppm", ".pnm", ".pfm", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".psd",
     ".svg", ".pdf")
)  # fmt: skip
_OTHERS = (
    (4, b"ftyphei", "HEIC"), (4, b"ftypmif1", "HEIF"), (4, b"ftypavif", "AVIF"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"), (0, b"\xff\x0a", "JPEG XL"), (0, b"8BPS", "Photoshop"),
    (0, b"%PDF", "PDF"), (0, b"%!PS", "PostScript"), (0, b"<svg", "SVG"),
)  # fmt: skip


def kind_of(start: bytes) -> str | None:
    """Return the kind of picture that begins with these START bytes; None if not supported."""
    for kind, signatures in _SIGNATURES.items():
        if start.startswith(signatures):
            return kind
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WebP"
    return "PNM" if re.match(rb"P[1-6f]\s", start) else None


def other_kind(start: bytes) -> str | None:
    """Return the name of a known picture kind that is not supported; None otherwise."""
    return next((kind for at, first, kind in _OTHERS if start.startswith(first, at)), None)


def named_picture(path: str) -> bool:
    """Return True if a file's name has a picture's ending."""
    return os.path.splitext(path)[1].lower() in _ENDINGS


def require_pictures(as_is: bool, found: str) -> None:
    """Raise LenetError if `as_is` is set and `found` is not a picture."""
    if as_is:
        raise LenetError(f"--as-is: expected pictures, found {found}, which are never prepared")
