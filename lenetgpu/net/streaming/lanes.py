"""Lanes: a stream each with a pipeline and its images, fed by one stream of copies.

A chunk is copied to its lane's images on the copying stream, so that copies follow each other over
the bus without a gap; its kernels go to the lane's own stream and write its labels where the host
reads them. Events hold both together: kernels wait for their copy, a copy for the lane's last
kernels. Or, `zero_copy`, nothing is copied: kernels read the host's memory themselves.

Kernels that may begin before the kernel before them is over (`gpu.launch`, overlap) do so behind a
kernel of their own lane alone: what waits for a copy or an event waits for all of it, on a stream
as in a graph, where only edges between two kernels are programmatic (tests/test_gpu_streams.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lenetgpu.net.streaming.cuda import Cuda
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.pipeline import ALIGNED, Observer, Pipeline

Mark = Callable[[int, str | None], None]
"""Told the lane and the operation that was just queued on the current stream, or None before."""


@dataclass
class Chunk:
    """Page-locked images (n, 28, 28, 1), and where their labels (n,) and scores (n, 10) go."""

    images: Any
    labels: Any
    scores: Any = None

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """All three."""
        return self.images, self.labels, self.scores


@dataclass
class Lane:
    """One stream; `copied` and `emptied` say when `images` were written and last read."""

    number: int
    stream: Any
    pipeline: Pipeline
    images: Any
    copied: Any
    emptied: Any
    used: bool = False


class Lanes:
    """`count` lanes for chunks of up to `chunk` images, used in turn."""

    def __init__(
        self,
        device: Cuda,
        make_pipeline: Callable[[int], Pipeline],
        chunk: int,
        count: int,
        zero_copy: bool = False,
    ) -> None:
        self._device, self._chunk, self._zero_copy = device, chunk, zero_copy
        self._copying = device.stream()
        self._lanes: list[Lane] = []
        for number in range(count):
            stream = device.stream()
            with device.on(stream):
                pipeline = make_pipeline(chunk)
                images = None if zero_copy else self._images(pipeline.input_dtype)
            stream.synchronize()
            events = device.event(), device.event()
            self._lanes.append(Lane(number, stream, pipeline, images, *events))
        self.dtype, self.with_scores = pipeline.input_dtype, pipeline.with_scores

    def _images(self, dtype: str) -> Any:
        return self._device.empty((self._chunk, *IMAGE_SHAPE), dtype)

    @property
    def streams(self) -> list[Any]:
        """Every stream that a chunk goes through."""
        return [self._copying, *(lane.stream for lane in self._lanes)]

    def begin(self) -> None:
        """Before the first chunk of a pass: no lane has a past to wait for."""
        for lane in self._lanes:
            lane.used = False

    def queue(self, turn: int, chunk: Chunk, mark: Mark | None = None, done: Any = None) -> None:
        """Queue chunk number `turn` of a pass; `done` is then an event after its last copy."""
        device, lane = self._device, self._lanes[turn % len(self._lanes)]

        def tell(stream: Any, name: str | None) -> None:
            if mark is not None:
                with device.on(stream):
                    mark(lane.number, name)

        if self._zero_copy and chunk.images.ctypes.data % ALIGNED == 0:
            taken = device.mapped(chunk.images)
            tell(lane.stream, None)
        else:
            if lane.used:
                device.wait(self._copying, lane.emptied)
            tell(self._copying, None)
            if lane.images is None:
                lane.images = self._images(self.dtype)
            taken = lane.images[: len(chunk.images)]
            device.copy(taken, chunk.images, self._copying)
            tell(self._copying, "images to device")
            device.record(lane.copied, self._copying)
            device.wait(lane.stream, lane.copied)
        with device.on(lane.stream):
            self._run(lane, taken, chunk, mark)
        if done is not None:
            device.record(done, lane.stream)

    def _run(self, lane: Lane, buffer: Any, chunk: Chunk, mark: Mark | None) -> None:
        """Kernels, which write the labels to host memory where a kernel writes them at all."""
        observer = None if mark is None else _marker(mark, lane.number)
        direct = lane.pipeline.labels_by_kernel
        there = self._device.mapped(chunk.labels) if direct else None
        labels = lane.pipeline.run(buffer, observer, there)
        self._device.record(lane.emptied, lane.stream)
        lane.used = True
        if not direct:
            self._device.copy(chunk.labels, labels, lane.stream)
        if chunk.scores is not None:
            scores = lane.pipeline.held_scores(len(chunk.images))
            if lane.pipeline.scores_on_gpu:
                self._device.copy(chunk.scores, scores, lane.stream)
            else:
                chunk.scores[...] = scores
        if mark is not None and not (direct and chunk.scores is None):
            mark(lane.number, "labels to host")

    def wait(self) -> None:
        """Until every lane has come to its end."""
        for stream in self.streams:
            stream.synchronize()


def _marker(mark: Mark, lane: int) -> Observer:
    return lambda step, output: mark(lane, step.name)
