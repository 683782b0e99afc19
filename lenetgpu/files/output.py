"""Atomic, incremental output of predicted labels to .npy, .csv, .h5, .json or .parquet."""

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files import assets
from lenetgpu.files.folders import below, is_pattern, matching
from lenetgpu.files.forms import FORMS, Failures, Names, Numbers
from lenetgpu.network import CLASSES
from lenetgpu.store import Temporary, is_device, known_by, placing, resolved

_PART = 1 << 15


def check_target(path: Path) -> None:
    """Raise LenetError unless `path` ends in a known format and its folder exists."""
    if path.suffix.lower() not in FORMS:
        raise unexpected(path, f"a name ending in {', '.join(FORMS)}", path.suffix or "no ending")
    require_folder(path)


def require_folder(path: Path) -> None:
    """Raise LenetError unless `path` is a device, or its folder accepts a new file."""
    try:
        if not path.parent.is_dir():
            raise LenetError(f"{path}: folder {path.parent} does not exist; create it")
        if path.is_dir():
            raise LenetError(f"{path}: expected a file to write, found a folder")
        target = resolved(path)
        if not is_device(target):
            tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise LenetError(f"{path}: cannot be written: {error.strerror}") from error


def _inputs(source: Path) -> Iterator[Path]:
    """Yield the files read with `source`: labels of IDX images, files of a folder or pattern."""
    from lenetgpu.files.idx import label_file

    yield from filter(None, (source, label_file(source)))
    with suppress(OSError):  # not a folder
        yield from map(Path, below(str(source)))
    if is_pattern(str(source)):
        yield from map(Path, matching(str(source)))


def require_apart(target: Path, *sources: Path | None) -> None:
    """Raise LenetError if `target` is an input under any name or a file that ships with lenetgpu.

    Label files of IDX images and files of a folder count as inputs. Devices and pipes are allowed.
    """
    if not target.is_file():
        return
    for source in filter(None, sources):
        for read in _inputs(source):
            with suppress(OSError):  # the file does not exist
                if target.samefile(read):
                    expected = "an output file other than the inputs"
                    raise unexpected(target, expected, str(read))
    ours = any(target.samefile(file) for file in assets.shipped())
    if ours or resolved(target).is_relative_to(assets.PACKAGE):
        raise LenetError(f"{target}: expected a file to write, found one that ships with lenetgpu")


def require_targets(*paths: Path | None, sources: Iterable[Path | None] = ()) -> None:
    """Raise LenetError unless every target (None: no output, -: stdout) can be written to.

    Targets must differ from each other, from `sources`, and from stdout's and stderr's files.
    """
    sources, seen = tuple(sources), _streams()
    for path in (path for path in paths if path is not None):
        key: object = "stdout"
        if str(path) != "-":
            require_folder(path)
            require_apart(path, *sources)
            key = resolved(path)
            if key.is_file():
                facts = key.stat()
                key = facts.st_dev, facts.st_ino
        if key in seen:
            where = "stdout" if str(path) == "-" else str(path)
            raise LenetError(f"{where}: expected one result per output file, found two")
        seen.add(key)


def _streams() -> set[object]:
    identities: set[object] = set()
    for handle in (1, 2):
        with suppress(OSError):  # the stream is closed
            facts = os.fstat(handle)
            if stat.S_ISREG(facts.st_mode):
                identities.add((facts.st_dev, facts.st_ino))
    return identities


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a file that replaces `path` at the end, unless the block raises."""
    with placing(path), Temporary.beside(path) as temporary:
        yield temporary.path
        temporary.put(path)


class LabelWriter(AbstractContextManager["LabelWriter"]):
    """Writer of `count` labels to `path`, through a temporary file in its folder until `close`.

    The other arguments are a Form's. A `with` block closes the writer; an exception abandons it.
    """

    def __init__(
        self,
        path: Path,
        count: int,
        with_scores: bool,
        first: Numbers = 0,
        names: Names = None,
        failures: Failures = None,
    ) -> None:
        self.path, self.count, self.with_scores = path, count, with_scores
        self._ended = self._completed = False
        form = FORMS[path.suffix.lower()]
        with placing(path):
            self._temporary = Temporary.beside(path)
            try:
                self._form = form(self._temporary.file, count, with_scores, first, names, failures)
            except BaseException:
                self._temporary.drop()
                raise

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def write(self, labels: Any, scores: Any = None) -> None:
        """Write the next labels (n,), and their scores (n, 10) if `with_scores`, in order.

        Raises LenetError if writing fails, for example on a full disk; the file is then removed.
        """
        if (scores is not None) != self.with_scores or self.done + len(labels) > self.count:
            raise ValueError(f"{self.path}: more labels than announced, or scores not as announced")
        labels = np.ascontiguousarray(labels, np.int32)
        if scores is not None:
            scores = np.ascontiguousarray(scores, np.float32).reshape(len(labels), CLASSES)
        try:
            with placing(self.path):
                for lo in range(0, len(labels), _PART):
                    part = labels[lo : lo + _PART]
                    self._form.add(part, None if scores is None else scores[lo : lo + _PART])
                    self._form.done += len(part)
        except LenetError:
            self.abandon()
            raise

    @property
    def done(self) -> int:
        """The number of labels written so far."""
        return self._form.done

    def close(self, requested: int | None = None) -> None:
        """Flush the complete file to disk and rename it to `path`; later calls do nothing.

        `requested`: images requested of an interrupted run; .json and .h5 record it, others cannot.
        """
        if self._ended:
            return
        if requested is None and self.done != self.count:
            self.abandon()
            raise ValueError(f"{self.path}: {self.count} labels announced, {self.done} written")
        try:
            with placing(self.path):
                if not self._completed:
                    self._form.finish(requested)
                self._temporary.put(self.path)
        finally:
            self.abandon()

    def complete(self) -> tuple[int, str]:
        """Complete the file before `close` renames it; return its size in bytes and SHA-256."""
        with placing(self.path):
            self._form.finish(None)
            self._completed = True
            return known_by(self._temporary.file)

    def abandon(self) -> None:
        """Delete the temporary file and keep any old file at `path`; no effect after `close`."""
        if not self._ended:
            self._ended = True
            self._form.close()
            self._temporary.drop()


def write_labels(path: Path, labels: Any, scores: Any = None, requested: int | None = None) -> None:
    """Write labels (N,) int32 and any scores (N, 10); `requested`: see `LabelWriter.close`."""
    with LabelWriter(path, len(labels), scores is not None) as writer:
        writer.write(labels, scores)
        writer.close(requested)
