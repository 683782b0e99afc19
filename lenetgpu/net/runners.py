"""Host images to host labels, once: on the CPU a batch after the other, on a GPU by a streamer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from lenetgpu.check.finite import first_not_finite, refused, require_finite
from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.cpu.turns import Turn, in_turn
from lenetgpu.files.reading import Source
from lenetgpu.gpu.workspace import host_empty
from lenetgpu.net.one import One
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline

Passed = Callable[[int], None]
Mark = Callable[[int, str | None], None]
Deliver = Callable[[Any, Any], None]
Told = tuple[Passed | None, Mark | None]
_WARM_IMAGES = 4
_SLICE_BYTES = 32 << 20
"""Images that are read ahead on a CPU, in bytes at most; there are two such buffers."""
_STAGES = (1_024, 10_000)
"""Images that go through page-locked arrays of a runner's, of the first length that holds them;
more go through the streamer's ring."""
_COPIED_AT_ONCE = 1_000


@dataclass(frozen=True)
class Feed:
    """How host images of one type go to the GPU: streams, images of a chunk, how these taper.

    `zero_copy`: nothing is copied, kernels read the host's memory.
    `model` is what the schedule's model says of it in milliseconds, None where it was not asked. On
    a CPU there is one stream, and `chunk` is what was asked for.
    """

    streams: int
    chunk: int | None
    taper: float = 1.0
    zero_copy: bool = False
    model: dict[str, float] | None = None


class Runner(ABC):
    """Host images to host labels, for one caller at a time: LenetError for another meanwhile.

    LenetError too where scores are NaN or infinite, with the number of the first such image:
    `first` is that of the first one given to `run`.
    """

    first = 0

    def __init__(self) -> None:
        self._turn = Turn("runner")

    @property
    @abstractmethod
    def done(self) -> int:
        """How many labels of the last run, from the first on, are in host memory."""

    @in_turn
    def run(
        self,
        images: Any,
        labels: Any,
        scores: Any = None,
        on_chunk: Passed | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Fill `labels` (n,) int32, and `scores` (n, 10) float32 where given, from `images`.

        `images` is (n, 28, 28, 1) of the pipeline's dtype; a GPU is fastest with what `whole` and
        `results` gave. `on_chunk(count)` is called as images are through, on a GPU as they are
        queued; `mark(lane, name)` after each operation, and with None before the first. What was
        through when something raises is kept.
        """
        self._pass(images, labels, scores, (on_chunk, mark))

    @abstractmethod
    def answer(self, images: Any, with_scores: bool) -> tuple[Any, Any]:
        """Fresh labels (n,) int32 and scores (n, 10) float32, or None, of `images`."""

    def label(self, image: Any) -> Any:
        """The label of a NumPy image (28, 28) of uint8, as NumPy's int32."""
        return self.answer(image.reshape(1, *IMAGE_SHAPE), False)[0][0]

    @abstractmethod
    def _pass(self, images: Any, labels: Any, scores: Any, told: Told) -> None: ...


class CpuRunner(Runner):
    """Runs NumPy images through `pipeline`, in passes of its batch; one image warms it up."""

    done = 0
    chunk: int | None = None
    notes: tuple[str, ...] = ()

    def __init__(self, pipeline: Pipeline) -> None:
        import numpy as np

        super().__init__()
        self.pipeline = pipeline
        self._last = pipeline.steps[-1]
        pipeline.run(np.zeros((1, *IMAGE_SHAPE), pipeline.input_dtype))

    def whole(self, source: Source) -> Any:
        """All images (n, 28, 28, 1) of `source`."""
        return source.whole().images

    def results(self, n: int, with_scores: bool) -> tuple[Any, Any]:
        """Labels (n,) int32 and scores (n, 10) float32, or None, for `run` to fill."""
        return _results(n, with_scores)

    @in_turn
    def run_source(self, source: Source, deliver: Deliver, on_chunk: Passed | None = None) -> None:
        """Read `source` a slice ahead of what is computed; `deliver(labels, scores)` in order.

        Labels (k,) int32 and scores (k, 10) float32, or None, hold until `deliver` returns. What
        was through when something raises is delivered first.
        """
        from concurrent.futures import ThreadPoolExecutor

        import numpy as np

        with_scores, total, first = self.pipeline.with_scores, 0, source.chosen.start
        each = prod(IMAGE_SHAPE) * np.dtype(source.dtype).itemsize
        size = min(self.pipeline.batch, len(source), max(1, _SLICE_BYTES // each))
        buffers = [np.empty((size, *IMAGE_SHAPE), source.dtype) for _ in range(2)]
        labels, scores = _results(size, with_scores)

        def read(lo: int) -> Any:
            part = buffers[lo // size % 2][: min(size, len(source) - lo)]
            source.read(lo, part)
            return part

        with ThreadPoolExecutor(1, thread_name_prefix="lenetgpu-read") as reader:
            ahead = reader.submit(read, 0)
            for lo in range(0, len(source), size):
                images = ahead.result()
                if lo + size < len(source):
                    ahead = reader.submit(read, lo + size)
                self.done, self.first = 0, first + lo
                try:
                    self.run(images, labels, scores, on_chunk)
                finally:
                    n, total = self.done, total + self.done
                    self.done, self.first = total, first
                    deliver(labels[:n], scores[:n] if with_scores else None)

    def answer(self, images: Any, with_scores: bool) -> tuple[Any, Any]:
        """Fresh labels (n,) int32 and scores (n, 10) float32, or None, of `images`."""
        labels, scores = _results(len(images), with_scores)
        self.run(images, labels, scores)
        return labels, scores

    def _pass(self, images: Any, labels: Any, scores: Any, told: Told) -> None:
        (on_chunk, mark), through, self.done = told, 0, 0
        if mark is not None:
            mark(0, None)

        def passed(step: Any, output: Any) -> None:
            nonlocal through
            if mark is not None:
                mark(0, step.name)
            if step is self._last:
                through += _length(output)
                if on_chunk is not None:
                    on_chunk(_length(output))

        for lo in range(0, len(images), self.pipeline.batch):
            bad = None
            try:
                self.pipeline.run(images[lo : lo + self.pipeline.batch], passed)
                if self.pipeline.keeps_scores:
                    bad = first_not_finite(self.pipeline.held_scores(through - lo))
                if bad is not None:
                    through = lo + bad
                    raise refused(self.pipeline.plan, self.first + through)
            finally:
                labels[lo:through] = self.pipeline.labels[: through - lo]
                if scores is not None:
                    scores[lo:through] = self.pipeline.scores(through - lo)
                self.done = through


def _length(output: Any) -> int:
    """Images of a step's output: labels, or labels and scores."""
    return len(output[0] if isinstance(output, tuple) else output)


def _results(n: int, with_scores: bool) -> tuple[Any, Any]:
    import numpy as np

    return np.empty(n, np.int32), np.empty((n, CLASSES), np.float32) if with_scores else None


class GpuRunner(Runner):
    """Runs host images through a streamer on GPU `index`; a few images warm it up.

    Images go there as `feed` says, in smaller chunks where memory does not suffice. `one` makes
    what answers single images, None where none are to come. `done`: how many labels of the last
    run, from the first on, are there.
    """

    def __init__(
        self,
        make: Callable[[int], Pipeline],
        feed: Feed,
        index: int,
        one: Callable[[], One | None] | None = None,
    ) -> None:
        import cupy
        import numpy as np

        from lenetgpu.net.streaming import Streamer, host_results

        super().__init__()
        self._gpu, self._dtype = cupy.cuda.Device(index), ""
        self._staged: dict[int, tuple[Any, Any, Any]] = {}
        self._label = np.int32

        def made(images: int) -> Pipeline:
            pipeline = make(images)
            self._plan = pipeline.plan
            self._dtype, self._scored = pipeline.input_dtype, pipeline.with_scores
            return pipeline

        with self._gpu:
            chunk = feed.chunk or 1
            self._streamer = Streamer(
                made, chunk, feed.streams, taper=feed.taper, zero_copy=feed.zero_copy
            )
            few = host_empty((min(chunk, _WARM_IMAGES), *IMAGE_SHAPE), self._dtype)
            few.fill(0)
            self._streamer.run(few, host_results(len(few), False)[0])
            self._one = None if one is None else one()

    @property
    def done(self) -> int:
        """Labels of the last run that are in host memory."""
        return self._streamer.done

    @property
    def chunk(self) -> int:
        """Images of a chunk, no more than asked."""
        return self._streamer.chunk

    @property
    def notes(self) -> list[str]:
        """A sentence where memory made chunks smaller than asked."""
        return [self._streamer.shrunk] if self._streamer.shrunk else []

    def whole(self, source: Source) -> Any:
        """Return all images of `source` in page-locked memory, which `run` reads best."""
        with self._gpu:
            held = host_empty((len(source), *IMAGE_SHAPE), source.dtype)
            source.read(0, held)
        return held

    def results(self, n: int, with_scores: bool) -> tuple[Any, Any]:
        """Labels (n,) int32 and scores (n, 10) float32, or None, where `run` writes them best."""
        from lenetgpu.net.streaming import host_results

        with self._gpu:
            return host_results(n, with_scores)

    def _pass(self, images: Any, labels: Any, scores: Any, told: Told) -> None:
        with self._gpu:
            self._streamer.run(images, labels, scores, *told)
        require_finite(scores, self._plan, self.first)

    def run_source(self, source: Source, deliver: Deliver, on_chunk: Passed | None = None) -> None:
        """Read `source` while it is computed; `deliver(labels, scores)` in order, for a while."""

        def checked(labels: Any, scores: Any) -> None:
            require_finite(scores, self._plan, source.chosen.start + self.done)
            deliver(labels, scores)

        with self._gpu:
            self._streamer.run_source(source, checked, on_chunk)

    @in_turn
    def answer(self, images: Any, with_scores: bool) -> tuple[Any, Any]:
        """Fresh labels (n,) int32 and scores (n, 10) float32, or None, of `images`.

        Few go through page-locked arrays of this runner's, so that a recorded pass is replayed.
        """
        n = len(images)
        labels, scores = _results(n, with_scores)
        if n == 1 and self._one is not None:
            with self._gpu:
                labels[0] = self._one.label(images[0])
                if with_scores:
                    scores[0] = self._one.scores()
                    require_finite(scores, self._plan)
        elif n > _STAGES[-1]:
            self.run(images, labels, scores)
        elif n:
            held, found, sums = self._stage(n, with_scores)

            def copy(lo: int, hi: int) -> None:
                held[lo:hi] = images[lo:hi]

            parallel_ranges(n, copy, _COPIED_AT_ONCE)
            self.run(held[:n], found[:n], sums[:n] if with_scores else None)
            labels[:] = found[:n]
            if with_scores:
                scores[:] = sums[:n]
        return labels, scores

    def label(self, image: Any) -> Any:
        """The label of a NumPy image (28, 28) of uint8, as NumPy's int32."""
        if self._one is None:
            return super().label(image)
        with self._gpu:
            return self._label(self._one.label(image))

    def _stage(self, n: int, with_scores: bool) -> tuple[Any, Any, Any]:
        """Page-locked images, labels and, where wanted, scores for `n`, kept from call to call."""
        room = next(room for room in _STAGES if n <= room)
        if room not in self._staged:
            with self._gpu:
                images = host_empty((room, *IMAGE_SHAPE), self._dtype)
            self._staged[room] = (images, *self.results(room, with_scores))
        return self._staged[room]
