"""Images in host memory to labels in host memory, copies under kernels (report, section 3.5).

Chunks go round-robin over streams; each stream has its own buffers, so that one chunk's copies
overlap another's kernels. Host arrays are page-locked, which the copy engine needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.pipeline import Observer, Pipeline


def pinned_copy(array: Any) -> Any:
    """`array` in page-locked memory."""
    copy = pinned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class Streamer:
    """Runs host images through `make_pipeline(chunk)` pipelines on `streams` CUDA streams."""

    def __init__(
        self, make_pipeline: Callable[[int], Pipeline], chunk: int, streams: int = 1
    ) -> None:
        import cupy

        if streams < 1:
            raise LenetError(f"streams: expected at least 1, found {streams}")
        self.chunk = chunk
        self.done = 0
        self._lanes = []
        for _ in range(streams):
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                pipeline = make_pipeline(chunk)
                images = cupy.empty((chunk, *IMAGE_SHAPE), pipeline.input_dtype)
            stream.synchronize()
            self._lanes.append((stream, pipeline, images))
        cupy.cuda.runtime.deviceSynchronize()

    def run(
        self,
        images: Any,
        labels: Any,
        scores: Any = None,
        on_chunk: Callable[[int], None] | None = None,
        mark: Callable[[int, str | None], None] | None = None,
    ) -> None:
        """Fill pinned `labels` (n,) int32, and `scores` (n, 10) where given, from pinned `images`.

        Returns when the labels are in host memory. `on_chunk(count)` is called as each chunk is
        queued; `mark(lane, name)` after each operation is, and with None before the first.
        `done` says how many labels, from the first on, are in host memory: after a Ctrl-C those of
        the chunks that were queued.
        """
        self.done = queued = 0
        try:
            for lane, lo in self._turns(len(images)):
                queued = lo + self._queue(lane, lo, (images, labels, scores), mark)
                if on_chunk is not None:
                    on_chunk(queued - lo)
            self._wait()
        except KeyboardInterrupt:
            self._wait()
            self.done = queued
            raise
        self.done = queued

    def _turns(self, count: int) -> Iterator[tuple[int, int]]:
        """(lane, first image) of each chunk of `count` images."""
        for index, lo in enumerate(range(0, count, self.chunk)):
            yield index % len(self._lanes), lo

    def _queue(
        self,
        lane: int,
        lo: int,
        arrays: tuple[Any, Any, Any],
        mark: Callable[[int, str | None], None] | None,
    ) -> int:
        """Queue the chunk that begins at image `lo` on a lane: how many images it has."""
        images, labels, scores = arrays
        stream, pipeline, buffer = self._lanes[lane]
        part = images[lo : lo + self.chunk]
        n = len(part)
        with stream:
            if mark is not None:
                mark(lane, None)
            buffer[:n].set(part)
            if mark is not None:
                mark(lane, "images to device")
                found = pipeline.run(buffer[:n], _marker(mark, lane))
            else:
                found = pipeline.run(buffer[:n])
            found.get(out=labels[lo : lo + n], blocking=False)
            if mark is not None:
                mark(lane, "labels to host")
            if scores is not None:
                stream.synchronize()
                scores[lo : lo + n] = pipeline.scores(n)
        return n

    def _wait(self) -> None:
        for stream, _, _ in self._lanes:
            stream.synchronize()


def _marker(mark: Callable[[int, str | None], None], lane: int) -> Observer:
    return lambda step, output: mark(lane, step.name)


def host_results(n: int, with_scores: bool) -> tuple[Any, Any]:
    """Pinned label and score arrays for `n` images; no scores unless asked."""
    labels = pinned_empty((n,), "int32")
    return labels, pinned_empty((n, CLASSES), "float32") if with_scores else None
