"""Who does shards: a net made ready once, then for each a file and a line of the manifest."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from lenetgpu import __version__
from lenetgpu.errors import LenetError
from lenetgpu.files.output import LabelWriter, open_labels
from lenetgpu.files.source import open_source
from lenetgpu.gpu.faults import loses_context, telling
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import clock
from lenetgpu.network import CLASSES
from lenetgpu.running.engine import Engine
from lenetgpu.shards.inputs import fingerprint
from lenetgpu.shards.job import Job, Shard
from lenetgpu.shards.manifest import Follower, Row, append


class StopError(LenetError):
    """Nobody could do a shard here: the disk takes no more, or the GPU is lost."""


class Worker:
    """Does shards of a job on one device, one at a time.

    `request` says on which device and with what; its plan and precision are the job's. LenetError
    where the device, the plan or the weights are not to be had, or the weights are others.
    """

    def __init__(self, folder: Path, job: Job, request: Request) -> None:
        self.folder, self.job = folder, job
        asked = replace(request, plan=job.plan, precision=job.precision, weights=Path(job.weights))
        self.engine = Engine(asked)
        if self.engine.weights.digest != job.digest:
            raise LenetError(
                f"{job.weights}: expected the weights that the job was begun with, "
                "found others of that name"
            )
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._runner: Any = None
        self._lines = Follower(folder)

    def ready(self, dtype: str) -> Any:
        """A runner for shards of the job, made with the first one."""
        if self._runner is None:
            size = min(self.job.size, self.job.images)
            self.engine.start(dtype, size)
            self._runner = self.engine.runner(dtype, size, self.job.scores)
        return self._runner

    def run(self, shard: Shard) -> Row:
        """The shard's file and its line in the manifest; the line.

        LenetError where its input is damaged, is not the one that the job was begun with, or is not
        to be computed; StopError where the next shard would fare no better.
        """
        found = self._lines.row(shard)
        if found is not None:  # who did it died before saying so
            return found
        try:
            with telling():
                return self._run(shard)
        except Exception as error:
            if loses_context(error):
                raise StopError(str(error)) from error
            raise

    def _run(self, shard: Shard) -> Row:
        import numpy as np

        begun, path = clock(), Path(shard.input.path)
        known = fingerprint(path)
        if known != shard.input.fingerprint:
            raise LenetError(
                f"{path}: expected the file that the job was begun with, found it changed since"
            )
        counts, right, at = np.zeros(CLASSES, np.int64), 0, 0
        with ExitStack() as stack:
            source = stack.enter_context(open_source(path, shard.lo, len(shard)))
            runner, truth = self.ready(source.dtype), source.labels
            runner.first = shard.lo
            target = self.folder / shard.name
            written = _Written(stack, target, shard, self.job.scores)

            def deliver(labels: Any, scores: Any) -> None:
                nonlocal counts, right, at
                counts += np.bincount(labels, minlength=CLASSES)
                if truth is not None:
                    right += int((labels == truth[at : at + len(labels)]).sum())
                at += len(labels)
                written.add(labels, scores)

            runner.run_source(source, deliver)
            written.close()
        row = Row(
            shard.number,
            shard.name,
            len(shard),
            shard.input.path,
            known,
            shard.lo,
            tuple(counts.tolist()),
            right if truth is not None else None,
            clock() - begun,
            self.name,
            __version__,
        )
        try:
            append(self.folder, row)
        except LenetError as error:
            raise StopError(str(error)) from error
        return row


class _Written:
    """A shard's file; that it cannot be written stops the job."""

    def __init__(self, stack: ExitStack, path: Path, shard: Shard, with_scores: bool) -> None:
        named = path.suffix in (".csv", ".parquet")
        names = [shard.input.path] * len(shard) if named else None
        try:
            opened = open_labels(path, len(shard), with_scores, shard.lo, names)
        except LenetError as error:
            raise StopError(str(error)) from error
        self._writer: LabelWriter = stack.enter_context(opened)

    def add(self, labels: Any, scores: Any) -> None:
        """The next labels (n,), and scores (n, 10) or None."""
        try:
            self._writer.write(labels, scores)
        except LenetError as error:
            raise StopError(str(error)) from error

    def close(self) -> None:
        """The file gets its name."""
        try:
            self._writer.close()
        except LenetError as error:
            raise StopError(str(error)) from error
