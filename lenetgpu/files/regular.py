"""Opening, reading and inflating of regular files, by ISA-L (extra `isal`) or Python's zlib."""

import os
import stat
import zlib
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from lenetgpu.errors import LenetError, unexpected

GZIP_MAGIC, MAGIC = b"\x1f\x8b", b"\x89HDF\r\n\x1a\n"  # first bytes of gzip and of HDF5
MOST_RATIO = 1032  # largest expansion of deflate: 258 bytes from two bits


def open_regular(path: Path, what: str) -> BinaryIO:
    """Open `path`, expected to be `what`, unbuffered; raise LenetError unless it is a file."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        if regular:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            regular = stat.S_ISREG(os.fstat(handle).st_mode)  # another file may be there by now
            if regular:
                return os.fdopen(handle, "rb", buffering=0)
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise unexpected(path, what, "no such file") from error
    except OSError as error:
        raise unreadable(path, error) from error
    raise unexpected(path, what, "a folder; name a file" if path.is_dir() else "a device")


def unreadable(path: Path, error: OSError) -> LenetError:
    """Return the error for a file that the system cannot read."""
    return LenetError(f"{path}: cannot be read: {error.strerror}")


def start_of(path: Path, expected: str, length: int) -> bytes:
    """Return the first bytes of a file; MAGIC if HDF5 begins after a user block."""
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
    """Return all bytes of a regular file; raise LenetError if `limited` exceeds `most` bytes."""
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
    """A file open for reading; threads read it at their own positions, without a lock."""

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        """Open `path`, or use an open `file`; raise LenetError if it cannot be read."""
        self.path = path
        self.file = open_regular(path, "a file to read") if file is None else file
        self.size = os.fstat(self.file.fileno()).st_size

    def read_into(self, out: memoryview, at: int) -> None:
        """Fill the bytes of `out` from byte `at` on; raise LenetError if the file ends before."""
        done = 0
        try:
            while done < len(out):
                got = os.preadv(self.file.fileno(), [out[done:]], at + done)
                if not got:
                    found = f"{done:,}: the file became shorter while it was read"
                    raise unexpected(self.path, f"{len(out):,} bytes from byte {at:,} on", found)
                done += got
        except OSError as error:
            failed = f"cannot read {len(out):,} bytes from byte {at:,} on"
            raise LenetError(f"{self.path}: {failed}: {error.strerror or error}") from error

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
    """Return the exceptions that damaged data raise."""
    return (OSError, EOFError, zlib.error, _modules()[0].error)


def is_gzip(file: BinaryIO) -> bool:
    """Return True if an open file is gzip's; rewind it to its start."""
    file.seek(0)
    gzipped = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return gzipped


def unpacking(file: BinaryIO) -> BinaryIO:
    """Return an open file, rewound; if it is gzip's, a file that inflates it."""
    if not is_gzip(file):
        return file
    inflating: BinaryIO = _modules()[1].GzipFile(fileobj=file, mode="rb")
    return inflating


def inflated(data: Any, most: int) -> tuple[bytes, bool]:
    """Inflate zlib's format to at most `most` bytes; return them and whether the stream ended."""
    inflater = _modules()[0].decompressobj()
    content: bytes = inflater.decompress(data, most)
    return content, bool(inflater.eof)
