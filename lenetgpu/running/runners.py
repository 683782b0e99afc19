"""Host images to host labels, once: on the CPU a batch after the other, on a GPU by a streamer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline

Passed = Callable[[int], None]
Mark = Callable[[int, str | None], None]
_WARM_IMAGES = 4


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


class GpuRunner:
    """Runs page-locked images through a streamer; a few images warm it up.

    `done`: how many labels of the last run, from the first on, are there.
    """

    def __init__(self, make: Callable[[int], Pipeline], size: int, streams: int) -> None:
        from lenetgpu.streaming import Streamer, host_results

        self._dtype = ""

        def made(images: int) -> Pipeline:
            pipeline = make(images)
            self._dtype = pipeline.input_dtype
            return pipeline

        self._streamer = Streamer(made, size, streams)
        few = pinned_empty((min(size, _WARM_IMAGES), *IMAGE_SHAPE), self._dtype)
        few.fill(0)
        self._streamer.run(few, host_results(len(few), False)[0])

    @property
    def done(self) -> int:
        """Labels of the last run that are in host memory."""
        return self._streamer.done

    def place(self, images: Any) -> Any:
        """`images` (n, 28, 28, 1) where `run` reads them: a copy in page-locked memory."""
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
        """Fill page-locked `labels` (n,) int32, and `scores` (n, 10) float32 where given.

        `images` are page-locked too. `on_chunk` and `mark` as `Streamer.run` has them.
        """
        self._streamer.run(images, labels, scores, on_chunk, mark)
