"""Who does shards: a net made ready once, then for each a file and a line of the manifest."""

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
from lenetgpu.errors import LenetError
from lenetgpu.files.forms import NO_LABEL, Numbers
from lenetgpu.files.output import LabelWriter
from lenetgpu.files.reading import Source
from lenetgpu.gpu.faults import loses_context, telling
from lenetgpu.jobs.job import Job, Shard
from lenetgpu.jobs.manifest import Follower, Row, append, require_begun
from lenetgpu.jobs.opened import Opened, require_known
from lenetgpu.jobs.pictures import AT_ONCE, PictureSource
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock
from lenetgpu.net.engine import Engine
from lenetgpu.network import CLASSES


class StopError(LenetError):
    """Nobody could do a shard here: the disk takes no more, or the GPU is lost."""


class Worker:
    """Does shards of a job on one device, one after the other.

    `request` says on which device and with what; its plan and precision are the job's. LenetError
    where the device, the plan or the weights are not to be had, or the weights are others.
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
        self._lines = Follower(folder, job)
        self._open = Opened(folder, job)

    def ready(self, dtype: str) -> Any:
        """A runner for shards of the job, made once."""
        if self._runner is None:
            size = min(self.job.size, self.job.images)
            self.engine.start(dtype, size)
            self._runner = self.engine.runner(dtype, size, self.job.scores)
        return self._runner

    def run(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Row | LenetError]]:
        """Each shard with its line, or with why it has none, in their order.

        A shard gets its file's name and its line while the next one is computed. Its LenetError
        says that its input is damaged, is not the one that the job was begun with, or is not to be
        computed. StopError is raised: the next shard would fare no better.
        """
        before: tuple[Shard, Future[Row]] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="lenetgpu-write") as writer:
            for shard, found in self._begun(shards, writer):
                if before is not None:
                    yield before[0], before[1].result()
                    before = None
                if isinstance(found, Future):
                    before = shard, found
                else:
                    yield shard, found
            if before is not None:
                yield before[0], before[1].result()

    def _begun(
        self, shards: Iterable[Shard], writer: ThreadPoolExecutor
    ) -> Iterator[tuple[Shard, Row | Future[Row] | LenetError]]:
        """Each shard with what `_begin` gives, or its LenetError.

        One of several files is halved where it fails, until the bad one is alone.
        """
        for shard in shards:
            try:
                found: Row | Future[Row] | LenetError = self._begin(shard, writer)
            except StopError:
                raise
            except LenetError as error:
                if shard.more:
                    yield from self._begun(shard.halves, writer)
                    continue
                found = error
            yield shard, found

    def close(self) -> None:
        """Let go of the file that was read last, which stays open from one run to the next."""
        self._open.close()

    def _begin(self, shard: Shard, writer: ThreadPoolExecutor) -> Row | Future[Row]:
        """Compute a shard and have it written; its line where who did it died before saying so."""
        with _stopping():
            found = self._lines.row(shard)
        if found is not None:
            return found
        try:
            with telling():
                return writer.submit(self._end, self._label(shard))
        except Exception as error:
            if loses_context(error):
                raise StopError(str(error)) from error
            raise

    def _label(self, shard: Shard) -> _Labelled:
        """Read and compute a shard; its labels are on their way to the disk."""
        begun, source = clock(), self._open.part(shard)
        runner = self.ready(source.dtype)
        runner.first = shard.lo
        found = _Labelled(self.folder, shard, self.job.scores, source, begun)
        try:
            runner.run_source(source, found.add)
            require_known(shard)  # nobody wrote into it meanwhile
        except BaseException:
            found.writer.abandon()
            raise
        return found

    def _end(self, labelled: _Labelled) -> Row:
        """Name a shard's file and append its line; StopError where the disk takes no more."""
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


@contextmanager
def _stopping() -> Iterator[None]:
    """A block whose LenetError is about the job's folder, and stops the job."""
    try:
        yield
    except LenetError as error:
        raise StopError(str(error)) from error


class _Labelled:
    """A shard on its way: its file, and what its labels come to while they are written."""

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
        """The next labels (n,), and scores (n, 10) or None."""
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
        """Its line, once its file is whole."""
        shard, pictures = self.shard, self.pictures
        size, digest = self.writer.seal()
        return Row(
            shard.number,
            shard.name,
            len(shard),
            shard.input.path,
            shard.hash,
            shard.lo,
            tuple(self.counts.tolist()),
            self.right if self.truth is not None else None,
            clock() - self.begun,
            worker,
            __version__,
            size,
            digest,
            1 + len(shard.more),
            len(pictures.lacking) if pictures else 0,
            pictures.said() if pictures else (),
        )
