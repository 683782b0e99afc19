"""Inputs of a job: files of many images or pictures, given by name, folder or pattern."""

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
from lenetgpu.jobs import expecting
from lenetgpu.jobs.pictures import LIST, digest, record
from lenetgpu.pictures.given import PICTURE, kind_of_file

# Bytes of a file's start, and of its end, that enter its fingerprint with its size and time.
_ENDS = 32 << 10
_TELL = 500
Looked = Callable[[int, int], None]


@dataclass(frozen=True)
class Input:
    """A file of images: absolute `path`, number of images, and fingerprint.

    - `dtype`: "uint8" or "float32".
    - `fingerprint`: hash of the file's size, modification time, first and last 32 KiB, and of the
      same data of the label file of IDX images.
    - `whole`: the file can only be read from its start, so it is one shard.
    - `pictures`: the input is the list of pictures: `images` is their number, `path` the list's
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
    """A file found in a folder or by a pattern that does not hold readable images."""

    path: str
    sentence: str


@dataclass(frozen=True)
class Gathered:
    """Inputs of a job, files found that cannot be read, and the list of its pictures.

    A job of pictures has one input, the list; a job of arrays has an empty list.
    """

    inputs: list[Input]
    bad: list[Unreadable]
    listed: bytes = b""


def named(sources: Iterable[Path]) -> Iterator[tuple[str, bool]]:
    """Yield the absolute path of each file of `sources`, and True if it was named, False if found.

    A folder stands for the files below it; a pattern that is not the name of a file stands for
    its matches. Raises LenetError if there are none.
    """
    for source in map(str, sources):
        folder, none = os.path.isdir(source), True
        if not folder and not is_pattern(source):
            yield os.path.abspath(source), True
            continue
        with expecting("a folder to read", source):
            for file in below(source) if folder else matching(source):
                none = False
                yield os.path.abspath(file), False
        if none:
            wanted = "files in this folder" if folder else "files that this pattern matches"
            raise LenetError(f"{source}: expected {wanted}, found none")


def fingerprint(path: Path) -> str:
    """Return a hash that identifies `path` without reading all of it.

    For IDX images the hash also covers their label file. Raises LenetError if `path` is not a
    file.
    """
    found, start = _ends(path, "a file of images")
    beside = label_file(path) if is_idx(start) else None
    if beside is not None:
        found.update(os.fsencode(beside.name))
        found.update(_ends(beside, "an IDX file of labels")[0].digest())
    return found.hexdigest()[:32]


def _ends(path: Path, what: str) -> tuple[hashlib._Hash, bytes]:
    """Return a hash of a file's size, modification time, first and last bytes; its first bytes."""
    with expecting("a readable file", path), open_regular(path, what) as file:
        facts = os.fstat(file.fileno())
        found = hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns} ".encode())
        start = file.read(_ENDS)
        found.update(start)
        file.seek(max(0, facts.st_size - _ENDS))
        found.update(file.read(_ENDS))
    return found, start


def changed(path: Path) -> str:
    """Name the files that may have changed: the images, and their label file if there is one."""
    beside = label_file(path)
    return "it" if beside is None else f"it or {beside.name}, its labels,"


def look(path: Path) -> Input:
    """Read the metadata of a file before a job; raise LenetError if it holds no images."""
    known = fingerprint(path)
    with open_source(path) as source:
        labelled, whole = source.labels is not None, isinstance(source, GzipSource)
        return Input(str(path), len(source), source.dtype, labelled, known, whole)


def gather(sources: Iterable[Path], looked: Looked | None = None) -> Gathered:
    """Return all files of `sources`, in order, and those found that cannot be read.

    A picture whose name shows its format is not opened. `looked(done, of)` reports progress.
    Raises LenetError if a named file cannot be read, a file comes twice, pictures and arrays or
    two dtypes are mixed, or there is nothing to read.
    """
    listed, seen = bytearray(), set[tuple[int, int]]()
    pictures, first = 0, ""
    arrays, bad = list[tuple[str, bool]](), list[Unreadable]()
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
            _require_new(path, facts, seen)
            listed += record(path, facts)
            pictures, first = pictures + 1, first or path
        else:
            arrays.append((path, alone))
        if pictures and arrays:
            raise _mixed(path, kind, arrays[0][0] if kind == PICTURE else first)
        if looked is not None and count % _TELL == 0:
            looked(count, 0)
    if pictures:
        entry = Input(LIST, pictures, "uint8", False, digest(listed), pictures=True)
        return Gathered([entry], bad, bytes(listed))
    return _arrays(arrays, bad, looked)


def _facts(path: str) -> os.stat_result:
    with expecting("a readable file", path):
        facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise LenetError(f"{path}: expected a file to read, found a device or a pipe")
    return facts


def _require_new(path: str, facts: os.stat_result, seen: set[tuple[int, int]]) -> None:
    """Raise LenetError if the file was seen before, under this or another name."""
    if (facts.st_dev, facts.st_ino) in seen:
        raise LenetError(f"{path}: expected each file once, found it again")
    seen.add((facts.st_dev, facts.st_ino))


def _kind(path: str, facts: os.stat_result) -> str:
    """Return PICTURE, or the format of a file of images; raise LenetError for any other file."""
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
    """Read the metadata of files of many images, skipping the label files of IDX images."""
    inputs, seen = list[Input](), set[tuple[int, int]]()
    found = [Path(file) for file, alone in files if not alone]
    labels = {str(beside) for file in found if (beside := label_file(file)) is not None}
    for count, (path, alone) in enumerate(files, 1):
        if path in labels and not alone:
            continue
        _require_new(path, _facts(path), seen)
        try:
            inputs.append(look(Path(path)))
        except LenetError as error:
            if alone:
                raise
            bad.append(Unreadable(path, str(error)))
        if looked is not None:
            looked(count, len(files))
    if not inputs:
        raise LenetError(
            bad[0].sentence if bad else "sources: expected files of images, found none"
        )
    first = inputs[0]
    for other in inputs:
        if other.dtype != first.dtype:
            raise LenetError(
                f"{other.path}: expected images of {first.dtype}, as in {first.path}, "
                f"found {other.dtype}"
            )
    return Gathered(inputs, bad)
