"""The fastest inflate that is installed: ISA-L's (extra `isal`), or Python's own zlib."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any, BinaryIO

GZIP_MAGIC = b"\x1f\x8b"
MOST_RATIO = 1032
"""Bytes that one of deflate's becomes at most: 258 in two bits."""


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


def is_gzip(file: BinaryIO) -> bool:
    """Whether an open file is gzip's; it is at its start afterwards."""
    file.seek(0)
    found = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return found


def unpacking(file: BinaryIO) -> BinaryIO:
    """What is in an open file from its start on: itself, or what it is inflated to."""
    if not is_gzip(file):
        return file
    opened: BinaryIO = _modules()[1].GzipFile(fileobj=file, mode="rb")
    return opened


def inflated(data: Any, most: int) -> tuple[bytes, bool]:
    """What at most `most` bytes of zlib's format hold, and whether that is the end of them."""
    inflater = _modules()[0].decompressobj()
    found: bytes = inflater.decompress(data, most)
    return found, bool(inflater.eof)
