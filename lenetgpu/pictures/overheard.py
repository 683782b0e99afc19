"""What libtiff says of a picture, which it prints past Pillow: that is damage, and no output."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import IO

from lenetgpu.pictures.guard import RefusedError

_STDERR = 2
_MOST_BYTES = 1 << 15
_ITS_LINE = re.compile(rb"(\w+: [^\r\n\x1b]*)\.\n")
_WARNING = b": Warning, "
_ONE = Lock()
"""Held while the process's stderr is elsewhere."""


def _kept() -> IO[bytes]:
    """A file in memory where the system has such, which no full disk refuses."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("libtiff"), "w+b")
    return tempfile.TemporaryFile()


@contextmanager
def overheard(form: str) -> Iterator[None]:
    """A block that decodes a picture of Pillow's `form`; nothing of libtiff's reaches stderr.

    RefusedError of its first line that is no warning, instead of what the block raises. What others
    write there meanwhile follows when it ends.
    """
    if form != "TIFF":
        yield
        return
    with _ONE:
        try:
            before = os.dup(_STDERR)
        except OSError:  # closed: it says nothing to anybody
            yield
            return
        error: Exception | None = None
        with _kept() as file:
            os.dup2(file.fileno(), _STDERR)
            try:
                yield
            except Exception as raised:
                error = raised
            finally:
                os.dup2(before, _STDERR)
                os.close(before)
            file.seek(0)
            said = file.read(_MOST_BYTES)
    others = _ITS_LINE.sub(b"", said)
    if others:
        os.write(_STDERR, others)
    lines = [line for line in _ITS_LINE.findall(said) if _WARNING not in line]
    if lines:
        raise RefusedError(f"a damaged one ({lines[0].decode(errors='replace')})") from error
    if error is not None:
        raise error
