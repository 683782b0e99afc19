"""Pictures as the input of a job: a list of them in its folder, read a shard at a time.

The list has a record a picture, in order: its size, its time of change and its path, ended by a
zero byte. A job knows it by its hash, so that its first line does not grow with the pictures.
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
AT_ONCE = 64
"""Pictures that are prepared between two looks at whether the job is to end."""
FIRST = 3
"""Pictures without a label whose sentence a shard's line has."""
Record = tuple[int, int, str]
"""A picture's bytes, its time of change in ns, its path."""


def digest(listed: Any) -> str:
    """What a list is known by."""
    return hashlib.sha256(listed).hexdigest()[:32]


def record(path: str, facts: os.stat_result) -> bytes:
    """A picture in a list, by its absolute path."""
    return b"%d %d %b\0" % (facts.st_size, facts.st_mtime_ns, os.fsencode(path))


def records(listed: bytes) -> Iterator[Record]:
    """The records of a list, or of a part of one."""
    for text in listed.split(b"\0")[:-1]:
        size, changed, path = text.split(b" ", 2)
        yield int(size), int(changed), os.fsdecode(path)


def difference(old: bytes, new: bytes) -> str:
    """Say what became of the first picture that is not the same in both lists."""
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
    """Have a list in `folder`, where it is not there as it is; nothing where it is empty."""
    path = folder / LIST
    if listed and _kept(path) != listed:
        write_atomically(path, listed)


def _kept(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def require_same(folder: Path, known: str, listed: bytes) -> None:
    """LenetError that names the first picture which is another in the list known by `known`."""
    if digest(listed) == known:
        return
    old = _kept(folder / LIST)
    found = difference(old, listed) if digest(old) == known else "others"
    raise LenetError(
        f"{folder}: expected the pictures of the job that was begun there, found {found}"
    )


class Listing:
    """A list in a file, of which only what is asked for is in memory, and where each record ends.

    LenetError where it is not the one that is known by `known`.
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
        """Those of pictures `lo` to `hi`."""
        first = self._ends[lo - 1] if lo else 0
        return list(records(self._listed[first : self._ends[hi - 1]].tobytes()))


listing = lru_cache(1)(Listing)
"""The process' own `Listing`, looked through once."""


class PictureSource(Source):
    """Pictures `lo` to `hi` of a list, prepared as MNIST was unless `as_is`, as they are read.

    `names` are their paths. One that cannot be read or has no digit is black, and `lacking` has its
    sentence by its place from 0. LenetError for one that changed since it was listed.
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
        """A picture's (28, 28) uint8, or 0."""
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
        """`labels` (n,) from place `at` on and `scores` (n, 10), NO_LABEL and NaN where none is."""
        import numpy as np

        none = [number for number in range(len(labels)) if at + number in self.lacking]
        if none:
            labels, scores = np.array(labels), None if scores is None else np.array(scores)
            labels[none] = NO_LABEL
            if scores is not None:
                scores[none] = np.nan
        return labels, scores

    def said(self) -> tuple[str, ...]:
        """Why the first pictures without a label have none."""
        return tuple(self.lacking[place] for place in sorted(self.lacking)[:FIRST])


def _facts(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def _passes(error: LenetError) -> bool:
    """Whether it is the machine's: another try may read the same bytes."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return not isinstance(cause, PermissionError)
    return cause is not None and isinstance(cause.__cause__, MemoryError)
