"""Worker of a job: prepares a network once, then writes a label file and a line for every shard."""

from __future__ import annotations

import os
import socket
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from lenetgpu import __version__
from lenetgpu.arrays import Array
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

# Most images, with labels, that are opened at a time for a shard and the following ones.
_OPEN = 1 << 23
_ON_GPU = 1_000_000  # least images for which a GPU's chunk size is chosen, if the job has them
_HELD = 1 << 18  # least labels per write, except at the end of a shard
_WARM_IMAGES = 400_000  # most images before the first shard, on a GPU
# Limits of a chain of shards: images opened ahead, seconds, open files of images; of labels.
_AHEAD, _CHAIN_S, _CHAIN_FILES = 1 << 17, 2.0, 64
# A shard's manifest line, the error that prevented it, or a future of the line.
Result = Row | LenetError | Future[Row]
Take = Callable[[], Shard | None]  # returns the next shard, or None if none is available
Report = Callable[[Shard, Result], None]
Follow = Callable[[], "_LabelledShard | None"]  # opens the next shard of a chain, if it has one
End = Callable[["_LabelledShard"], None]


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
            raise unexpected(job.weights, expected, "others under the same name")
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.requested = deque[tuple[Shard, SimpleQueue[Any]]]()  # by tasks, with result queues
        self._runner: Any = None
        self._lines: Manifest | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="lenetgpu-write")
        self._writing: Future[Row] | None = None
        self._rate = 0.0  # images/s of the last chain
        self.taken: deque[Shard] = deque()  # shards of a failed chain, to begin next
        self._files: list[Source] = []  # open files; the last one may serve the next shard
        self._source_input: Input | None = None

    def ready(self) -> Any:
        """Return the runner for shards of the job, created once."""
        if self._runner is None:
            dtype, size = self.job.valid[0].dtype, min(self.job.size, self.job.images)
            if self.engine.gpu is not None and not self.job.pictures:  # chunks of several shards
                size = min(max(size, _ON_GPU), self.job.images)
            self.engine.start(dtype, size)
            self._runner = self.engine.runner(dtype, size, self.job.scores)
            if self.engine.gpu is not None:
                self._warm(dtype)
        return self._runner

    def _warm(self, dtype: str) -> None:
        """Allocate the buffers that the job uses, and measure the rate."""
        import numpy as np

        black = np.broadcast_to(np.zeros((1, *IMAGE_SHAPE), dtype), (self.job.images, *IMAGE_SHAPE))
        source = MemorySource(black[:_WARM_IMAGES], None, "black images")
        with suppress(LenetError):  # weights for which their scores overflow
            for _ in range(2):
                begun = clock()
                self._runner.run_source(source, lambda labels, scores: None)
                self._rate = len(source) / (clock() - begun)

    def run(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Row | LenetError]]:
        """Yield each shard with its line, or with the error that prevented it, in order.

        Raises StopError if the next shard would fail as well.
        """
        more, take = True, partial(next, iter(shards), None)
        ended = deque[tuple[Shard, Result]]()
        while more:
            more = self.begin(take, lambda shard, result: ended.append((shard, result)))
            while len(ended) > int(more):  # the last one is written during the next chain
                shard, result = ended.popleft()
                yield shard, waited(result)

    def begin(self, take: Take, report: Report) -> bool:
        """Compute a chain of shards and report each; return False if there is no shard.

        A chain is read and computed without a pause between its shards. A file is renamed and
        listed while the next shard is computed. Raises StopError like `run`.
        """
        taken, opened, begun = list[Shard](), 0, clock()

        def following() -> _LabelledShard | None:
            nonlocal opened
            if opened < len(taken) or len(self._files) > _CHAIN_FILES:
                return None  # the last one is computed alone after the chain
            shard = self.taken.popleft() if self.taken else take()
            if shard is None:
                return None
            taken.append(shard)
            with suppress(LenetError):  # reported when the shard is computed alone
                if self._listed(shard) is None:
                    labelled = self._opened(shard)
                    opened += 1
                    return labelled
            return None

        first = following()
        if not taken:
            return False
        ended = 0
        if first is not None:
            chain = _Chain(first, following, self._rate * _CHAIN_S, partial(self._end, report))
            try:
                self._stream(chain, chain.add)
            except LenetError as error:
                if isinstance(error, StopError):  # others: the shard is computed alone and named
                    raise
            finally:
                ended = chain.abandon()
                self._rate = chain.done / (clock() - begun)
        self._close(self._files[:-1])
        if ended < len(taken):
            self.taken.extendleft(reversed(taken[ended + 1 :]))
            self._alone(taken[ended], report)
        return True

    def _alone(self, shard: Shard, report: Report) -> None:
        """Compute one shard unless it is listed; divide a failing shard of several files."""
        try:
            if (row := self._listed(shard)) is not None:
                return report(shard, row)
            labelled = self._opened(shard)
            try:
                self._stream(labelled.source, labelled.add)
            except BaseException:
                labelled.abandon()
                raise
            self._end(report, labelled)
        except StopError:
            raise
        except LenetError as error:
            if not shard.more:
                return report(shard, error)
            each, half = shard.each, len(shard.each) // 2
            self._alone(merged(each[:half]), report)
            self._alone(merged(each[half:]), report)

    def close(self) -> None:
        """Wait for the last label file; close the files that stay open between runs."""
        if self._writing is not None:
            wait([self._writing])
        self._close(self._files)

    def _close(self, files: list[Source]) -> None:
        for file in files:
            file.close()
        self._files = self._files[len(files) :]

    def _listed(self, shard: Shard) -> Row | None:
        """Return the line of a shard that a worker listed before it died, or None."""
        with _stopping():
            if self._lines is None:
                require_begun(self.folder, self.job)
                self._lines = manifest.read(self.folder) or Manifest(self.job)
            return self._lines.listed(self.folder, shard)

    def _stream(self, source: Source, add: Callable[[Any, Any], None]) -> None:
        """Compute the labels of `source`; StopError if the GPU is lost."""
        try:
            with telling():
                self.ready().run_source(source, add)
        except Exception as error:
            if loses_context(error):
                raise StopError(str(error)) from error
            raise

    def _opened(self, shard: Shard) -> _LabelledShard:
        """Open a shard's images and create its label file."""
        begun, images = clock(), self._images(shard)
        return _LabelledShard(self.folder, shard, self.job.scores, images, begun, self._writer)

    def _images(self, shard: Shard) -> Source:
        """Return the images of a shard; the file read last stays open for the next shard."""
        if shard.input.pictures:
            return opened(self.folder, self.job, shard)
        if shard.more:
            return _merged_images(shard, self.job)
        require_known(shard)
        available = self._files[-1].selection if self._files else range(0)
        if (
            self._source_input != shard.input
            or not available.start <= shard.lo < shard.hi <= available.stop
        ):
            path, most = Path(shard.input.path), max(len(shard), _OPEN)
            self._files.append(self.job.orientation.source(open_source(path, shard.lo, most)))
            self._source_input = shard.input
        return self._files[-1].part(shard.lo - self._files[-1].selection.start, len(shard))

    def _end(self, report: Report, labelled: _LabelledShard) -> None:
        """Queue the end of a shard's file, once the previous shard's is written."""
        try:
            if self._writing is not None:
                wait([self._writing])
                before, self._writing = self._writing, None  # its error is raised once
                waited(before)
        except BaseException:
            labelled.abandon()
            raise
        self._writing = self._writer.submit(self._write, labelled)
        report(labelled.shard, self._writing)

    def _write(self, labelled: _LabelledShard) -> Row:
        """Rename a shard's file and append its line; raise StopError if the disk is full."""
        try:
            require_known(labelled.shard)  # unchanged while it was read
            with _stopping():
                row = labelled.row(self.name)
                require_begun(self.folder, self.job)
                labelled.writer.close()
                append(self.folder, self.job, row)
        except LenetError:
            labelled.writer.abandon()
            raise
        return row


def waited(result: Result) -> Row | LenetError:
    """Wait for a shard's line; return it, or the error that prevented it. Raises StopError."""
    if not isinstance(result, Future):
        return result
    try:
        return result.result()
    except StopError:
        raise
    except LenetError as error:
        return error


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
        orientation = job.orientation.of_pictures(job.as_is)
        listed = folder / entry.path, entry.fingerprint
        return PictureSource(*listed, shard.lo, shard.hi, job.as_is, orientation)
    require_known(shard)
    return job.orientation.source(open_source(Path(entry.path), shard.lo, len(shard)))


def require_known(shard: Shard) -> None:
    """Raise LenetError if the file of a shard changed since the job was begun."""
    path = Path(shard.input.path)  # pictures and merged files are checked one by one when read
    if not (shard.input.pictures or shard.more) and fingerprint(path) != shard.input.fingerprint:
        found = f"{changed(path)} changed since"
        raise unexpected(path, "the file with which the job started", found)


def _merged_images(shard: Shard, job: Job) -> Source:
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
    return job.orientation.source(MemorySource(images, labels, shard.input.path))


class _Chain(Source):
    """Images of consecutive shards as one source, which grows while it is read, up to `most`."""

    def __init__(self, first: _LabelledShard, following: Follow, most: float, end: End) -> None:
        super().__init__(first.source.source, first.source.dtype, None, range(0))
        self._shards, self._stops = {0: first}, [len(first.source)]  # those that are not done
        self._following, self._most, self._end = following, most, end
        self._growing, self.done, self.ended = Lock(), 0, 0

    def __len__(self) -> int:
        return self._stops[-1]

    def _fill(self, first: int, out: Array) -> None:
        if self._growing.acquire(blocking=False):  # else another thread opens the next shards
            try:
                most = min(first + _AHEAD, self._most)
                while len(self) < most and len(self._shards) < _CHAIN_FILES:
                    if (labelled := self._following()) is None:
                        break
                    self._shards[len(self._stops)] = labelled
                    self._stops.append(len(self) + len(labelled.source))
            finally:
                self._growing.release()
        while len(out):
            at = bisect_right(self._stops, first)
            n = min(len(out), self._stops[at] - first)
            source = self._shards[at].source
            source.read(first - self._stops[at] + len(source), out[:n])
            first, out = first + n, out[n:]

    def raw(self, lo: int, count: int) -> tuple[int, int] | None:
        """Return where images lie that are one shard's, unless `read` should open more shards."""
        short = len(self) < min(lo + _AHEAD, self._most) and len(self._shards) < _CHAIN_FILES
        at = bisect_right(self._stops, lo)
        if (short and not self._growing.locked()) or lo + count > self._stops[at]:
            return None
        source = self._shards[at].source
        return source.raw(lo - self._stops[at] + len(source), count)

    def add(self, labels: Any, scores: Any) -> None:
        """Take the next labels (n,), and scores (n, 10) or None; end the shards they complete."""
        while len(labels):
            labelled = self._shards[self.ended]
            n = min(len(labels), len(labelled.source) - labelled.done)
            labelled.add(labels[:n], None if scores is None else scores[:n])
            labels, scores = labels[n:], None if scores is None else scores[n:]
            self.done += n
            if labelled.done == len(labelled.source):
                self._end(self._shards.pop(self.ended))
                self.ended += 1

    def abandon(self) -> int:
        """Remove the unfinished label files; return the number of finished ones."""
        for labelled in self._shards.values():
            labelled.abandon()
        return self.ended


class _LabelledShard:
    """A shard in progress: its label file, and the statistics of its labels.

    The only thread of `pool` writes and counts them; at most _HELD labels or one call wait.
    """

    def __init__(
        self, folder: Path, shard: Shard, scored: bool, source: Source, begun: float, pool: Executor
    ) -> None:
        import numpy as np

        self.shard, self.begun, self.source, self.expected = shard, begun, source, source.labels
        self.pictures = source if isinstance(source, PictureSource) else None
        self.counts, self.right, self.done = np.zeros(CLASSES, np.int64), 0, 0
        self._pool = pool
        self._storing: Future[Any] = pool.submit(int)
        self._held: list[tuple[Any, Any]] = []
        self._first = 0  # of those held
        first: Numbers = shard.lo
        path, names, reasons = folder / shard.name, None, None
        if self.pictures is not None:
            names, reasons = self.pictures.names, self.pictures.reasons
        elif shard.more or path.suffix in (".csv", ".parquet"):
            names = [part.input.path for part in shard.each for _ in range(len(part))]
        if shard.more:
            first = [number for part in shard.each for number in range(len(part))]
        with _stopping():
            self.writer = LabelWriter(path, len(shard), scored, first, names, reasons)

    def add(self, labels: Any, scores: Any) -> None:
        """Take the next labels (n,), and scores (n, 10) or None."""
        self._held.append((labels.copy(), None if scores is None else scores.copy()))
        self.done += len(labels)
        if self.done == len(self.source) or self.done - self._first >= _HELD:
            self._storing.result()
            self._storing = self._pool.submit(self._store, self._first, self._held)
            self._first, self._held = self.done, []

    def _store(self, first: int, parts: list[tuple[Any, Any]]) -> None:
        """Write and count the labels and scores from image `first` on."""
        import numpy as np

        labels = np.concatenate([part for part, _ in parts])
        scores = None if parts[0][1] is None else np.concatenate([part for _, part in parts])
        if self.pictures is not None:
            labels, scores = self.pictures.marked(first, labels, scores)
        known = labels if self.pictures is None else labels[labels != NO_LABEL]
        self.counts += np.bincount(known, minlength=CLASSES)
        if self.expected is not None:
            expected = self.expected[first : first + len(labels)]
            self.right += int(np.count_nonzero(labels == expected))
        with _stopping():
            self.writer.write(labels, scores)

    def abandon(self) -> None:
        """Remove the label file."""
        wait([self._storing])
        self.writer.abandon()

    def row(self, worker: str) -> Row:
        """Complete the shard's file, and return its line."""
        shard, pictures = self.shard, self.pictures
        self._storing.result()
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
