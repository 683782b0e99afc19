"""What a job reads: files, those of folders and of patterns: of many images each, or pictures."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.folders import below, is_pattern, matching
from lenetgpu.files.idx import GzipSource, label_file
from lenetgpu.files.kinds import EXPECTED
from lenetgpu.files.regular import open_regular
from lenetgpu.files.source import is_idx, open_source
from lenetgpu.jobs.pictures import LIST, Listed, digest
from lenetgpu.pictures.given import PICTURE, kind_of_file

_ENDS = 32 << 10
"""Bytes at a file's start and end that its fingerprint is made of, beside its size and time."""
_TELL = 500
Looked = Callable[[int, int], None]


@dataclass(frozen=True)
class Input:
    """A file of images: its absolute `path`, how many images it has, and what it is known by again.

    `dtype` "uint8" or "float32". `fingerprint`: a hash of its size, time of change, first and last
    32 KiB, and of those of the labels beside IDX images. `whole`: it can only be read from its
    start on, so that it is one shard. `pictures`: it is the list of so many of them, `path` its
    name in the job's folder, `fingerprint` its hash.
    """

    path: str
    images: int
    dtype: str
    labelled: bool
    fingerprint: str
    whole: bool = False
    pictures: bool = False


@dataclass(frozen=True)
class Unreadable:
    """A file that was found in a folder or by a glob and is no images that can be read."""

    path: str
    sentence: str


@dataclass(frozen=True)
class Gathered:
    """What a job reads: its inputs, what was found and cannot be read, the list of its pictures.

    A job of pictures has one input, the list; one of arrays has an empty list.
    """

    inputs: list[Input]
    bad: list[Unreadable]
    listed: bytes = b""


def named(sources: Iterable[Path]) -> Iterator[tuple[str, bool]]:
    """Absolute paths of the files of `sources`, and whether each was named rather than found.

    A folder stands for the files below it, a pattern that is no file's name for those that it
    matches. LenetError where there are none.
    """
    for source in map(str, sources):
        if os.path.isdir(source):
            yield from _found(source, below(source), "files in this folder")
        elif is_pattern(source):
            yield from _found(source, matching(source), "files that this pattern matches")
        else:
            yield os.path.abspath(source), True


def _found(source: str, files: Iterable[str], wanted: str) -> Iterator[tuple[str, bool]]:
    none = True
    try:
        for file in files:
            none = False
            yield os.path.abspath(file), False
    except OSError as error:
        raise LenetError(f"{source}: expected a folder to read, found: {error.strerror}") from error
    if none:
        raise LenetError(f"{source}: expected {wanted}, found none")


def fingerprint(path: Path) -> str:
    """What `path` is known by again, without reading it whole; LenetError where it is no file.

    Of IDX images also the labels beside them.
    """
    found, start = _ends(path, "a file of images")
    beside = label_file(path) if is_idx(start) else None
    if beside is not None:
        found.update(os.fsencode(beside.name))
        found.update(_ends(beside, "an IDX file of labels")[0].digest())
    return found.hexdigest()[:32]


def _ends(path: Path, what: str) -> tuple[hashlib._Hash, bytes]:
    """A hash of a file's size, time of change, first and last bytes; and the first ones."""
    try:
        with open_regular(path, what) as file:
            facts = os.fstat(file.fileno())
            found = hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns} ".encode())
            start = file.read(_ENDS)
            found.update(start)
            file.seek(max(0, facts.st_size - _ENDS))
            found.update(file.read(_ENDS))
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error
    return found, start


def changed(path: Path) -> str:
    """What of a file of images may have changed, in words."""
    beside = label_file(path)
    return "it" if beside is None else f"it or {beside.name}, its labels,"


def look(path: Path) -> Input:
    """What there is to know of a file before a job; LenetError where it holds no images."""
    known = fingerprint(path)
    with open_source(path) as source:
        return Input(
            str(path),
            len(source),
            source.dtype,
            source.labels is not None,
            known,
            isinstance(source, GzipSource),
        )


def gather(sources: Iterable[Path], looked: Looked | None = None) -> Gathered:
    """All files of `sources`, in order, and those found that cannot be read; `looked(done, of)`.

    Pictures are not opened where their name says what they are. LenetError for a file that is named
    and cannot be read, for one that comes twice, for pictures beside arrays and images of two
    types, and where there is nothing to read.
    """
    pictures, arrays, bad = Listed(), list[tuple[str, bool]](), list[Unreadable]()
    for count, (path, alone) in enumerate(named(sources), 1):
        try:
            facts = _facts(path)
            kind = _kind(path, facts)
        except LenetError as error:
            if alone:
                raise
            bad.append(Unreadable(path, str(error)))
            continue
        if kind == PICTURE:
            pictures.add(path, facts)
        else:
            arrays.append((path, alone))
        if pictures.count and arrays:
            raise _mixed(path, kind, arrays[0][0] if kind == PICTURE else pictures.first)
        if looked is not None and count % _TELL == 0:
            looked(count, 0)
    if pictures.count:
        listed = pictures.whole()
        entry = Input(LIST, pictures.count, "uint8", False, digest(listed), pictures=True)
        return Gathered([entry], bad, listed)
    return _arrays(arrays, bad, looked)


def _facts(path: str) -> os.stat_result:
    try:
        facts = os.stat(path)
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise LenetError(f"{path}: expected a file to read, found a device or a pipe")
    return facts


def _kind(path: str, facts: os.stat_result) -> str:
    """PICTURE, or the form of a file of images; LenetError of any other file."""
    kind = kind_of_file(path)
    if not kind:
        size = facts.st_size
        found = f"{size:,} bytes of another form" if size else "an empty file"
        raise LenetError(f"{path}: expected {EXPECTED}, found {found}")
    return kind


def _mixed(path: str, kind: str, other: str) -> LenetError:
    expected, found = "pictures", f"images in {kind} form"
    if kind == PICTURE:
        expected, found = "files of many images", "a picture"
    return LenetError(
        f"{path}: expected {expected} only, as {other} in the same job, found {found}"
    )


def _arrays(
    files: list[tuple[str, bool]], bad: list[Unreadable], looked: Looked | None
) -> Gathered:
    """Files of many images, each looked at, without the labels beside IDX images."""
    inputs: list[Input] = []
    seen: dict[tuple[int, int], str] = {}
    found = [file for file, alone in files if not alone]
    labels = {str(beside) for file in found if (beside := label_file(Path(file))) is not None}
    for count, (path, alone) in enumerate(files, 1):
        if path in labels and not alone:
            continue
        _require_new(path, seen)
        try:
            inputs.append(look(Path(path)))
        except LenetError as error:
            if alone:
                raise
            bad.append(Unreadable(path, str(error)))
        if looked is not None:
            looked(count, len(files))
    if not inputs:
        said = bad[0].sentence if bad else "sources: expected files of images, found none"
        raise LenetError(said)
    other = next((i for i in inputs if i.dtype != inputs[0].dtype), None)
    if other is not None:
        raise LenetError(
            f"{other.path}: expected images of {inputs[0].dtype}, as in {inputs[0].path}, "
            f"found {other.dtype}"
        )
    return Gathered(inputs, bad)


def _require_new(path: str, seen: dict[tuple[int, int], str]) -> None:
    """LenetError where `path` was there before, under this or another name."""
    facts = _facts(path)
    before = seen.setdefault((facts.st_dev, facts.st_ino), path)
    if before is not path:
        raise LenetError(f"{path}: expected each file once, found it again ({before})")
