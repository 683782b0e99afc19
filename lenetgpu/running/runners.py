"""Host images to host labels, once: on the CPU a batch after the other, on a GPU by a streamer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline

Passed = Callable[[int], None]
Mark = Callable[[int, str | None], None]
_WARM_IMAGES = 4
_STAGED = 1024
"""Images that go through page-locked arrays of a runner's; more go through the streamer's ring."""


_NOTHING_STAGED: tuple[Any, Any, Any] = (None, None, None)


def _ignore(count: int) -> None:
    pass


class CpuRunner:
    """Runs NumPy images through `pipeline`, in passes of its batch; one image warms it up.

    `done`: how many labels of the last run, from the first on, are there.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        import numpy as np

        self.pipeline, self.done = pipeline, 0
        self._last = pipeline.steps[-1]
        pipeline.run(np.zeros((1, *IMAGE_SHAPE), pipeline.input_dtype))

    def place(self, images: Any) -> Any:
        """`images` (n, 28, 28, 1) where `run` reads them best: as they are."""
        return images

    def answer(self, images: Any, with_scores: bool) -> tuple[Any, Any]:
        """Fresh labels (n,) int32 and scores (n, 10) float32, or None, of `images`."""
        labels, scores = _results(len(images), with_scores)
        self.run(images, labels, scores)
        return labels, scores

    def run(
        self,
        images: Any,
        labels: Any,
        scores: Any = None,
        on_chunk: Passed | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Fill `labels` (n,) int32, and `scores` (n, 10) float32 where given, from `images`.

        `on_chunk(count)` is called as images are through; `mark(0, name)` after each step, and
        with None before the first. What was through when something raises is kept.
        """
        tell, through, self.done = on_chunk or _ignore, 0, 0
        if mark is not None:
            mark(0, None)

        def passed(step: Any, output: Any) -> None:
            nonlocal through
            if mark is not None:
                mark(0, step.name)
            if step is self._last:
                through += _length(output)
                tell(_length(output))

        for lo in range(0, len(images), self.pipeline.batch):
            try:
                self.pipeline.run(images[lo : lo + self.pipeline.batch], passed)
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


class GpuRunner:
    """Runs host images through a streamer on GPU `index`; a few images warm it up.

    `done`: how many labels of the last run, from the first on, are there. Not for several threads
    at once, but for one after the other.
    """

    def __init__(
        self, make: Callable[[int], Pipeline], size: int, streams: int, index: int
    ) -> None:
        import cupy

        from lenetgpu.streaming import Streamer, host_results

        self._gpu, self._staged, self._dtype = cupy.cuda.Device(index), _NOTHING_STAGED, ""

        def made(images: int) -> Pipeline:
            pipeline = make(images)
            self._dtype = pipeline.input_dtype
            return pipeline

        with self._gpu:
            self._streamer = Streamer(made, size, streams)
            few = pinned_empty((min(size, _WARM_IMAGES), *IMAGE_SHAPE), self._dtype)
            few.fill(0)
            self._streamer.run(few, host_results(len(few), False)[0])

    @property
    def done(self) -> int:
        """Labels of the last run that are in host memory."""
        return self._streamer.done

    def place(self, images: Any) -> Any:
        """`images` (n, 28, 28, 1) where `run` reads them best: a copy in page-locked memory."""
        from lenetgpu.streaming import pinned_copy

        return pinned_copy(images)

    def run(
        self,
        images: Any,
        labels: Any,
        scores: Any = None,
        on_chunk: Passed | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Fill `labels` (n,) int32, and `scores` (n, 10) float32 where given, from `images`.

        Page-locked arrays are the fastest; `on_chunk` and `mark` as `Streamer.run` has them.
        """
        with self._gpu:
            self._streamer.run(images, labels, scores, on_chunk, mark)

    def answer(self, images: Any, with_scores: bool) -> tuple[Any, Any]:
        """Fresh labels (n,) int32 and scores (n, 10) float32, or None, of `images`.

        Few go through page-locked arrays of this runner's, so that a recorded pass is replayed.
        """
        n = len(images)
        labels, scores = _results(n, with_scores)
        if n > _STAGED:
            self.run(images, labels, scores)
        elif n:
            held, found, sums = self._stage(with_scores)
            held[:n] = images
            self.run(held[:n], found[:n], sums[:n] if with_scores else None)
            labels[:] = found[:n]
            if with_scores:
                scores[:] = sums[:n]
        return labels, scores

    def _stage(self, with_scores: bool) -> tuple[Any, Any, Any]:
        """Page-locked images, labels and, where wanted, scores, made at the first call."""
        from lenetgpu.streaming import host_results

        if self._staged[0] is None:
            images = pinned_empty((_STAGED, *IMAGE_SHAPE), self._dtype)
            self._staged = (images, *host_results(_STAGED, with_scores))
        return self._staged
