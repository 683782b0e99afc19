"""Manifest of a job: a file in its folder with a line of JSON for every finished shard; outcome.

The first line describes the job. A worker appends a shard's line, under a lock, after the label
file has its final name, so every listed file exists. A killed process leaves at most an incomplete
last line, which is removed when the job continues.
"""

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
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.regular import open_regular
from lenetgpu.jobs import expecting
from lenetgpu.jobs.inputs import Input, Unreadable, changed
from lenetgpu.jobs.job import Job, Shard, of_header
from lenetgpu.jobs.pictures import store_list
from lenetgpu.network import CLASSES
from lenetgpu.store import json_text, known_by, sizes, write_atomically

MANIFEST = "manifest.json"
_LOCK = ".lenetgpu.lock"
# Bytes at the manifest's start that hold the job's id; the longest other line.
_HEAD, _LONGEST = 256, 1 << 17
# Most entries in a summary: pictures without a label; files that are unreadable or altered.
_REASONS, _FILES = 10, 1_000


@dataclass(frozen=True)
class Row:
    """A finished shard, with those that share its label file; their numbers follow one another."""

    shard: int
    file: str  # name of the label file
    images: int  # of all its shards, like the fields that follow `lo`
    input: str  # path of the first shard's input
    hash: str  # fingerprint of the inputs
    lo: int  # first image of the input
    counts: tuple[int, ...]  # labels of each digit
    right: int | None  # correct labels; None for unlabelled inputs
    seconds: float  # from opening the input to the finished label file
    worker: str  # host and process
    version: str  # of lenetgpu
    size: int  # bytes of the label file
    digest: str  # SHA-256 of the label file
    files: int = 1  # number of shards, one input file each if there are several
    bad: int = 0  # pictures without a label
    said: tuple[str, ...] = ()  # reasons for the first of them

    @property
    def numbers(self) -> range:
        """Numbers of its shards."""
        return range(self.shard, self.shard + self.files)


@dataclass(frozen=True)
class Failed:
    """A shard that was set aside, and why; its `images` have no labels."""

    shard: int
    images: int
    sentence: str
    tries: int


@dataclass
class Manifest:
    """A job and its lines so far; the last line of a shard counts."""

    job: Job
    rows: dict[int, Row] = field(default_factory=dict)  # the line of each finished shard
    failed: dict[int, Failed] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)  # paths of files found, but not readable
    redone: int = 0  # lines of shards that already had one
    _lines: int = 1
    _bytes: int = 0

    @property
    def done(self) -> dict[int, Row]:
        """Each line once, by the number of its first shard."""
        return {row.shard: row for row in self.rows.values()}

    def drop(self, row: Row) -> None:
        """Forget a line."""
        for number in row.numbers:
            del self.rows[number]

    def listed(self, folder: Path, shard: Shard) -> Row | None:
        """Return the line of a shard and those sharing its file, if that has the listed size."""
        path = folder / MANIFEST  # may have new lines from other workers
        with expecting("a readable file", path):
            if path.stat().st_size > self._bytes:
                with open(path, "rb") as file:
                    self.follow(file)
        row = self.rows.get(shard.number)
        if row is None or (row.shard, row.files) != (shard.number, len(shard.each)):
            return None
        return row if sizes(folder, [shard.name]).get(shard.name) == row.size else None

    def follow(self, file: IO[bytes]) -> None:
        """Read the complete new lines of `file`; raise LenetError if one is damaged."""
        file.seek(self._bytes)
        text = file.read()
        for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
            self._lines += 1
            with _undamaged(file.name, self._lines):
                self._add(json.loads(line))
            self._bytes += len(line)

    def _add(self, document: Any) -> None:
        ((kind, fields),) = document.items()
        entry = _KINDS[kind](**fields)
        if isinstance(entry, Row):
            self._add_row(_checked(self.job, entry))
        elif isinstance(entry, Failed):
            self.failed[entry.shard] = entry
        elif isinstance(entry, Unreadable):
            self.unreadable.add(entry.path)
        else:
            self.job = self.job.extended(entry)

    def _add_row(self, row: Row) -> None:
        """Add a line; drop earlier lines of its shards and of those that share their files."""
        replaced = {old.shard: old for number in row.numbers if (old := self.rows.get(number))}
        for old in replaced.values():
            self.drop(old)
        self.redone += bool(replaced)
        for number in row.numbers:
            self.rows[number] = row
            self.failed.pop(number, None)


@contextmanager
def _undamaged(path: str, line: int) -> Iterator[None]:
    """Raise LenetError if a line of a manifest is malformed."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        found = f"line {line} damaged ({type(error).__name__})"
        raise unexpected(path, "lines of a job's manifest", found) from error


def _checked(job: Job, row: Row) -> Row:
    """Return a shard's validated line; raise ValueError if it contradicts the shard or itself."""
    row = replace(row, counts=tuple(map(index, row.counts)), said=tuple(map(str, row.said)))
    shard = job.several(row.shard, index(row.files))
    expected = shard.name, len(shard), shard.input.path, shard.hash, shard.lo
    if (row.file, row.images, row.input, row.hash, row.lo) != expected:
        raise ValueError("line of another job")
    if len(row.counts) != CLASSES or sum(row.counts) + row.bad != row.images:
        raise ValueError("counts do not add up to the images")
    if not 0 <= (row.right or 0) <= row.images or index(row.size) < 0:
        raise ValueError("correct labels or size out of range")
    return row


Entry = Row | Failed | Input | Unreadable
_KINDS: Any = {"done": Row, "failed": Failed, "input": Input, "unreadable": Unreadable}


def _line(entry: Entry) -> bytes:
    kind = next(kind for kind, entry_type in _KINDS.items() if isinstance(entry, entry_type))
    return (json_text({kind: vars(entry)}) + "\n").encode()


def begin(folder: Path, job: Job, listed: bytes = b"") -> None:
    """Write the list of pictures, if any, and the manifest of a new job."""
    store_list(folder, listed)
    write_atomically(folder / MANIFEST, (json_text(job.header()) + "\n").encode())


def require_begun(folder: Path, job: Job) -> None:
    """Raise LenetError unless the manifest of `folder` is that of `job` and of no later job."""
    path = folder / MANIFEST
    with expecting("a readable file", path), open(path, "rb", buffering=0) as file:
        if f'"id": {json_text(job.id)}'.encode() not in file.read(_HEAD):
            raise unexpected(path, "the job started there", "a newer job")


def append(folder: Path, job: Job, *entries: Entry) -> None:
    """Add lines under a lock; raise LenetError if `job` is no longer the job of `folder`."""
    path = folder / MANIFEST
    with expecting("a place to write to", path), open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        require_begun(folder, job)
        _seek_past_last_line(file)
        file.write(b"".join(map(_line, entries)))
        file.flush()
        os.fsync(file.fileno())


def _seek_past_last_line(file: IO[bytes]) -> None:
    """Remove an incomplete last line, left by a killed process, and seek to the end."""
    lo = max(0, file.seek(0, os.SEEK_END) - _LONGEST)
    file.seek(lo)
    end = lo + file.read().rfind(b"\n") + 1
    file.truncate(end)
    file.seek(end)


def read(folder: Path) -> Manifest | None:
    """Return the manifest of `folder` or None; LenetError if damaged or of another version."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    with expecting("a readable file", path), open(path, "rb") as file:
        first = file.readline()
        if not first.endswith(b"\n"):
            raise unexpected(path, "a line that says what the job is", "none")
        with _undamaged(file.name, 1):
            manifest = Manifest(of_header(path, json.loads(first)), _bytes=len(first))
        manifest.follow(file)
    return manifest


def new_inputs(folder: Path, begun: Manifest, requested: Job) -> list[Input]:
    """Return inputs that changed or became readable since the job was begun in `folder`.

    Raises LenetError if other files are requested than the job was begun with, or if a file with
    finished shards changed.
    """
    before, now = ({entry.path: entry for entry in job.valid} for job in (begun.job, requested))
    done = {begun.job.shard(number).input.path for number in begun.rows}
    expected = "the inputs of the job started there"
    for path in [*before, *now]:
        if path not in now:
            raise unexpected(folder, expected, f"that {path} is not among them now")
        if path not in before and path not in begun.unreadable:
            raise unexpected(folder, expected, f"another one, {path}")
        if path in before and before[path] != now[path] and path in done:
            expected = f"the file with which the job in {folder} started"
            raise unexpected(path, expected, f"{changed(Path(path))} changed since")
    return [entry for path, entry in now.items() if before.get(path) != entry]


def complete(folder: Path) -> list[Row]:
    """Return the lines of the shards whose label files exist and have the listed size."""
    manifest = read(folder)
    if manifest is None:
        return []
    missing = set(left(folder, manifest))
    return [row for row in manifest.done.values() if row.shard not in missing]


def left(folder: Path, manifest: Manifest) -> list[int]:
    """Return the numbers of the shards without a line or without a whole label file."""
    stored = sizes(folder)
    rows = ((shard.number, manifest.rows.get(shard.number)) for shard in manifest.job.shards)
    return [number for number, row in rows if row is None or stored.get(row.file) != row.size]


def altered(folder: Path, rows: Iterable[Row]) -> list[tuple[Row, str]]:
    """Read all label files; return the lines of those changed since they were listed, and why."""
    expected, listed = "the labels that were listed", list(rows)

    def reason(row: Row) -> str:
        path = folder / row.file
        try:
            with expecting(expected, path), open_regular(path, expected) as file:
                unchanged = known_by(file) == (row.size, row.digest)
        except LenetError as error:
            return str(error)
        return "" if unchanged else f"{path}: expected {expected}, found them changed since"

    with ThreadPoolExecutor(core_count(), thread_name_prefix="lenetgpu-look") as pool:
        reasons = zip(listed, pool.map(reason, listed), strict=True)
        return [(row, why) for row, why in reasons if why]


def clear(folder: Path, job: Job, rows: Iterable[Row]) -> None:
    """Remove label files of the job that `rows` do not list: their writers were killed."""
    listed, count = {row.file for row in rows}, job.count(job.inputs)
    pattern = re.compile(rf"part-(\d{{6,}}){re.escape(job.form)}")
    for name in sizes(folder):
        match = pattern.fullmatch(name)
        if match and name not in listed and int(match[1]) < count:
            with suppress(OSError):  # overwritten later, or the job reports the error
                (folder / name).unlink()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Create `folder` if missing, and lock it for one job; raise LenetError if another holds it."""
    path = folder / _LOCK
    with expecting("a folder to write into", folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            expected, found = "a file system that locks files", str(error.strerror)
            if isinstance(error, BlockingIOError):
                expected, found = "a folder that no other job is writing to", "one that does"
            raise unexpected(folder, expected, found) from error
        yield
    finally:
        os.close(lock)


@dataclass
class ClassifyOutcome:
    """State of a job when the command ends."""

    job: Job
    folder: Path
    bad: list[Unreadable]
    rows: dict[int, Row]
    failed: dict[int, Failed] = field(default_factory=dict)
    fresh: int = 0  # shards of this run
    fresh_images: int = 0
    seconds: float = 0.0  # time for the shards of this run
    ready_seconds: float = 0.0  # time to prepare the workers
    interrupted: bool = False
    altered: list[str] = field(default_factory=list)  # why label files differ from those listed
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Number of shards neither finished nor set aside."""
        return len(self.job.shards) - self.shards - len(self.failed)

    @property
    def shards(self) -> int:
        """Number of finished shards."""
        return sum(row.files for row in self.rows.values())

    @property
    def images(self) -> int:
        """Number of images in finished shards."""
        return sum(row.images for row in self.rows.values())

    @property
    def without_label(self) -> int:
        """Number of pictures that were read and have no label."""
        return sum(row.bad for row in self.rows.values())

    @property
    def reasons(self) -> list[str]:
        """Reasons why the first pictures without a label have none."""
        rows = (self.rows[number] for number in sorted(self.rows))
        return [reason for row in rows for reason in row.said][:_REASONS]

    @property
    def counts(self) -> list[int]:
        """Number of labels of each digit."""
        return [sum(row.counts[digit] for row in self.rows.values()) for digit in range(CLASSES)]

    @property
    def right(self) -> tuple[int, int]:
        """(correct labels, images that have labels to compare with)."""
        labelled = [row for row in self.rows.values() if row.right is not None]
        return sum(row.right or 0 for row in labelled), sum(row.images for row in labelled)

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON."""
        right, labelled = self.right
        return {
            "schema": 1,
            "command": "classify",
            "device": self.machine,
            "inputs": len(self.job.valid),
            "images": self.job.images,
            "images_done": self.images,
            "shards": len(self.job.shards),
            "shards_done": self.shards,
            "label_files": len(self.rows),
            "altered": self.altered[:_FILES],
            "plan": self.job.plan,
            "precision": self.job.precision,
            "weights": self.job.weights,
            "weights_digest": self.job.digest,
            "counts": self.counts,
            "no_label": self.without_label,
            "no_label_why": self.reasons,
            "labelled": labelled,
            "correct": right if labelled else None,
            "accuracy": right / labelled if labelled else None,
            "unreadable_files": len(self.bad),
            "unreadable": [{"path": bad.path, "why": bad.sentence} for bad in self.bad[:_FILES]],
            "set_aside": [
                {"shard": f.shard, "images": f.images, "tries": f.tries, "why": f.sentence}
                for f in self.failed.values()
            ],
            "this_run": {
                "shards": self.fresh,
                "images": self.fresh_images,
                "seconds": self.seconds,
                "ready_seconds": self.ready_seconds,
                "images_per_second": self.fresh_images / self.seconds if self.seconds else 0.0,
            },
            "interrupted": self.interrupted,
        }
