"""What a person gives as data: files, folders, globs, `-`; which pictures and images they mean."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.folders import below, is_pattern, matching
from lenetgpu.files.kinds import EXPECTED, MOST_BYTES, named_picture
from lenetgpu.files.reading import MemorySource
from lenetgpu.files.source import DATA, form_of, open_source
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.pictures import read_digit

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

STDIN, _NAMED = "-", "stdin"
PICTURE = "picture"


@dataclass
class Meant:
    """The files that arguments mean, in order; a sentence for each argument that means none."""

    paths: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Gathered:
    """Images of many files, by names; what was said of each; a sentence for each that was bad."""

    images: list[Array] = field(default_factory=list)
    labels: list[Array | None] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    notes: list[tuple[str, ...]] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    lacking: str | None = None
    """The first name of a file that has no labels."""
    took_ms: float = 0.0
    """What finding, reading and preparing them took."""

    def add(
        self,
        images: Array,
        labels: Array | None,
        names: list[str],
        notes: tuple[str, ...] = (),
    ) -> None:
        """Images (n, 28, 28, 1) of a file, and what is said of each."""
        if labels is None and self.lacking is None:
            self.lacking = names[0]
        self.images.append(images)
        self.labels.append(labels)
        self.names += names
        self.notes += [notes] * len(names)

    def source(self) -> MemorySource:
        """All of them, floats where some are; labels where every file has some."""
        import numpy as np

        floats = any(part.dtype != np.uint8 for part in self.images)
        parts = [
            part / np.float32(PIXEL_SCALE) if floats and part.dtype == np.uint8 else part
            for part in self.images
        ]
        known = [labels for labels in self.labels if labels is not None]
        truth = np.concatenate(known) if len(known) == len(self.labels) else None
        first, more = self.names[0], len(self.names) - 1
        called = f"{first} and {more:,} more" if more else first
        return MemorySource(np.concatenate(parts), truth, called)


def meant(arguments: Sequence[str]) -> Meant:
    """The files that `arguments` mean: a folder the pictures below it, a pattern what it matches.

    A folder's pictures are its files with a picture's first bytes or ending, hidden ones apart.
    """
    found = Meant()
    for argument in arguments:
        try:
            if argument == STDIN:
                found.paths.append(argument)
            elif is_pattern(argument):
                matches = matching(argument)
                found.paths += matches
                if not matches:
                    found.bad.append(
                        f"{argument}: expected files of this pattern, found no such file"
                    )
            elif os.path.isdir(argument):
                _add_folder(found, argument)
            else:
                found.paths.append(argument)
        except OSError as error:
            found.bad.append(f"{argument}: expected readable files, found: {error.strerror}")
    if found.paths.count(STDIN) > 1:
        raise LenetError(f"{STDIN}: expected stdin once, found {found.paths.count(STDIN)} times")
    return found


def _add_folder(found: Meant, path: str) -> None:
    files = [file for file in below(path) if os.path.isfile(file)]
    pictures = [file for file in files if _is_picture(file)]
    found.paths += pictures
    left = len(files) - len(pictures)
    if not pictures:
        others = f"{left:,} other file{'s' * (left != 1)}" if left else "no file"
        found.bad.append(f"{path}: expected a folder with pictures, found {others}")
    elif left:
        found.notes.append(f"{path}: {left:,} file{'s' * (left > 1)} in it left out, no picture")


def _is_picture(file: str) -> bool:
    try:
        return kind_of_file(file) == PICTURE
    except LenetError:  # it cannot be opened, and is not called a picture
        return False


def kind_of_file(file: str) -> str:
    """PICTURE by its ending or else its first bytes, one of DATA by these, or "".

    LenetError where it cannot be read, and is not called a picture.
    """
    if named_picture(file):
        return PICTURE
    form = form_of(Path(file), EXPECTED)
    return form if form in DATA or not form else PICTURE


def single_data(paths: Sequence[str]) -> bool:
    """Whether `paths` is one file that is read by parts, as no picture is."""
    return len(paths) == 1 and paths[0] != STDIN and form_of(Path(paths[0]), EXPECTED) in DATA


def gather(
    paths: Sequence[str],
    as_is: bool,
    skip: int = 0,
    limit: int | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Gathered:
    """The images of all `paths`, `limit` of them (None: all) after the first `skip`.

    Pictures are prepared as MNIST was, unless `as_is`; files of many images are taken whole, and
    not prepared. What is bad of a file is a sentence; it counts as an image that is skipped.
    `told` is called with how many of how many files are read.
    """
    found, prepared = Gathered(), False
    ahead, left = skip, sys.maxsize if limit is None else limit
    for number, path in enumerate(paths):
        if not left:
            break
        if told is not None:
            told(number, len(paths))
        try:
            with _named(path) as (file, name):
                if form_of(file, EXPECTED) in DATA:
                    passed, taken = _data(found, file, name, ahead, left)
                else:
                    prepared = True
                    passed = min(1, ahead)
                    taken = 1 - passed
                    if taken:
                        made = read_digit(file, as_is)
                        found.add(made.pixels[None, ..., None], None, [name], made.notes)
        except LenetError as error:
            passed, taken = min(1, ahead), 0
            if not passed:
                found.bad.append(str(error))
        ahead, left = ahead - passed, left - taken
    if as_is and found.names and not prepared:
        raise LenetError(f"--as-is: expected pictures, found images in {paths[0]} and others")
    return found


def _data(found: Gathered, file: Path, name: str, skip: int, most: int) -> tuple[int, int]:
    """Add the images of a file of many; how many were skipped, how many taken."""
    with open_source(file) as source:
        count = len(source)
    passed = min(skip, count)
    taken = min(count - passed, most)
    if taken:
        with open_source(file, passed, taken) as source:
            whole = source.whole()
        names = [f"{name}[{number}]" for number in range(passed, passed + taken)]
        found.add(whole.images, whole.labels, names)
    return passed, taken


@contextmanager
def _named(path: str) -> Iterator[tuple[Path, str]]:
    """A file that holds what `path` has, itself or what came on stdin, and what it is called."""
    if path != STDIN:
        yield Path(path), path
        return
    with tempfile.TemporaryDirectory(prefix="lenetgpu-") as folder:
        file = Path(folder) / _NAMED
        _spool(file)
        try:
            yield file, _NAMED
        except LenetError as error:
            raise LenetError(str(error).replace(str(file), _NAMED)) from error


def _spool(file: Path) -> None:
    """Copy stdin into `file`; LenetError where it is a terminal, or longer than MOST_BYTES."""
    stdin = sys.stdin
    if stdin is None or stdin.isatty():
        raise LenetError("stdin: expected a file or a pipe, found a terminal")
    try:
        data = stdin.buffer.read(MOST_BYTES + 1)
    except OSError as error:
        raise LenetError(f"stdin: expected what can be read, found: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise LenetError(
            f"stdin: expected at most {MOST_BYTES:,} bytes, found more; give it as a file"
        )
    try:
        file.write_bytes(data)
    except OSError as error:
        folder = file.parent.parent
        raise LenetError(
            f"{folder}: expected room for a copy of stdin, found: {error.strerror}; TMPDIR names "
            "another folder"
        ) from error
