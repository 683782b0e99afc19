"""Lanes: streams with a pipeline and image buffer each, fed by one copy stream.

Chunks are copied to a lane's buffer on the copy stream, so copies follow each other without gaps;
kernels run on the lane's stream and write labels to host memory. Events order them: kernels wait
for their copy, a copy waits for the lane's previous kernels. With `zero_copy`, kernels read host
memory.

Programmatic dependent launch (`gpu.launch`, overlap) applies only between two kernels of one lane.
A kernel behind a copy or an event waits for all of it, on a stream as in a graph, where only edges
between two kernels are programmatic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lenetgpu.net.streaming.cuda import Cuda
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.pipeline import ALIGNED, Observer, Pipeline

# called with the lane and the operation just queued on the current stream, or None before the first
Mark = Callable[[int, str | None], None]


@dataclass
class Chunk:
    """Page-locked images (n, 28, 28, 1), and the targets of labels (n,) and scores (n, 10)."""

    images: Any
    labels: Any
    scores: Any = None

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Images, labels and scores."""
        return self.images, self.labels, self.scores


@dataclass
class Lane:
    """One stream; events `copied` and `emptied` follow the last write and read of `images`."""

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
            with stream:
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
        """All streams that chunks pass through."""
        return [self._copying, *(lane.stream for lane in self._lanes)]

    def begin(self) -> None:
        """Start a pass: the first chunk of each lane waits for nothing."""
        for lane in self._lanes:
            lane.used = False

    def queue(self, turn: int, chunk: Chunk, mark: Mark | None = None, done: Any = None) -> None:
        """Queue chunk number `turn` of a pass, then event `done` if given."""
        device, lane = self._device, self._lanes[turn % len(self._lanes)]

        def tell(stream: Any, name: str | None) -> None:
            if mark is not None:
                with stream:
                    mark(lane.number, name)

        if self._zero_copy and chunk.images.ctypes.data % ALIGNED == 0:
            taken = device.mapped(chunk.images)
            tell(lane.stream, None)
        else:
            if lane.used:
                self._copying.wait_event(lane.emptied)
            tell(self._copying, None)
            if lane.images is None:
                lane.images = self._images(self.dtype)
            taken = lane.images[: len(chunk.images)]
            device.copy(taken, chunk.images, self._copying)
            tell(self._copying, "images to device")
            lane.copied.record(self._copying)
            lane.stream.wait_event(lane.copied)
        with lane.stream:
            self._run(lane, taken, chunk, mark)
        if done is not None:
            done.record(lane.stream)

    def _run(self, lane: Lane, buffer: Any, chunk: Chunk, mark: Mark | None) -> None:
        """Queue the kernels; labels go directly to host memory if a kernel writes them."""
        observer = None if mark is None else _marker(mark, lane.number)
        direct = lane.pipeline.labels_by_kernel
        there = self._device.mapped(chunk.labels) if direct else None
        labels = lane.pipeline.run(buffer, observer, there)
        lane.emptied.record(lane.stream)
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
        """Wait until all lanes are idle."""
        for stream in self.streams:
            stream.synchronize()


def _marker(mark: Mark, lane: int) -> Observer:
    return lambda step, output: mark(lane, step.name)
