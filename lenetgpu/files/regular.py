"""Files opened for reading by name, regular ones only, bytes of them, and what is inflated.

ISA-L inflates (extra `isal`) where it is installed, else Python's own zlib.
"""

from __future__ import annotations

import os
import stat
import zlib
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from lenetgpu.errors import LenetError, unexpected

GZIP_MAGIC, MAGIC = b"\x1f\x8b", b"\x89HDF\r\n\x1a\n"
"""How gzip and HDF5 begin."""
MOST_RATIO = 1032
"""Bytes that one of deflate's becomes at most: 258 in two bits."""


def open_regular(path: Path, what: str) -> BinaryIO:
    """`path` open for reading, without a buffer; LenetError where it is no regular file.

    `what` names what was expected. What takes its place between the look and the opening is seen as
    well: it is opened without waiting for a FIFO's writer, and looked at again.
    """
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        if regular:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            regular = stat.S_ISREG(os.fstat(handle).st_mode)
            if regular:
                return os.fdopen(handle, "rb", buffering=0)
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise unexpected(path, what, "no such file") from error
    except OSError as error:
        raise unreadable(path, error) from error
    raise unexpected(path, what, "a folder or a device")


def unreadable(path: Path, error: OSError) -> LenetError:
    """Return the error for a file that the system will not read."""
    return LenetError(f"{path}: expected a readable file, found: {error.strerror}")


def start_of(path: Path, expected: str, length: int) -> bytes:
    """The first bytes of a file; MAGIC where HDF5 begins behind a block of the user's.

    LenetError, naming what is `expected`, where it is no file that can be read.
    """
    try:
        with open_regular(path, expected) as file:
            start, at = file.read(length), 512
            while file.seek(at) and (found := file.read(len(MAGIC))):
                if found == MAGIC:
                    return MAGIC
                at *= 2
            return start
    except OSError as error:
        raise unreadable(path, error) from error


def read_whole(path: Path, what: str, most: int, limited: str) -> bytes:
    """All bytes of a regular file, where they are not more than `most`; LenetError else.

    `what` names what was expected; `limited` what has `most` bytes, as "a picture of".
    """
    try:
        with open_regular(path, what) as file:
            size = os.fstat(file.fileno()).st_size
            parts, left = [], most + 1 if size <= most else 0
            while left and (part := file.read(min(left, size + 1))):
                parts.append(part)
                left -= len(part)
    except OSError as error:
        raise unreadable(path, error) from error
    if not left:
        found = max(size, most + 1)
        raise LenetError(f"{path}: expected {limited} at most {most:,} bytes, found {found:,}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


class OpenFile:
    """A file open for reading; threads read it at their own places, without a lock."""

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        """Open `path`, or take `file` that is open already; LenetError where it cannot be read."""
        self.path = path
        self.file = open_regular(path, "a file to read") if file is None else file
        self.size = os.fstat(self.file.fileno()).st_size

    def read_into(self, out: memoryview, at: int) -> None:
        """Fill `out`, of bytes, from byte `at` on; LenetError where the file ends before."""
        done = 0
        try:
            while done < len(out):
                got = os.preadv(self.file.fileno(), [out[done:]], at + done)
                if not got:
                    raise LenetError(
                        f"{self.path}: expected {len(out):,} bytes from byte {at:,} on, "
                        f"found {done:,}: the file became shorter while it was read"
                    )
                done += got
        except OSError as error:
            raise LenetError(
                f"{self.path}: expected {len(out):,} readable bytes from byte {at:,} on, "
                f"found: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self.file.close()


@cache
def _modules() -> tuple[Any, Any]:
    try:
        from isal import igzip, isal_zlib

        return isal_zlib, igzip
    except ImportError:
        import gzip

        return zlib, gzip


def broken() -> tuple[type[Exception], ...]:
    """The exceptions that damaged data raise."""
    return (OSError, EOFError, zlib.error, _modules()[0].error)


def is_gzip(file: BinaryIO) -> bool:
    """Return true if an open file is gzip's; it is at its start afterwards."""
    file.seek(0)
    found = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return found


def unpacking(file: BinaryIO) -> BinaryIO:
    """Return an open file from its start on, or the file that it is inflated to."""
    opened: BinaryIO = file
    if is_gzip(file):
        opened = _modules()[1].GzipFile(fileobj=file, mode="rb")
    return opened


def inflated(data: Any, most: int) -> tuple[bytes, bool]:
    """Inflate zlib's format to at most `most` bytes; return them and whether they are all."""
    inflater = _modules()[0].decompressobj()
    found: bytes = inflater.decompress(data, most)
    return found, bool(inflater.eof)
