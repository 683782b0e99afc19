"""What is done of a job: a folder's manifest, a line of JSON a shard, written when it is whole.

The first line says what the job is. Whoever finished a shard appends its line, under a lock, when
the shard's file has its name: what a line names is there. A process that is killed leaves at most
the end of one line, which is dropped when the job goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import IO, Any

from lenetgpu.cpu.threads import core_count
from lenetgpu.errors import LenetError
from lenetgpu.files.regular import open_regular
from lenetgpu.jobs import expecting
from lenetgpu.jobs.inputs import Input, Unreadable
from lenetgpu.jobs.job import Job, OtherSchemaError, Shard, of_header
from lenetgpu.jobs.pictures import keep
from lenetgpu.network import CLASSES
from lenetgpu.store import json_text, known_by, sizes, write_atomically

MANIFEST = "manifest.json"
_LOCK = ".lenetgpu.lock"
_HEAD, _LONGEST = 256, 1 << 17
"""Bytes in which a manifest's first line has the job's id, and of another line, at most."""


@dataclass(frozen=True)
class Row:
    """A shard that is done: `counts` (10) labels of each digit, `right` None without labels.

    `hash` is its input's fingerprint, `version` lenetgpu's; `seconds` from opening the input to the
    file's name; `worker` names who did it. `size` and `digest` are its file's bytes and their
    SHA-256. `files`: so many shards, of a file each, share that file, from this one on; all but
    `shard`, `input` and `lo` is then of all of them. `bad` of its pictures have no label, `said`
    is why the first of them have none.
    """

    shard: int
    file: str
    images: int
    input: str
    hash: str
    lo: int
    counts: tuple[int, ...]
    right: int | None
    seconds: float
    worker: str
    version: str
    size: int
    digest: str
    files: int = 1
    bad: int = 0
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failed:
    """A shard that was set aside, and why; `images` of it have no labels."""

    shard: int
    images: int
    sentence: str
    tries: int


@dataclass
class Manifest:
    """A job and its lines so far; the last line of a shard counts."""

    job: Job
    done: dict[int, Row] = field(default_factory=dict)
    failed: dict[int, Failed] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    """Paths of files that were found and could not be read."""
    redone: int = 0
    """Lines of shards that had one already."""
    _first: dict[int, int] = field(default_factory=dict)
    _lines: int = 1
    _bytes: int = 0

    @property
    def done_inputs(self) -> set[str]:
        """Paths of the inputs of which some shard is done."""
        return {self.job.shard(number).input.path for number in self._first}

    def row(self, number: int) -> Row | None:
        """Get the line that shard `number` is in."""
        return self.done.get(self._first.get(number, -1))

    def take(self, row: Row) -> None:
        """Add a line; earlier ones of its shards, and of what shares their files, are dropped."""
        old = [found for number in numbers(row) if (found := self.row(number)) is not None]
        for known in old:
            self.drop(known)
        self.redone += bool(old)
        self.done[row.shard] = row
        for number in numbers(row):
            self._first[number] = row.shard
            self.failed.pop(number, None)

    def drop(self, row: Row) -> None:
        """Forget a line, where it is there."""
        if self.done.pop(row.shard, None) is not None:
            for number in numbers(row):
                del self._first[number]

    def listed(self, folder: Path, shard: Shard) -> Row | None:
        """Get the line of a shard and of those that share its file, where that is in `folder`.

        Lines are followed: others append them meanwhile.
        """
        path = folder / MANIFEST
        with expecting("a readable file", path):
            if path.stat().st_size > self._bytes:
                with open(path, "rb") as file:
                    self.follow(file)
        found = self.done.get(shard.number)
        if found is None or found.files != len(shard.each):
            return None
        return found if sizes(folder, [shard.name]).get(shard.name) == found.size else None

    def follow(self, file: IO[bytes]) -> None:
        """Take the whole lines behind those that were taken; LenetError where one is damaged."""
        file.seek(self._bytes)
        text = file.read()
        for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
            self._lines += 1
            with _undamaged(file.name, self._lines):
                self._take(json.loads(line))
            self._bytes += len(line)

    def _take(self, document: Any) -> None:
        ((kind, entry),) = document.items()
        found = _KINDS[kind](**entry)
        if isinstance(found, Row):
            self.take(_checked(self.job, found))
        elif isinstance(found, Failed):
            self.failed[found.shard] = found
        elif isinstance(found, Unreadable):
            self.unreadable.add(found.path)
        else:
            self.job = self.job.extended(found)


@contextmanager
def _undamaged(path: str, line: int) -> Iterator[None]:
    """LenetError where a line of a manifest is none, or of another version of the format."""
    try:
        yield
    except OtherSchemaError as error:
        raise LenetError(f"{path}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LenetError(
            f"{path}: expected lines of a job's manifest, found line {line} damaged "
            f"({type(error).__name__})"
        ) from error


def _checked(job: Job, row: Row) -> Row:
    """A shard's line; ValueError where it is not the shard's or does not add up."""
    row = replace(row, counts=tuple(map(index, row.counts)), said=tuple(map(str, row.said)))
    shard = job.several(row.shard, index(row.files))
    known = shard.name, len(shard), shard.input.path, shard.hash, shard.lo
    if (row.file, row.images, row.input, row.hash, row.lo) != known:
        raise ValueError("another job's")
    if len(row.counts) != CLASSES or sum(row.counts) + row.bad != row.images:
        raise ValueError("labels lacking")
    if not 0 <= (row.right or 0) <= row.images or index(row.size) < 0:
        raise ValueError("right ones lacking")
    return row


def numbers(row: Row) -> range:
    """The numbers of a line's shards."""
    return range(row.shard, row.shard + row.files)


Entry = Row | Failed | Input | Unreadable
_KINDS: dict[str, type[Row] | type[Failed] | type[Input] | type[Unreadable]] = {
    "done": Row, "failed": Failed, "input": Input, "unreadable": Unreadable,
}  # fmt: skip


def _line(entry: Entry) -> bytes:
    kind = next(kind for kind, made in _KINDS.items() if isinstance(entry, made))
    return (json_text({kind: vars(entry)}) + "\n").encode()


def begin(folder: Path, job: Job, listed: bytes = b"") -> None:
    """Write the list of pictures, where there are any, and the manifest of a job not begun yet."""
    keep(folder, listed)
    write_atomically(folder / MANIFEST, (json_text(job.header()) + "\n").encode())


def require_begun(folder: Path, job: Job) -> None:
    """LenetError unless the manifest of `folder` is that of `job`, and none begun there since."""
    path = folder / MANIFEST
    with expecting("a readable file", path), open(path, "rb", buffering=0) as file:
        _require_begun(file, job)


def _require_begun(file: IO[bytes], job: Job) -> None:
    if f'"id": {json_text(job.id)}'.encode() not in file.read(_HEAD):
        raise LenetError(
            f"{file.name}: expected the job that was begun there, found another one begun since"
        )


def append(folder: Path, *entries: Entry, job: Job | None = None) -> None:
    """Add lines, of `job` where it is given; several processes may at once.

    LenetError where they cannot be written, and where another job was begun in `folder` since.
    """
    path = folder / MANIFEST
    with expecting("a place to write to", path), open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if job is not None:
            _require_begun(file, job)
        _cut(file)
        file.write(b"".join(map(_line, entries)))
        file.flush()
        os.fsync(file.fileno())


def _cut(file: IO[bytes]) -> None:
    """Go to the end of the last whole line; what somebody who was killed left behind it goes."""
    lo = max(0, file.seek(0, os.SEEK_END) - _LONGEST)
    file.seek(lo)
    end = lo + file.read().rfind(b"\n") + 1
    file.truncate(end)
    file.seek(end)


def read(folder: Path) -> Manifest | None:
    """The manifest of `folder`, None where there is none.

    LenetError where it is damaged, or of another version of the format.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    with expecting("a readable file", path), open(path, "rb") as file:
        first = file.readline()
        if not first.endswith(b"\n"):
            raise LenetError(f"{path}: expected a line that says what the job is, found none")
        with _undamaged(file.name, 1):
            found = Manifest(of_header(json.loads(first)), _bytes=len(first))
        found.follow(file)
    return found


def whole(folder: Path) -> list[Row]:
    """The lines of the shards whose files are there."""
    found = read(folder)
    missing = set(left(folder, found)) if found is not None else set()
    return [row for row in found.done.values() if row.shard not in missing] if found else []


def left(folder: Path, manifest: Manifest) -> list[int]:
    """Numbers of the shards that have no line, or whose file is not there, or not whole."""
    there = sizes(folder)
    rows = ((shard.number, manifest.row(shard.number)) for shard in manifest.job.shards)
    return [number for number, row in rows if row is None or there.get(row.file) != row.size]


def altered(folder: Path, rows: Iterable[Row]) -> list[tuple[Row, str]]:
    """The lines whose file in `folder` is not the one that was listed any more, each with why.

    Every file is read: 4 bytes an image (44 with scores), beside the 784 that its label came of.
    """
    listed = list(rows)
    with ThreadPoolExecutor(core_count(), thread_name_prefix="lenetgpu-look") as pool:
        found = pool.map(lambda row: _altered(folder, row), listed)
        return [(row, why) for row, why in zip(listed, found, strict=True) if why]


def _altered(folder: Path, row: Row) -> str:
    """Why a file is not the listed one, or nothing."""
    path, what = folder / row.file, "the labels that were listed"
    try:
        if sizes(folder, [row.file]).get(row.file, row.size) == row.size:
            with expecting(what, path), open_regular(path, what) as file:
                if known_by(file) == (row.size, row.digest):
                    return ""
    except LenetError as error:
        return str(error)
    return f"{path}: expected {what}, found them changed since"


def clear(folder: Path, job: Job, rows: Iterable[Row]) -> None:
    """Remove files that have names of the job's files of labels and are not those of `rows`.

    Whoever wrote one was killed before its line, or it is not whole: its rows come once more, under
    this name or within another file.
    """
    kept, name = {row.file for row in rows}, re.compile(rf"part-(\d{{6,}}){re.escape(job.form)}")
    for there in sizes(folder):
        found = name.fullmatch(there)
        if found and there not in kept and int(found[1]) < job.numbers:
            with suppress(OSError):  # it is written over, or the job says that it cannot be
                (folder / there).unlink()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make `folder` where it is not, and hold it for one job; LenetError where another has it."""
    path = folder / _LOCK
    with expecting("a folder to write into", folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        wanted = "file system that locks files", error.strerror
        if isinstance(error, BlockingIOError):
            wanted = "folder that no other job is writing to", "one that does"
        raise LenetError(f"{folder}: expected a {wanted[0]}, found {wanted[1]}") from error
    try:
        yield
    finally:
        os.close(lock)
