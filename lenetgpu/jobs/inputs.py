"""Inputs of a job: files of many images or pictures, given by name, folder or pattern."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.folders import below, is_pattern, matching
from lenetgpu.files.idx import GzipSource, label_file
from lenetgpu.files.kinds import EXPECTED, START, foreign
from lenetgpu.files.regular import open_regular, start_of
from lenetgpu.files.source import is_idx, open_source
from lenetgpu.jobs import expecting
from lenetgpu.jobs.pictures import LIST, digest, record
from lenetgpu.pictures.given import PICTURE, kind_of_file

# Bytes of a file's start, and of its end, that enter its fingerprint with its size and time.
_FINGERPRINT_BYTES = 32 << 10
_PROGRESS_EVERY = 500


@dataclass(frozen=True)
class Input:
    """A file of images, or the list of pictures."""

    path: str  # absolute; of a list: its name in the job's folder
    images: int
    dtype: str  # "uint8" or "float32"
    labelled: bool
    fingerprint: str  # of a list: its hash
    whole: bool = False  # the file can only be read from its start, so it is one shard
    pictures: bool = False  # it is the list of pictures


@dataclass(frozen=True)
class Unreadable:
    """A file found in a folder or by a pattern that does not hold readable images."""

    path: str
    sentence: str


@dataclass(frozen=True)
class Gathered:
    """Inputs of a job: files of images, or the list of its pictures as the only one."""

    inputs: list[Input]
    bad: list[Unreadable]  # files found that cannot be read
    listed: bytes = b""  # the list of pictures, if any


def _files(sources: Iterable[Path]) -> Iterator[tuple[str, bool]]:
    """Yield the absolute path of each file of `sources`, and True if it was named, False if found.

    A folder stands for the files below it, a pattern for its matches. LenetError if there are none.
    """
    for source in map(str, sources):
        is_folder, empty = os.path.isdir(source), True
        if not is_folder and not is_pattern(source):
            yield os.path.abspath(source), True
            continue
        with expecting("a folder to read", source):
            for file in below(source) if is_folder else matching(source):
                empty = False
                yield os.path.abspath(file), False
        if empty:
            expected = "files in this folder" if is_folder else "files that this pattern matches"
            raise unexpected(source, expected, "none")


def fingerprint(path: Path) -> str:
    """Return a hash of the ends of `path` and of its IDX label file; LenetError if not a file."""
    sha, start = _hash_ends(path, "a file of images")
    labels = label_file(path) if is_idx(start) else None
    if labels is not None:
        sha.update(os.fsencode(labels.name))
        sha.update(_hash_ends(labels, "an IDX file of labels")[0].digest())
    return sha.hexdigest()[:32]


def _hash_ends(path: Path, expected: str) -> tuple[hashlib._Hash, bytes]:
    """Return a hash of a file's size, modification time, first and last bytes; its first bytes."""
    with expecting("a readable file", path), open_regular(path, expected) as file:
        facts = os.fstat(file.fileno())
        sha = hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns} ".encode())
        start = file.read(_FINGERPRINT_BYTES)
        sha.update(start)
        file.seek(max(0, facts.st_size - _FINGERPRINT_BYTES))
        sha.update(file.read(_FINGERPRINT_BYTES))
    return sha, start


def changed(path: Path) -> str:
    """Name the files that may have changed: the images, and their label file if there is one."""
    labels = label_file(path)
    return "it" if labels is None else f"it or {labels.name}, its labels,"


def gather(
    sources: Iterable[Path], progress: Callable[[int, int], None] = lambda done, total: None
) -> Gathered:
    """Return all files of `sources`, in order, and those found that cannot be read.

    A picture whose name shows its format is not opened. `progress(done, total)` gets a total of
    0 while files are searched for. Raises LenetError if a named file cannot be read, a file comes
    twice, pictures and arrays or two dtypes are mixed, or there is nothing to read.
    """
    listed, seen = bytearray(), set[tuple[int, int]]()
    pictures, first = 0, ""
    arrays, bad = list[tuple[str, bool]](), list[Unreadable]()
    for count, (path, named) in enumerate(_files(sources), 1):
        try:
            facts, kind = _facts_and_kind(path)
        except LenetError as error:
            if named:
                raise
            bad.append(Unreadable(path, str(error)))
            continue
        if (facts.st_dev, facts.st_ino) in seen:
            raise unexpected(path, "each file once", "it again")
        seen.add((facts.st_dev, facts.st_ino))
        if kind == PICTURE:
            listed += record(path, facts)
            pictures, first = pictures + 1, first or path
        else:
            arrays.append((path, named))
        if pictures and arrays:
            expected, found = f"pictures only, as {first}", f"images in {kind} form"
            if kind == PICTURE:
                expected, found = f"files of many images only, as {arrays[0][0]}", "a picture"
            raise unexpected(path, f"{expected} in the same job", found)
        if count % _PROGRESS_EVERY == 0:
            progress(count, 0)
    if pictures:
        entry = Input(LIST, pictures, "uint8", False, digest(listed), pictures=True)
        return Gathered([entry], bad, bytes(listed))
    return Gathered(_arrays(arrays, bad, progress), bad)


def _facts_and_kind(path: str) -> tuple[os.stat_result, str]:
    """Return a file's facts, and PICTURE or its format; raise LenetError for any other file."""
    with expecting("a readable file", path):
        facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise unexpected(path, "a file to read", "a device or a pipe")
    kind = kind_of_file(path)
    if not kind:
        start = start_of(Path(path), EXPECTED, START)
        raise unexpected(path, EXPECTED, foreign(start, facts.st_size))
    return facts, kind


def _arrays(
    files: list[tuple[str, bool]], bad: list[Unreadable], progress: Callable[[int, int], None]
) -> list[Input]:
    """Read the metadata of files of images, but not of found label files; add to `bad`."""
    inputs = list[Input]()
    label_files = {label_file(Path(file)) for file, named in files if not named}
    for count, (path, named) in enumerate(files, 1):
        if Path(path) in label_files and not named:
            continue
        try:
            before = fingerprint(Path(path))
            with open_source(Path(path)) as source:
                labelled, whole = source.labels is not None, isinstance(source, GzipSource)
                inputs.append(Input(path, len(source), source.dtype, labelled, before, whole))
        except LenetError as error:
            if named:
                raise
            bad.append(Unreadable(path, str(error)))
        progress(count, len(files))
    if not inputs:
        raise LenetError(
            bad[0].sentence if bad else "sources: expected files of images, found none"
        )
    first = inputs[0]
    for entry in inputs:
        if entry.dtype != first.dtype:
            expected = f"images of {first.dtype}, as in {first.path}"
            raise unexpected(entry.path, expected, entry.dtype)
    return inputs
