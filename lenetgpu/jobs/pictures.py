"""Pictures as the input of a job: a list of them in its folder, read one shard at a time.

The list has a record for each picture, in order: its size, modification time and path, ended by a
zero byte. The job stores only the hash of the list, so the manifest's first line stays short.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.forms import NO_LABEL
from lenetgpu.files.orientation import Orientation
from lenetgpu.files.reading import Source
from lenetgpu.jobs import expecting
from lenetgpu.pictures import read_digit
from lenetgpu.store import write_atomically

LIST = "pictures.list"
AT_ONCE = 64  # pictures prepared between two checks for the end of the job
FIRST = 3  # pictures without a label whose reasons a shard's line holds
Record = tuple[int, int, str]  # a picture's size in bytes, modification time in ns, and path


def digest(listed: Any) -> str:
    """Return the hash that identifies a list."""
    return hashlib.sha256(listed).hexdigest()[:32]


def record(path: str, facts: os.stat_result) -> bytes:
    """Return the record of a picture in a list, by its absolute path."""
    return b"%d %d %b\0" % (facts.st_size, facts.st_mtime_ns, os.fsencode(path))


def records(listed: bytes) -> Iterator[Record]:
    """Yield the records of a list, or of a part of one."""
    for text in listed.split(b"\0")[:-1]:
        size, changed, path = text.split(b" ", 2)
        yield int(size), int(changed), os.fsdecode(path)


def difference(old: bytes, new: bytes) -> str:
    """Describe the first picture that differs between two lists."""
    before, after = ({path: facts for *facts, path in records(listed)} for listed in (old, new))
    for path in [*before, *after]:
        if path not in after:
            return f"that {path} is not among them now"
        if path not in before:
            return f"another one, {path}"
        if before[path] != after[path]:
            return f"that {path} changed since"
    return "them in another order"


def store_list(folder: Path, listed: bytes) -> None:
    """Write a list to `folder`, unless it is empty or already there."""
    if listed and _stored_list(folder) != listed:
        write_atomically(folder / LIST, listed)


def _stored_list(folder: Path) -> bytes:
    try:
        return (folder / LIST).read_bytes()
    except OSError:
        return b""


def require_same_list(folder: Path, known: str, listed: bytes) -> None:
    """Raise LenetError naming the first picture that differs from the list with hash `known`."""
    if digest(listed) == known:
        return
    old = _stored_list(folder)
    found = difference(old, listed) if digest(old) == known else "others"
    raise unexpected(folder, "the pictures of the job started there", found)


@lru_cache(1)
class PictureList:
    """A memory-mapped list of pictures, opened once by a process; LenetError for another hash."""

    def __init__(self, path: Path, known: str) -> None:
        expected = "the list with which the job started"
        with expecting(expected, path):
            size = path.stat().st_size
            self._listed = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
        if digest(self._listed) != known:
            raise unexpected(path, expected, "another one")
        self._ends = np.flatnonzero(self._listed == 0) + 1

    def records(self, lo: int, hi: int) -> list[Record]:
        """Return the records of pictures `lo` to `hi`."""
        first = self._ends[lo - 1] if lo else 0
        return list(records(self._listed[first : self._ends[hi - 1]].tobytes()))


class PictureSource(Source):
    """Pictures `lo` to `hi` of the list at `path` with hash `known`, prepared when they are read.

    Preparation is like MNIST's, unless `as_is`. A picture that cannot be read or has no digit is
    black. Raises LenetError if a picture changed since it was listed.
    """

    def __init__(
        self,
        path: Path,
        known: str,
        lo: int,
        hi: int,
        as_is: bool,
        orientation: Orientation,
    ) -> None:
        super().__init__(str(path), "uint8", None, range(lo, hi))
        self._records = PictureList(path, known).records(lo, hi)
        self._as_is, self._orientation = as_is, orientation
        self.names = [name for *_, name in self._records]  # paths
        self.reasons: dict[int, str] = {}  # errors of black pictures, by index from 0

    def _fill(self, first: int, out: Array) -> None:
        for index, image in enumerate(out, first - self.selection.start):
            image[..., 0] = self._pixels(index)

    def _pixels(self, index: int) -> Any:
        """Return a picture's pixels, (28, 28) uint8, or 0 if it has no digit."""
        size, changed, path = self._records[index]
        pixels: Any = 0
        try:
            pixels = self._orientation.apply(read_digit(path, self._as_is).pixels)
        except LenetError as error:
            if _is_transient(error) and _facts(path) == (size, changed):
                raise
            self.reasons[index] = str(error)
        if _facts(path) != (size, changed):
            found = "changed since" if os.path.lexists(path) else "gone"
            raise unexpected(path, "the picture with which the job started", f"it {found}")
        return pixels

    def marked(self, first: int, labels: Any, scores: Any) -> tuple[Any, Any]:
        """Return `labels` (n,) and `scores` (n, 10), from index `first`, with NO_LABEL and NaN."""
        missing = [row for row in range(len(labels)) if first + row in self.reasons]
        if missing:
            labels = np.array(labels)
            labels[missing] = NO_LABEL
            if scores is not None:
                scores = np.array(scores)
                scores[missing] = np.nan
        return labels, scores

    def first_reasons(self) -> tuple[str, ...]:
        """Return the reasons why the first pictures without a label have none."""
        return tuple(self.reasons[index] for index in sorted(self.reasons)[:FIRST])


def _facts(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def _is_transient(error: LenetError) -> bool:
    """Return True if the error is the machine's: a retry may read the same bytes."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return not isinstance(cause, PermissionError)
    return cause is not None and isinstance(cause.__cause__, MemoryError)
