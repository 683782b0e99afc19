"""Stream slots: a stream with its pipeline and image buffer; one copy stream serves all slots.

Chunks are copied to a slot's buffer on the copy stream, so copies follow each other without gaps;
kernels run on the slot's stream and write labels to host memory. Events order them: kernels wait
for their copy, a copy waits for the slot's previous kernels. With `zero_copy`, kernels read host
memory. Programmatic dependent launch (`gpu.launch`, overlap) applies only between two kernels of
one slot; a kernel after a copy or an event waits for all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lenetgpu.net.streaming.cuda import Cuda
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.pipeline import ALIGNED, Pipeline

# called with the slot and the operation just queued on the current stream, or None before the first
Mark = Callable[[int, str | None], None]

# called with a chunk's images, labels and scores (or None) as the GPU sees them, after its kernels
After = Callable[[Any, Any, Any], None]


class Chunk(NamedTuple):
    """Page-locked images (n, 28, 28, 1), and the targets of labels (n,) and scores (n, 10)."""

    images: Any
    labels: Any
    scores: Any = None


@dataclass
class StreamSlot:
    """One stream; events `copied` and `emptied` follow the last write and read of `images`."""

    number: int
    stream: Any
    pipeline: Pipeline
    images: Any
    copied: Any
    emptied: Any
    used: bool = False


class StreamPool:
    """`count` slots for chunks of up to `chunk` images, used in turn."""

    def __init__(
        self,
        device: Cuda,
        make_pipeline: Callable[[int], Pipeline],
        chunk: int,
        count: int,
        zero_copy: bool = False,
        after: After | None = None,
    ) -> None:
        self._device, self._chunk, self._zero_copy, self._after = device, chunk, zero_copy, after
        self._copying = device.stream()
        self._slots: list[StreamSlot] = []
        for number in range(count):
            stream = device.stream()
            with stream:
                pipeline = make_pipeline(chunk)
                images = None if zero_copy else self._images(pipeline.input_dtype)
            stream.synchronize()
            events = device.event(), device.event()
            self._slots.append(StreamSlot(number, stream, pipeline, images, *events))
        self.dtype, self.with_scores = pipeline.input_dtype, pipeline.with_scores

    def _images(self, dtype: str) -> Any:
        return self._device.empty((self._chunk, *IMAGE_SHAPE), dtype)

    @property
    def streams(self) -> list[Any]:
        """All streams that chunks pass through."""
        return [self._copying, *(slot.stream for slot in self._slots)]

    def stream(self, turn: int) -> Any:
        """Return the stream of chunk number `turn`."""
        return self._slots[turn % len(self._slots)].stream

    def begin(self) -> None:
        """Start a pass: the first chunk of each slot waits for nothing."""
        for slot in self._slots:
            slot.used = False

    def queue(self, turn: int, chunk: Chunk, mark: Mark | None = None, done: Any = None) -> None:
        """Queue chunk number `turn` of a pass, then event `done` if given."""
        device, slot = self._device, self._slots[turn % len(self._slots)]

        def mark_on(stream: Any, name: str | None) -> None:
            if mark is not None:
                with stream:
                    mark(slot.number, name)

        if self._zero_copy and chunk.images.ctypes.data % ALIGNED == 0:
            pixels = device.mapped(chunk.images)
            mark_on(slot.stream, None)
        else:
            if slot.used:
                self._copying.wait_event(slot.emptied)
            mark_on(self._copying, None)
            if slot.images is None:
                slot.images = self._images(self.dtype)
            pixels = slot.images[: len(chunk.images)]
            device.copy(pixels, chunk.images, self._copying)
            mark_on(self._copying, "images to device")
            slot.copied.record(self._copying)
            slot.stream.wait_event(slot.copied)
        with slot.stream:
            self._run(slot, pixels, chunk, mark)
        if done is not None:
            done.record(slot.stream)

    def launch(self, turn: int, graph: Any, done: Any) -> None:
        """Launch the recorded chunk number `turn` on its slot's stream, then event `done`."""
        slot = self._slots[turn % len(self._slots)]
        graph.launch_alone(slot.stream)
        slot.emptied.record(slot.stream)
        slot.used = True
        done.record(slot.stream)

    def _run(self, slot: StreamSlot, buffer: Any, chunk: Chunk, mark: Mark | None) -> None:
        """Queue the kernels; labels go directly to host memory if a kernel writes them."""
        observer = None if mark is None else lambda step, output: mark(slot.number, step.name)
        direct = slot.pipeline.labels_by_kernel
        host_labels = self._device.mapped(chunk.labels) if direct else None
        labels = slot.pipeline.run(buffer, observer, host_labels)
        if self._after is not None:
            scores = slot.pipeline.held_scores(len(buffer))
            self._after(buffer, labels, None if chunk.scores is None else scores)
        slot.emptied.record(slot.stream)
        slot.used = True
        if not direct:
            self._device.copy(chunk.labels, labels, slot.stream)
        if chunk.scores is not None:
            scores = slot.pipeline.held_scores(len(chunk.images))
            if slot.pipeline.scores_on_gpu:
                self._device.copy(chunk.scores, scores, slot.stream)
            else:
                chunk.scores[...] = scores
        if mark is not None and not (direct and chunk.scores is None):
            mark(slot.number, "labels to host")

    def wait(self) -> None:
        """Wait until all slots are idle."""
        for stream in self.streams:
            stream.synchronize()
