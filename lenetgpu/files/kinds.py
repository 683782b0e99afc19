"""Which pictures are taken, by their first bytes; nothing is read and Pillow is not imported."""

from __future__ import annotations

import os

from lenetgpu.errors import LenetError

START = 16
"""First bytes that tell what a picture is."""
MOST_BYTES = 128 << 20
"""Bytes of a picture's file, at most."""
EXPECTED = "a picture (PNG, JPEG, TIFF, BMP, GIF, WebP, PNM) or images in HDF5, IDX or .npy form"
_STARTS = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
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
    """The kind of picture that begins with these START bytes; None of none that is taken."""
    for first, kind in _STARTS.items():
        if start.startswith(first):
            return kind
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WebP"
    if start[:1] == b"P" and start[1:2] in tuple(b"%c" % c for c in b"123456f"):
        return "PNM" if start[2:3].isspace() else None
    return None


def other_kind(start: bytes) -> str | None:
    """The name of a picture's kind that is known and not taken."""
    for at, first, kind in _OTHERS:
        if start[at:].startswith(first):
            return kind
    return None


def named_picture(path: str) -> bool:
    """Return true if a file's name is a picture's."""
    return os.path.splitext(path)[1].lower() in _ENDINGS


def require_pictures(as_is: bool, found: str) -> None:
    """LenetError where `as_is` is asked for and `found` is no picture."""
    if as_is:
        raise LenetError(f"--as-is: expected pictures, found {found}, which are never prepared")
