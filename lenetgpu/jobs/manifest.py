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
from lenetgpu.jobs.inputs import Input, Unreadable
from lenetgpu.jobs.job import Job, OtherSchemaError, Shard, of_header
from lenetgpu.jobs.pictures import keep
from lenetgpu.network import CLASSES
from lenetgpu.store import json_text, known_by, sizes, write_atomically

MANIFEST = "manifest.json"
_LOCK = ".lenetgpu.lock"
_MOST_BYTES, _HEAD, _LONGEST = 1 << 30, 256, 1 << 17
"""Bytes of a manifest, where its first line has the job's id, and of another line, at most."""


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

    @property
    def done_inputs(self) -> set[str]:
        """Paths of the inputs of which some shard is done."""
        return {self.job.shard(number).input.path for number in self._first}

    def row(self, number: int) -> Row | None:
        """The line that shard `number` is in."""
        return self.done.get(self._first.get(number, -1))

    def take(self, row: Row) -> None:
        """A line more; those of its shards before it do not count any more, nor of what they share
        a file with."""
        old = [found for number in numbers(row) if (found := self.row(number)) is not None]
        for known in old:
            self.drop(known)
        self.redone += bool(old)
        self.done[row.shard] = row
        self._first.update(dict.fromkeys(numbers(row), row.shard))
        for number in numbers(row):
            self.failed.pop(number, None)

    def drop(self, row: Row) -> None:
        """A line less, where it is there."""
        if self.done.pop(row.shard, None) is not None:
            for number in numbers(row):
                del self._first[number]


def numbers(row: Row) -> range:
    """Of the shards of a line."""
    return range(row.shard, row.shard + row.files)


Entry = Row | Failed | Input | Unreadable
_KINDS = {Row: "done", Failed: "failed", Input: "input", Unreadable: "unreadable"}


def _line(entry: Entry) -> bytes:
    return (json_text({_KINDS[type(entry)]: vars(entry)}) + "\n").encode()


def begin(folder: Path, job: Job, listed: bytes = b"") -> None:
    """Write the list of pictures, where there are any, and the manifest of a job not begun yet."""
    keep(folder, listed)
    write_atomically(folder / MANIFEST, (json_text(job.header()) + "\n").encode())


def require_begun(folder: Path, job: Job) -> None:
    """LenetError unless the manifest of `folder` is that of `job`, and none begun there since."""
    path = folder / MANIFEST
    try:
        with open(path, "rb", buffering=0) as file:
            _require_begun(file, job)
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error


def _require_begun(file: IO[bytes], job: Job | None) -> None:
    if job is None:
        return
    file.seek(0)
    if f'"id": {json_text(job.id)}'.encode() not in file.read(_HEAD):
        raise LenetError(
            f"{file.name}: expected the job that was begun there, found another one begun since"
        )


def append(folder: Path, *entries: Entry, job: Job | None = None) -> None:
    """Add lines, of `job` where it is given; several processes may at once.

    LenetError where they cannot be written, and where another job was begun in `folder` since.
    """
    path = folder / MANIFEST
    try:
        with open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _require_begun(file, job)
            _cut(file)
            file.write(b"".join(map(_line, entries)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise LenetError(
            f"{path}: expected a place to write to, found: {error.strerror}"
        ) from error


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
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise LenetError(f"{path}: expected at most {_MOST_BYTES:,} bytes, found more")
            text = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error
    whole = text[: text.rfind(b"\n") + 1].splitlines()
    if not whole:
        raise LenetError(f"{path}: expected a line that says what the job is, found none")
    number = 0
    try:
        found = Manifest(of_header(json.loads(whole[0])))
        for number, line in enumerate(whole[1:], 2):  # noqa: B007
            _take(found, json.loads(line))
    except OtherSchemaError as error:
        raise LenetError(f"{path}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LenetError(
            f"{path}: expected lines of a job's manifest, found line {max(1, number)} damaged "
            f"({type(error).__name__})"
        ) from error
    return found


def _row(entry: Any) -> Row:
    known = Row(**entry)
    counts, said = map(index, known.counts), map(str, known.said)
    index(known.size), index(known.files)
    return replace(known, counts=tuple(counts), said=tuple(said))


def _take(manifest: Manifest, document: Any) -> None:
    ((kind, entry),) = document.items()
    if kind == "done":
        _take_row(manifest, _row(entry))
    elif kind == "failed":
        failed = Failed(**entry)
        manifest.failed[failed.shard] = failed
    elif kind == "unreadable":
        manifest.unreadable.add(Unreadable(**entry).path)
    elif kind == "input":
        manifest.job = manifest.job.extended(Input(**entry))
    else:
        raise ValueError(kind)


def _take_row(manifest: Manifest, row: Row) -> None:
    shard = manifest.job.several(row.shard, row.files)
    known = shard.name, len(shard), shard.input.path, shard.hash, shard.lo
    if (row.file, row.images, row.input, row.hash, row.lo) != known:
        raise ValueError("another job's")
    if len(row.counts) != CLASSES or sum(row.counts) + row.bad != row.images:
        raise ValueError("labels lacking")
    if row.right is not None and not 0 <= row.right <= row.images:
        raise ValueError("right ones lacking")
    manifest.take(row)


class Follower:
    """The shards that have lines in a folder's manifest, whoever appends them meanwhile.

    LenetError where the manifest is damaged, or another one than that of `job` by now.
    """

    def __init__(self, folder: Path, job: Job | None = None) -> None:
        self._path, self._job, self._at = folder / MANIFEST, job, 0
        self._rows: dict[int, Row] = {}

    def row(self, shard: Shard) -> Row | None:
        """The line of a shard, and of those that share its file, where that is there."""
        try:
            if self._path.stat().st_size > self._at:
                self._read()
        except OSError as error:
            raise LenetError(
                f"{self._path}: expected a readable file, found: {error.strerror}"
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LenetError(
                f"{self._path}: expected lines of a job's manifest, found one damaged while the "
                "job runs"
            ) from error
        found = self._rows.get(shard.number)
        if found is None or found.files != len(shard.each):
            return None
        there = sizes(self._path.parent, [shard.name])
        return found if there.get(shard.name) == found.size else None

    def _read(self) -> None:
        with open(self._path, "rb") as file:
            _require_begun(file, self._job)
            file.seek(self._at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        for line in whole.splitlines():
            entry = json.loads(line).get("done")
            if entry is not None:
                self._rows[entry["shard"]] = _row(entry)
        self._at += len(whole)


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
    path = folder / row.file
    try:
        if sizes(folder, [row.file]).get(row.file, row.size) == row.size:
            with open_regular(path, "the labels that were listed") as file:
                if known_by(file) == (row.size, row.digest):
                    return ""
    except LenetError as error:
        return str(error)
    except OSError as error:
        return f"{path}: expected the labels that were listed, found: {error.strerror}"
    return f"{path}: expected the labels that were listed, found them changed since"


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise LenetError(
            f"{folder}: expected a folder to write into, found: {error.strerror}"
        ) from error
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
