"""Detection of pictures and of foreign files by first bytes; reads no file, imports no Pillow."""

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
# other files in the place of data or weights: first bytes, what such a file is, and what to do
_FOREIGN = (
    (rb"version https?://", "a Git LFS pointer, not the file itself; fetch it by git lfs pull"),
    (rb"(\xef\xbb\xbf)?\s*<(!doc|html|head|\?xml)",
     "a page in HTML or XML, as servers send with errors; download the file again"),
    (rb"\x80[\x02-\x05]", "a pickle, which can run code and is not read; save by numpy.save"),
    (rb"PK\x03\x04", "a zip archive (as .npz and .pt are); save its images by numpy.save"),
    (rb"\x93NUMPY", "a single array (.npy); save all four by numpy.savez"),
    (rb"\x1f\x8b", "a gzip file; unpack it"),
    (rb"\0\0\x08[\x01\x03]", "images or labels in IDX format"),
)  # fmt: skip


def foreign(start: bytes, size: int | None) -> str:
    """Return what an unsupported file of `size` bytes is; "" if it is unknown and `size` None."""
    from lenetgpu.files.models.forms import form_of

    for pattern, what in _FOREIGN:
        if re.match(pattern, start, re.DOTALL | re.IGNORECASE):
            return what
    if (form := form_of(start)) is not None:
        return f"a model in {form} format, not images; --weights reads it"
    other = next((kind for at, first, kind in _OTHERS if start.startswith(first, at)), None)
    if (kind := kind_of(start) or other) is not None:
        return f"a picture in {kind} format"
    return f"{size:,} bytes in no known format" if size else "an empty file" if size == 0 else ""


def kind_of(start: bytes) -> str | None:
    """Return the kind of picture that begins with these START bytes; None if not supported."""
    for kind, signatures in _SIGNATURES.items():
        if start.startswith(signatures):
            return kind
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WebP"
    return "PNM" if re.match(rb"P[1-6f]\s", start) else None


def named_picture(path: str) -> bool:
    """Return True if a file's name has a picture's ending."""
    return os.path.splitext(path)[1].lower() in _ENDINGS


def require_pictures(as_is: bool, found: str) -> None:
    """Raise LenetError if `as_is` is set and `found` is not a picture."""
    if as_is:
        raise LenetError(f"--as-is: expected pictures, found {found}, which are never prepared")
