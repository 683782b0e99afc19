"""Command-line data arguments: files, folders, patterns and `-`, and the images they stand for."""

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
    """Files that the arguments stand for, in order; a sentence for each argument without any."""

    paths: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Gathered:
    """Images of many files with names, notes, and a sentence for each bad file."""

    images: list[Array] = field(default_factory=list)
    labels: list[Array | None] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    notes: list[tuple[str, ...]] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    lacking: str | None = None  # name of the first file without labels
    took_ms: float = 0.0  # time to find, read and prepare the images

    def add(
        self,
        images: Array,
        labels: Array | None,
        names: list[str],
        notes: tuple[str, ...] = (),
    ) -> None:
        """Add images (n, 28, 28, 1) of a file, with the notes for each."""
        if labels is None and self.lacking is None:
            self.lacking = names[0]
        self.images.append(images)
        self.labels.append(labels)
        self.names += names
        self.notes += [notes] * len(names)

    def source(self) -> MemorySource:
        """Return all images as one source; floats if some are, labels if every file has them."""
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
    """Expand `arguments`: folders to the pictures below them, patterns to their matches.

    Pictures in a folder are recognised by first bytes or suffix; hidden files are ignored.
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
    """Return PICTURE (by suffix or first bytes), a kind of DATA (by first bytes), or "".

    Raises LenetError if the file cannot be read and is not named like a picture.
    """
    if named_picture(file):
        return PICTURE
    form = form_of(Path(file), EXPECTED)
    return form if form in DATA or not form else PICTURE


def single_data(paths: Sequence[str]) -> bool:
    """Return True if `paths` is a single data file that can be read in parts."""
    return len(paths) == 1 and paths[0] != STDIN and form_of(Path(paths[0]), EXPECTED) in DATA


def gather(
    paths: Sequence[str],
    as_is: bool,
    skip: int = 0,
    limit: int | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Gathered:
    """Read the images of all `paths`: `limit` of them (None: all) after the first `skip`.

    Pictures are prepared like MNIST unless `as_is`; data files are used unchanged. A bad file
    gives a sentence and counts as one image for `skip`. `advance(read, total)` is called after
    each file.
    """
    found, prepared = Gathered(), False
    ahead, left = skip, sys.maxsize if limit is None else limit
    for number, path in enumerate(paths):
        if not left:
            break
        if advance is not None:
            advance(number, len(paths))
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
    """Add the images of a data file; return the numbers of skipped and added images."""
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
    """Yield a file with the content of `path` or stdin, and its name for messages."""
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
    """Copy stdin to `file`; raise LenetError for a terminal or more than MOST_BYTES."""
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
