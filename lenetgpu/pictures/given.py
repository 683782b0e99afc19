"""Command-line data arguments: files, folders, patterns and `-`, and the images they stand for."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.folders import below, is_pattern, matching
from lenetgpu.files.kinds import EXPECTED, MOST_BYTES, named_picture
from lenetgpu.files.orientation import AS_STORED, Orientation
from lenetgpu.files.reading import MemorySource
from lenetgpu.files.source import DATA, form_of, open_source
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.pictures import read_digit

STDIN, _STDIN_NAME = "-", "stdin"
PICTURE = "picture"


@dataclass
class Expanded:
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
    unlabelled: str | None = None  # name of the first file without labels
    took_ms: float = 0.0  # time to find, read and prepare the images

    def add(
        self, images: Array, labels: Array | None, names: list[str], notes: tuple[str, ...] = ()
    ) -> None:
        """Add images (n, 28, 28, 1) of a file, with the notes for each."""
        if labels is None and self.unlabelled is None:
            self.unlabelled = names[0]
        self.images.append(images)
        self.labels.append(labels)
        self.names += names
        self.notes += [notes] * len(names)

    def source(self, first: int) -> MemorySource:
        """Return all images as one source whose first one has the number `first`.

        They are floats if some are, and have labels if every file has them.
        """
        parts, white = self.images, np.float32(PIXEL_SCALE)
        if any(part.dtype != np.uint8 for part in parts):
            parts = [part / white if part.dtype == np.uint8 else part for part in parts]
        known = [labels for labels in self.labels if labels is not None]
        labels = np.concatenate(known) if self.unlabelled is None else None
        more = len(self.names) - 1
        name = f"{self.names[0]} and {more:,} more" if more else self.names[0]
        return MemorySource(np.concatenate(parts), labels, name, first, self.names)


def expand(arguments: Sequence[str]) -> Expanded:
    """Expand `arguments`: folders to the pictures below them, patterns to their matches.

    Pictures in a folder are recognised by first bytes or suffix; hidden files are ignored.
    """
    expanded = Expanded()
    for argument in arguments:
        try:
            if argument != STDIN and is_pattern(argument):
                matches = matching(argument)
                expanded.paths += matches
                if not matches:
                    sentence = f"{argument}: expected files of this pattern, found no such file"
                    expanded.bad.append(sentence)
            elif os.path.isdir(argument):
                _add_folder(expanded, argument)
            else:
                expanded.paths.append(argument)
        except OSError as error:
            expanded.bad.append(f"{argument}: expected readable files, found: {error.strerror}")
    if expanded.paths.count(STDIN) > 1:
        raise unexpected(STDIN, "stdin once", f"{expanded.paths.count(STDIN)} times")
    return expanded


def _add_folder(expanded: Expanded, path: str) -> None:
    files = [file for file in below(path) if os.path.isfile(file)]
    pictures = []
    for file in files:
        with suppress(LenetError):  # it cannot be opened, and is not called a picture
            if kind_of_file(file) == PICTURE:
                pictures.append(file)
    expanded.paths += pictures
    others = len(files) - len(pictures)
    if not pictures:
        found = f"none among {others:,} file{'s' * (others != 1)}" if others else "an empty one"
        expanded.bad.append(f"{path}: expected a folder with pictures, found {found}")
    elif others:
        expanded.notes.append(f"{path}: {others:,} file{'s' * (others > 1)} skipped: not pictures")


def kind_of_file(file: str) -> str:
    """Return PICTURE, a kind of DATA, or ""; LenetError if neither the name nor the file tells."""
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
    orientation: Orientation = AS_STORED,
) -> Gathered:
    """Read the images of all `paths`: `limit` of them (None: all) after the first `skip`.

    Pictures are prepared like MNIST unless `as_is`; data files have the `orientation`. A bad file
    gives a sentence and counts as one image for `skip`. `advance(read, total)` is called
    before each file.
    """
    gathered, any_picture = Gathered(), False
    left = sys.maxsize if limit is None else limit
    for number, path in enumerate(paths):
        if not left:
            break
        if advance is not None:
            advance(number, len(paths))
        skipped, added = min(1, skip), 0
        try:
            with _file_and_name(path) as (file, name):
                if form_of(file, EXPECTED) in DATA:
                    skipped, added = _add_data(gathered, file, name, skip, left, orientation)
                else:
                    any_picture = True
                    if not skip:
                        digit, added = read_digit(file, as_is), 1
                        pixels = orientation.of_pictures(as_is).apply(digit.pixels)
                        gathered.add(pixels[None, ..., None], None, [name], digit.notes)
        except LenetError as error:
            if not skip:
                gathered.bad.append(str(error))
        skip, left = skip - skipped, left - added
    if as_is and gathered.names and not any_picture:
        raise unexpected("--as-is", "pictures", f"images in {paths[0]} and others")
    return gathered


def _add_data(
    gathered: Gathered, file: Path, name: str, skip: int, most: int, orientation: Orientation
) -> tuple[int, int]:
    """Add the images of a data file; return the numbers of skipped and added images."""
    with open_source(file) as source:
        count = len(source)
    skipped = min(skip, count)
    added = min(count - skipped, most)
    if added:
        with open_source(file, skipped, added) as source:
            dataset = source.whole()
        names = [f"{name}[{number}]" for number in range(skipped, skipped + added)]
        gathered.add(orientation.apply(dataset.images), dataset.labels, names)
    return skipped, added


@contextmanager
def _file_and_name(path: str) -> Iterator[tuple[Path, str]]:
    """Yield a file with the content of `path` or stdin, and its name for messages."""
    if path != STDIN:
        yield Path(path), path
        return
    with tempfile.TemporaryDirectory(prefix="lenetgpu-") as folder:
        file = Path(folder) / _STDIN_NAME
        _copy_stdin(file)
        try:
            yield file, _STDIN_NAME
        except LenetError as error:
            raise LenetError(str(error).replace(str(file), _STDIN_NAME)) from error


def _copy_stdin(file: Path) -> None:
    """Copy stdin to `file`; raise LenetError for a terminal or more than MOST_BYTES."""
    if sys.stdin is None or sys.stdin.isatty():
        raise unexpected("stdin", "a file or a pipe", "a terminal")
    try:
        data = sys.stdin.buffer.read(MOST_BYTES + 1)
    except OSError as error:
        raise LenetError(f"stdin: cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise unexpected("stdin", f"at most {MOST_BYTES:,} bytes", "more; give it as a file")
    try:
        file.write_bytes(data)
    except OSError as error:
        raise LenetError(
            f"stdin: cannot be copied to {file.parent.parent}: {error.strerror}; "
            "set TMPDIR to another folder"
        ) from error
