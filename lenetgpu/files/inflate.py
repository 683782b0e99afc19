"""The fastest inflate that is installed: ISA-L's (extra `isal`), or Python's own zlib."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

GZIP_MAGIC = b"\x1f\x8b"


@cache
def _modules() -> tuple[Any, Any]:
    """Something like `zlib`, and something like `gzip`."""
    try:
        from isal import igzip, isal_zlib

        return isal_zlib, igzip
    except ImportError:
        import gzip

        return zlib, gzip


def broken() -> tuple[type[Exception], ...]:
    """What damaged data raise."""
    return (OSError, EOFError, zlib.error, _modules()[0].error)


def is_gzip(path: Path) -> bool:
    """Whether a file is gzip's."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def unpacking(path: Path) -> BinaryIO:
    """A file opened for reading what is in it, inflated where it is gzip's."""
    if not is_gzip(path):
        return path.open("rb")
    opened: BinaryIO = _modules()[1].GzipFile(path)
    return opened


def inflated(data: Any, most: int) -> tuple[bytes, bool]:
    """What at most `most` bytes of zlib's format hold, and whether that is the end of them."""
    inflater = _modules()[0].decompressobj()
    found: bytes = inflater.decompress(data, most)
    return found, bool(inflater.eof)
