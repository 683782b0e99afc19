"""What a job reads: files, the files of folders and of globs, each looked at once."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.idx import GzipSource, label_file
from lenetgpu.files.regular import open_regular
from lenetgpu.files.source import Source, open_source

_ENDS = 32 << 10
"""Bytes at a file's start and end that its fingerprint is made of, beside its size and time."""
Looked = Callable[[int, int], None]


@dataclass(frozen=True)
class Input:
    """A file of images: its absolute `path`, how many images it has, and what it is known by again.

    `dtype` "uint8" or "float32". `fingerprint`: a hash of its size, time of change, first and last
    32 KiB. `whole`: it can only be read from its start on, so that it is one shard.
    """

    path: str
    images: int
    dtype: str
    labelled: bool
    fingerprint: str
    whole: bool = False


@dataclass(frozen=True)
class Unreadable:
    """A file that was found in a folder or by a glob and is no images that can be read."""

    path: str
    sentence: str


def _glob(source: str) -> Iterator[Path]:
    found = [Path(name) for name in glob.glob(source, recursive=True)]
    files = sorted(path for path in found if path.is_file())
    if not files:
        raise LenetError(f"{source}: expected files that this pattern matches, found none")
    yield from files


def _folder(folder: Path) -> Iterator[Path]:
    """Files below `folder` but hidden ones, in the order of their paths; links are not followed."""
    count = 0
    try:
        for place, folders, names in os.walk(folder, onerror=_raise):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith("."):
                    count += 1
                    yield Path(place, name)
    except OSError as error:
        raise LenetError(f"{folder}: expected a folder to read, found: {error.strerror}") from error
    if not count:
        raise LenetError(f"{folder}: expected files in this folder, found none")


def _raise(error: OSError) -> None:
    raise error


def named(sources: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Files of `sources`, and whether each was named itself rather than found.

    A folder stands for the files below it, but hidden ones and the labels beside IDX images; a
    pattern (`*?[`) that is no file's name for those that it matches. LenetError where one has none.
    """
    for source in sources:
        if source.is_dir():
            files = list(_folder(source))
            labels = {beside for file in files if (beside := label_file(file)) is not None}
            yield from ((file, False) for file in files if file not in labels)
        elif not source.exists() and glob.has_magic(str(source)):
            yield from ((file, False) for file in _glob(str(source)))
        else:
            yield source, True


def fingerprint(path: Path) -> str:
    """What `path` is known by again, without reading it whole; LenetError where it is no file."""
    try:
        with open_regular(path, "a file of images") as file:
            facts = os.fstat(file.fileno())
            found = hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns} ".encode())
            found.update(file.read(_ENDS))
            file.seek(max(0, facts.st_size - _ENDS))
            found.update(file.read(_ENDS))
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error
    return found.hexdigest()[:32]


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
            _is_whole(source),
        )


def _is_whole(source: Source) -> bool:
    return isinstance(source, GzipSource)


def gather(
    sources: Iterable[Path], looked: Looked | None = None
) -> tuple[list[Input], list[Unreadable]]:
    """All files of `sources`, in order, and those found that cannot be read; `looked(done, of)`.

    LenetError for a file that is named and cannot be read, for one that comes twice, for images of
    two types, and where there is nothing to read.
    """
    inputs: list[Input] = []
    bad: list[Unreadable] = []
    seen: dict[tuple[int, int], Path] = {}
    files = list(named(sources))
    for count, (file, alone) in enumerate(files, 1):
        path = Path(os.path.abspath(file))
        _require_new(path, seen)
        try:
            inputs.append(look(path))
        except LenetError as error:
            if alone:
                raise
            bad.append(Unreadable(str(path), str(error)))
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
    return inputs, bad


def _require_new(path: Path, seen: dict[tuple[int, int], Path]) -> None:
    """LenetError where `path` was there before, under this or another name."""
    try:
        facts = path.stat()
    except OSError as error:
        raise LenetError(f"{path}: expected a readable file, found: {error.strerror}") from error
    before = seen.setdefault((facts.st_dev, facts.st_ino), path)
    if before is not path:
        raise LenetError(f"{path}: expected each file once, found it again ({before})")
