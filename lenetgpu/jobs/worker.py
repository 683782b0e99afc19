"""Worker of a job: prepares a network once, then writes a label file and a line for every shard."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lenetgpu import __version__
from lenetgpu.errors import LenetError
from lenetgpu.files.forms import NO_LABEL, Numbers
from lenetgpu.files.output import LabelWriter
from lenetgpu.files.source import MemorySource, Source, open_source
from lenetgpu.gpu.faults import loses_context, telling
from lenetgpu.jobs import manifest
from lenetgpu.jobs.inputs import Input, changed, fingerprint
from lenetgpu.jobs.job import Job, Shard
from lenetgpu.jobs.manifest import Manifest, Row, append, require_begun
from lenetgpu.jobs.pictures import AT_ONCE, PictureSource, listing
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock
from lenetgpu.net.engine import Engine
from lenetgpu.network import CLASSES, IMAGE_SHAPE

# Most images, with their labels, that are opened for a shard and those that follow it.
_OPEN = 1 << 23
# Waits for a shard's line, or for the reason why it has none.
Result = Callable[[], Row | LenetError]


class StopError(LenetError):
    """Error that affects every further shard: the disk is full, or the GPU is lost."""


class Worker:
    """Runs shards of a job on one device, one after the other.

    `request` gives the device and its settings; plan and precision are the job's. Raises
    LenetError if the device, the plan or the weights are not available, or if the weights
    changed.
    """

    def __init__(self, folder: Path, job: Job, request: Request) -> None:
        self.folder, self.job = folder, job
        asked = replace(request, plan=job.plan, precision=job.precision, weights=Path(job.weights))
        if job.pictures:
            asked = replace(asked, batch=AT_ONCE)
        self.engine = Engine(asked)
        if self.engine.weights.digest != job.digest:
            raise LenetError(
                f"{job.weights}: expected the weights that the job was begun with, "
                "found others of that name"
            )
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._runner: Any = None
        self._lines: Manifest | None = None
        self._source: Source | None = None
        self._of: Input | None = None

    def ready(self) -> Any:
        """Return the runner for shards of the job, created once."""
        if self._runner is None:
            dtype, size = self.job.valid[0].dtype, min(self.job.size, self.job.images)
            self.engine.start(dtype, size)
            self._runner = self.engine.runner(dtype, size, self.job.scores)
        return self._runner

    def run(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Row | LenetError]]:
        """Yield each shard with its line, or with the error that prevented it, in order.

        A shard's file is renamed and its line added while the next shard is computed. A
        LenetError is yielded if the input is damaged, is not the one the job was begun
        with, or cannot be computed. StopError is raised, because the next shard would fail
        as well.
        """
        before: tuple[Shard, Result] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="lenetgpu-write") as writer:
            for shard, result in self._begun(shards, writer):
                if before is not None:
                    yield before[0], before[1]()
                before = shard, result
            if before is not None:
                yield before[0], before[1]()

    def _begun(
        self, shards: Iterable[Shard], writer: ThreadPoolExecutor
    ) -> Iterator[tuple[Shard, Result]]:
        """Yield each shard with its pending result.

        A failing shard of several files is halved until the bad file is alone.
        """
        for shard in shards:
            try:
                yield shard, self._begin(shard, writer)
            except StopError:
                raise
            except LenetError as error:
                if shard.more:
                    yield from self._begun(shard.halves, writer)
                else:
                    yield shard, partial(_same, error)

    def close(self) -> None:
        """Close the file that was read last, which stays open between runs."""
        if self._source is not None:
            self._source.close()
        self._source = None

    def _begin(self, shard: Shard, writer: ThreadPoolExecutor) -> Result:
        """Compute a shard and queue its writing, unless the manifest already lists it.

        A worker that died may have listed it without reporting it.
        """
        with _stopping():
            if self._lines is None:
                require_begun(self.folder, self.job)
                self._lines = manifest.read(self.folder)
            row = self._lines.listed(self.folder, shard) if self._lines is not None else None
        if row is not None:
            return partial(_same, row)
        try:
            with telling():
                return writer.submit(self._end, self._label(shard)).result
        except Exception as error:
            if loses_context(error):
                raise StopError(str(error)) from error
            raise

    def _part(self, shard: Shard) -> Source:
        """Return the images of a shard; the file read last stays open for the next shard."""
        if shard.input.pictures:
            return opened(self.folder, self.job, shard)
        if shard.more:
            return _together(shard)
        require_known(shard)
        held = range(0) if self._source is None else self._source.chosen
        if self._of != shard.input or not held.start <= shard.lo < shard.hi <= held.stop:
            self.close()
            self._of, path = shard.input, Path(shard.input.path)
            try:
                self._source = open_source(path, shard.lo, max(len(shard), _OPEN))
            except LenetError:  # damage behind the shard; damage in it raises again
                self._source = open_source(path, shard.lo, len(shard))
        assert self._source is not None
        return self._source.part(shard.lo - self._source.chosen.start, len(shard))

    def _label(self, shard: Shard) -> _Labelled:
        """Read and compute a shard, while its labels are written to disk."""
        begun, source = clock(), self._part(shard)
        runner = self.ready()
        runner.first = shard.lo
        found = _Labelled(self.folder, shard, self.job.scores, source, begun)
        try:
            runner.run_source(source, found.add)
            require_known(shard)  # unchanged while it was read
        except BaseException:
            found.writer.abandon()
            raise
        return found

    def _end(self, labelled: _Labelled) -> Row:
        """Rename a shard's file and append its line; raise StopError if the disk is full."""
        try:
            with _stopping():
                row = labelled.row(self.name)
                require_begun(self.folder, self.job)
                labelled.writer.close()
                append(self.folder, row, job=self.job)
        except StopError:
            labelled.writer.abandon()
            raise
        return row


def _same(found: Any) -> Any:
    return found


@contextmanager
def _stopping() -> Iterator[None]:
    """Turn a LenetError of the block, which concerns the job's folder, into a StopError."""
    try:
        yield
    except LenetError as error:
        raise StopError(str(error)) from error


def opened(folder: Path, job: Job, shard: Shard) -> Source:
    """Open the images of a shard of the job in `folder`.

    Raises LenetError if its file, or the list of its pictures, is damaged or has changed;
    changes of a picture are detected when it is read.
    """
    if shard.input.pictures:
        found = listing(folder / shard.input.path, shard.input.fingerprint)
        return PictureSource(found, shard.lo, shard.hi, job.as_is)
    require_known(shard)
    return open_source(Path(shard.input.path), shard.lo, len(shard))


def require_known(shard: Shard) -> None:
    """Raise LenetError if the file of a shard changed since the job was begun.

    Pictures, and files that share a label file, are checked one by one when they are read.
    """
    path = Path(shard.input.path)
    if not (shard.input.pictures or shard.more) and fingerprint(path) != shard.input.fingerprint:
        raise _other(path)


def _other(path: Path) -> LenetError:
    return LenetError(
        f"{path}: expected the file that the job was begun with, found {changed(path)} "
        "changed since"
    )


def _together(shard: Shard) -> Source:
    """Return the images of several small files, in memory; raise LenetError as `opened` does."""
    import numpy as np

    images = np.empty((len(shard), *IMAGE_SHAPE), shard.input.dtype)
    labels = np.empty(len(shard), np.int64) if shard.input.labelled else None
    at = 0
    for one in shard.each:
        path, end = Path(one.input.path), at + len(one)
        with open_source(path) as source:
            found = len(source), source.dtype, source.labels is not None
            if found != (one.input.images, one.input.dtype, one.input.labelled):
                raise _other(path)
            source.read(0, images[at:end])
            if labels is not None:
                labels[at:end] = np.asarray(source.labels)
        require_known(one)  # unchanged before and while it was read
        at = end
    return MemorySource(images, labels, shard.input.path)


class _Labelled:
    """A shard in progress: its label file, and the statistics of its labels."""

    def __init__(
        self, folder: Path, shard: Shard, with_scores: bool, source: Source, begun: float
    ) -> None:
        import numpy as np

        self.shard, self.begun, self.truth = shard, begun, source.labels
        self.pictures = source if isinstance(source, PictureSource) else None
        self.counts, self.right, self.at = np.zeros(CLASSES, np.int64), 0, 0
        first: Numbers = shard.lo
        path, names, lacking = folder / shard.name, None, None
        if self.pictures is not None:
            names, lacking = self.pictures.names, self.pictures.lacking
        elif shard.more or path.suffix in (".csv", ".parquet"):
            names = [one.input.path for one in shard.each for _ in range(len(one))]
        if shard.more:
            first = [number for one in shard.each for number in range(len(one))]
        with _stopping():
            self.writer = LabelWriter(path, len(shard), with_scores, first, names, lacking)

    def add(self, labels: Any, scores: Any) -> None:
        """Write the next labels (n,), and scores (n, 10) or None."""
        import numpy as np

        known = labels
        if self.pictures is not None:
            labels, scores = self.pictures.marked(self.at, labels, scores)
            known = labels[labels != NO_LABEL]
        self.counts += np.bincount(known, minlength=CLASSES)
        if self.truth is not None:
            self.right += int((labels == self.truth[self.at : self.at + len(labels)]).sum())
        self.at += len(labels)
        with _stopping():
            self.writer.write(labels, scores)

    def row(self, worker: str) -> Row:
        """Return the shard's line, once its file is whole."""
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
            right=self.right if self.truth is not None else None,
            seconds=clock() - self.begun,
            worker=worker,
            version=__version__,
            size=size,
            digest=digest,
            files=1 + len(shard.more),
            bad=len(pictures.lacking) if pictures else 0,
            said=pictures.said() if pictures else (),
        )
