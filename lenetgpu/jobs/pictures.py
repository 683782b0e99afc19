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
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.forms import NO_LABEL
from lenetgpu.files.reading import Source
from lenetgpu.jobs import expecting
from lenetgpu.pictures import read_digit
from lenetgpu.store import write_atomically

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

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
    before, after = ({path: facts for *facts, path in records(one)} for one in (old, new))
    for path in [*before, *after]:
        if path not in after:
            return f"that {path} is not among them now"
        if path not in before:
            return f"another one, {path}"
        if before[path] != after[path]:
            return f"that {path} changed since"
    return "them in another order"


def keep(folder: Path, listed: bytes) -> None:
    """Write a list to `folder`, unless it is empty or already there."""
    path = folder / LIST
    if listed and _kept(path) != listed:
        write_atomically(path, listed)


def _kept(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def require_same(folder: Path, known: str, listed: bytes) -> None:
    """Raise LenetError naming the first picture that differs from the list with hash `known`."""
    if digest(listed) == known:
        return
    old = _kept(folder / LIST)
    found = difference(old, listed) if digest(old) == known else "others"
    raise LenetError(
        f"{folder}: expected the pictures of the job that was begun there, found {found}"
    )


class Listing:
    """A memory-mapped list of pictures, with the position of each record's end.

    Raises LenetError if its hash is not `known`.
    """

    def __init__(self, path: Path, known: str) -> None:
        import numpy as np

        self.path, what = path, "the list that the job was begun with"
        with expecting(what, path):
            size = path.stat().st_size
            self._listed = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
        if digest(self._listed) != known:
            raise LenetError(f"{path}: expected {what}, found: another one")
        self._ends = np.flatnonzero(self._listed == 0) + 1

    def records(self, lo: int, hi: int) -> list[Record]:
        """Return the records of pictures `lo` to `hi`."""
        first = self._ends[lo - 1] if lo else 0
        return list(records(self._listed[first : self._ends[hi - 1]].tobytes()))


listing = lru_cache(1)(Listing)  # this process's `Listing`, opened once


class PictureSource(Source):
    """Pictures `lo` to `hi` of a list, prepared like MNIST (unless `as_is`) when they are read.

    `names` are their paths. A picture that cannot be read or has no digit is black, and
    `lacking` holds the reason by its index from 0. Raises LenetError if a picture changed since
    it was listed.
    """

    def __init__(self, found: Listing, lo: int, hi: int, as_is: bool) -> None:
        super().__init__(f"{found.path}", "uint8", None, range(lo, hi))
        self._records, self._as_is = found.records(lo, hi), as_is
        self.names = [path for *_, path in self._records]
        self.lacking: dict[int, str] = {}

    def _fill(self, first: int, out: Array) -> None:
        for at, image in enumerate(out, first - self.chosen.start):
            image[..., 0] = self._pixels(at)

    def _pixels(self, number: int) -> Any:
        """Return a picture's pixels, (28, 28) uint8, or 0 if it has no digit."""
        size, changed, path = self._records[number]
        pixels: Any = 0
        try:
            pixels = read_digit(path, self._as_is).pixels
        except LenetError as error:
            if _passes(error) and _facts(path) == (size, changed):
                raise
            self.lacking[number] = str(error)
        if _facts(path) != (size, changed):
            found = "changed since" if os.path.lexists(path) else "gone"
            raise LenetError(
                f"{path}: expected the picture that the job was begun with, found it {found}"
            )
        return pixels

    def marked(self, at: int, labels: Any, scores: Any) -> tuple[Any, Any]:
        """Return `labels` (n,) and `scores` (n, 10) from index `at`, with NO_LABEL and NaN set."""
        import numpy as np

        none = [number for number in range(len(labels)) if at + number in self.lacking]
        if none:
            labels, scores = np.array(labels), None if scores is None else np.array(scores)
            labels[none] = NO_LABEL
            if scores is not None:
                scores[none] = np.nan
        return labels, scores

    def said(self) -> tuple[str, ...]:
        """Return the reasons why the first pictures without a label have none."""
        return tuple(self.lacking[place] for place in sorted(self.lacking)[:FIRST])


def _facts(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def _passes(error: LenetError) -> bool:
    """Return True if the error is the machine's: a retry may read the same bytes."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return not isinstance(cause, PermissionError)
    return cause is not None and isinstance(cause.__cause__, MemoryError)
