"""The fastest inflate that is installed: ISA-L's (extra `isal`), or Python's own zlib."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, BinaryIO

try:
    from isal import igzip, isal_zlib
except ImportError:
    igzip = isal_zlib = None

BROKEN: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
"""What damaged data raise."""
if isal_zlib is not None:
    BROKEN = (*BROKEN, isal_zlib.error)
GZIP_MAGIC = b"\x1f\x8b"


def is_packed(path: Path) -> bool:
    """Whether a file is packed by gzip."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def unpacking(path: Path) -> BinaryIO:
    """A file opened for reading what is in it, packed by gzip or not."""
    if not is_packed(path):
        return path.open("rb")
    opened: BinaryIO = (gzip if igzip is None else igzip).GzipFile(path)
    return opened


def inflated(data: Any, most: int) -> tuple[bytes, bool]:
    """What at most `most` bytes of zlib's format hold, and whether that is the end of them."""
    inflater: Any = zlib.decompressobj() if isal_zlib is None else isal_zlib.decompressobj()
    found: bytes = inflater.decompress(data, most)
    return found, bool(inflater.eof)
