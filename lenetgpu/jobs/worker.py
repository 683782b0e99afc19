"""Worker of a job: prepares a network once, then writes a label file and a line for every shard."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lenetgpu import __version__
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.forms import NO_LABEL, Numbers
from lenetgpu.files.output import LabelWriter
from lenetgpu.files.reading import MemorySource, Source
from lenetgpu.files.source import open_source
from lenetgpu.gpu.faults import loses_context, telling
from lenetgpu.jobs import manifest
from lenetgpu.jobs.inputs import Input, changed, fingerprint
from lenetgpu.jobs.job import Job, Shard, merged
from lenetgpu.jobs.manifest import Manifest, Row, append, require_begun
from lenetgpu.jobs.pictures import AT_ONCE, PictureSource
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock
from lenetgpu.net.engine import Engine
from lenetgpu.network import CLASSES, IMAGE_SHAPE

# Most images, with their labels, that are opened for a shard and those that follow it.
_OPEN = 1 << 23
# A shard's line, the reason why it has none, or the line once its file is written.
Result = Row | LenetError | Future[Row]


class StopError(LenetError):
    """Error that affects every further shard: the disk is full, or the GPU is lost."""


class Worker:
    """Runs shards of a job one after the other, on the device of `request`, with its settings.

    Raises LenetError if the device, plan or weights are not available, or if the weights changed.
    """

    def __init__(self, folder: Path, job: Job, request: Request) -> None:
        self.folder, self.job = folder, job
        weights, batch = Path(job.weights), AT_ONCE if job.pictures else request.batch
        precision = request.precision and job.precision
        self.engine = Engine(
            replace(request, plan=job.plan, precision=precision, weights=weights, batch=batch)
        )
        if self.engine.weights.digest != job.digest:
            expected = "the weights with which the job started"
            raise unexpected(job.weights, expected, "others of that name")
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._runner: Any = None
        self._lines: Manifest | None = None
        self._source: Source | None = None  # file that was read last, open for the next shard
        self._source_input: Input | None = None

    def ready(self) -> Any:
        """Return the runner for shards of the job, created once."""
        if self._runner is None:
            dtype, size = self.job.valid[0].dtype, min(self.job.size, self.job.images)
            self.engine.start(dtype, size)
            self._runner = self.engine.runner(dtype, size, self.job.scores)
        return self._runner

    def run(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Row | LenetError]]:
        """Yield each shard with its line, or with the error that prevented it, in order.

        A file is renamed and listed while the next shard is computed. Raises StopError if the next
        shard would fail as well.
        """
        before: tuple[Shard, Result] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="lenetgpu-write") as writer:
            for begun in self._begun(shards, writer):
                if before is not None:
                    yield before[0], _waited(before[1])
                before = begun
            if before is not None:
                yield before[0], _waited(before[1])

    def _begun(
        self, shards: Iterable[Shard], writer: ThreadPoolExecutor
    ) -> Iterator[tuple[Shard, Result]]:
        """Yield each shard with its pending result; halve a failing one of several files."""
        for shard in shards:
            try:
                yield shard, self._begin(shard, writer)
            except StopError:
                raise
            except LenetError as error:
                if shard.more:
                    each, half = shard.each, len(shard.each) // 2
                    yield from self._begun((merged(each[:half]), merged(each[half:])), writer)
                else:
                    yield shard, error

    def close(self) -> None:
        """Close the file that was read last, which stays open between runs."""
        if self._source is not None:
            self._source.close()
        self._source = None

    def _begin(self, shard: Shard, writer: ThreadPoolExecutor) -> Result:
        """Compute a shard and queue its writing, unless a worker that died has listed it."""
        with _stopping():
            if self._lines is None:
                require_begun(self.folder, self.job)
                self._lines = manifest.read(self.folder) or Manifest(self.job)
            row = self._lines.listed(self.folder, shard)
        if row is not None:
            return row
        try:
            with telling():
                return writer.submit(self._end, self._label(shard))
        except Exception as error:
            if loses_context(error):
                raise StopError(str(error)) from error
            raise

    def _images(self, shard: Shard) -> Source:
        """Return the images of a shard; the file read last stays open for the next shard."""
        if shard.input.pictures:
            return opened(self.folder, self.job, shard)
        if shard.more:
            return _merged_images(shard)
        require_known(shard)
        available = range(0) if self._source is None else self._source.selection
        if (
            self._source_input != shard.input
            or not available.start <= shard.lo < shard.hi <= available.stop
        ):
            self.close()
            self._source_input, path = shard.input, Path(shard.input.path)
            self._source = open_source(path, shard.lo, max(len(shard), _OPEN))
        assert self._source is not None
        return self._source.part(shard.lo - self._source.selection.start, len(shard))

    def _label(self, shard: Shard) -> _LabelledShard:
        """Read and compute a shard, while its labels are written to disk."""
        begun, source = clock(), self._images(shard)
        runner = self.ready()
        runner.first = shard.lo
        labelled = _LabelledShard(self.folder, shard, self.job.scores, source, begun)
        try:
            runner.run_source(source, labelled.add)
            require_known(shard)  # unchanged while it was read
        except BaseException:
            labelled.writer.abandon()
            raise
        return labelled

    def _end(self, labelled: _LabelledShard) -> Row:
        """Rename a shard's file and append its line; raise StopError if the disk is full."""
        try:
            with _stopping():
                row = labelled.row(self.name)
                require_begun(self.folder, self.job)
                labelled.writer.close()
                append(self.folder, self.job, row)
        except StopError:
            labelled.writer.abandon()
            raise
        return row


def _waited(result: Result) -> Row | LenetError:
    return result.result() if isinstance(result, Future) else result


@contextmanager
def _stopping() -> Iterator[None]:
    """Turn a LenetError of the block, which concerns the job's folder, into a StopError."""
    try:
        yield
    except LenetError as error:
        raise StopError(str(error)) from error


def opened(folder: Path, job: Job, shard: Shard) -> Source:
    """Open a shard of one input; raise LenetError if its file or list is damaged or has changed."""
    entry = shard.input
    if entry.pictures:
        return PictureSource(folder / entry.path, entry.fingerprint, shard.lo, shard.hi, job.as_is)
    require_known(shard)
    return open_source(Path(entry.path), shard.lo, len(shard))


def require_known(shard: Shard) -> None:
    """Raise LenetError if the file of a shard changed since the job was begun."""
    path = Path(shard.input.path)  # pictures and merged files are checked one by one when read
    if not (shard.input.pictures or shard.more) and fingerprint(path) != shard.input.fingerprint:
        found = f"{changed(path)} changed since"
        raise unexpected(path, "the file with which the job started", found)


def _merged_images(shard: Shard) -> Source:
    """Return the images of several small files, in memory; raise LenetError as `opened` does."""
    import numpy as np

    images = np.empty((len(shard), *IMAGE_SHAPE), shard.input.dtype)
    labels = np.empty(len(shard), np.int64) if shard.input.labelled else None
    at = 0
    for part in shard.each:
        entry, end = part.input, at + len(part)
        with open_source(Path(entry.path)) as source:
            found = len(source), source.dtype, source.labels is not None
            if found == (entry.images, entry.dtype, entry.labelled):
                source.read(0, images[at:end])
                if labels is not None:
                    labels[at:end] = np.asarray(source.labels)
        require_known(part)  # unchanged before and while it was read
        at = end
    return MemorySource(images, labels, shard.input.path)


class _LabelledShard:
    """A shard in progress: its label file, and the statistics of its labels."""

    def __init__(
        self, folder: Path, shard: Shard, with_scores: bool, source: Source, begun: float
    ) -> None:
        import numpy as np

        self.shard, self.begun, self.expected = shard, begun, source.labels
        self.pictures = source if isinstance(source, PictureSource) else None
        self.counts, self.right, self.done = np.zeros(CLASSES, np.int64), 0, 0
        first: Numbers = shard.lo
        path, names, reasons = folder / shard.name, None, None
        if self.pictures is not None:
            names, reasons = self.pictures.names, self.pictures.reasons
        elif shard.more or path.suffix in (".csv", ".parquet"):
            names = [part.input.path for part in shard.each for _ in range(len(part))]
        if shard.more:
            first = [number for part in shard.each for number in range(len(part))]
        with _stopping():
            self.writer = LabelWriter(path, len(shard), with_scores, first, names, reasons)

    def add(self, labels: Any, scores: Any) -> None:
        """Write the next labels (n,), and scores (n, 10) or None."""
        import numpy as np

        if self.pictures is not None:
            labels, scores = self.pictures.marked(self.done, labels, scores)
        self.counts += np.bincount(labels[labels != NO_LABEL], minlength=CLASSES)
        if self.expected is not None:
            self.right += int((labels == self.expected[self.done : self.done + len(labels)]).sum())
        self.done += len(labels)
        with _stopping():
            self.writer.write(labels, scores)

    def row(self, worker: str) -> Row:
        """Complete the shard's file, and return its line."""
        shard, pictures = self.shard, self.pictures
        size, digest = self.writer.complete()
        return Row(
            shard=shard.number,
            file=shard.name,
            images=len(shard),
            input=shard.input.path,
            hash=shard.hash,
            lo=shard.lo,
            counts=tuple(self.counts.tolist()),
            right=None if self.expected is None else self.right,
            seconds=clock() - self.begun,
            worker=worker,
            version=__version__,
            size=size,
            digest=digest,
            files=1 + len(shard.more),
            bad=len(pictures.reasons) if pictures else 0,
            said=pictures.first_reasons() if pictures else (),
        )
