"""The course report's sections 3.4 and 3.5: what goes over the bus between stages, and streams.

Images lie in page-locked host memory and labels come back to it; a sample is that whole way.
"""

from __future__ import annotations

from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.measure.timing import cpu_ms
from lenetgpu.papers.course import HOST
from lenetgpu.pipeline import Pipeline, Step
from lenetgpu.plan import Plan


def crossed_bytes(steps: list[Step], images: int) -> int:
    """Bytes that copies between stages take over the bus, both ways, for `images`."""
    copies = [step for step in steps if step.variant is None]
    return sum(4 * images * _items(step.writes[1]) for step in copies)


def _items(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def activation_bytes(steps: list[Step], images: int) -> tuple[int, int]:
    """(all stages' outputs together, the largest one with the input it is made of), in bytes.

    What would lie on the device if nothing were freed, and what has to at least (section 3.4).
    """
    made = [step for step in steps if step.variant is not None]
    written = [4 * images * _items(step.writes[1]) for step in made]
    read = [4 * images * _items(step.reads[1]) for step in made]
    return sum(written), max(map(sum, zip(read, written, strict=True)))


class Transfers:
    """`plan` with every stage's output taken to the host and back (HOST), or left where it is."""

    def __init__(self, plan: Plan, weights: Weights, images: Any, where: str) -> None:
        from lenetgpu.net.streaming import pinned_copy

        way = "host" if where == HOST else "device"
        n = len(images)
        self.pipeline = Pipeline(plan, weights, n, str(images.dtype), n, way)
        self._host, self._held = pinned_copy(images), cupy.empty(images.shape, images.dtype)

    @property
    def explanation(self) -> str:
        """Bytes between stages, and of the activations."""
        steps, n = self.pipeline.steps, self.pipeline.batch
        together, least = activation_bytes(steps, n)
        crossed = crossed_bytes(steps, n)
        return (
            f"{crossed / 1e9:.2f} GB over the bus between stages, "
            f"{together / 1e9:.2f} GB of activations if none were freed, {least / 1e9:.2f} GB "
            "where each lies until the next is made"
        )

    def once(self) -> Any:
        """Images to the device, all stages, labels (n,) int32 on the host."""
        self._held.set(self._host)
        return self.pipeline.run(self._held).get()

    def sample(self) -> float:
        """Milliseconds by the host's clock."""
        return cpu_ms(self.once)


class Streamed:
    """`plan` over (streams, chunks) of the images in turn; `expected`: their labels.

    Raises LenetError where a run gives other labels.
    """

    def __init__(
        self, plan: Plan, weights: Weights, images: Any, shape: tuple[int, int], expected: Any
    ) -> None:
        from lenetgpu.net.streaming import Streamer, host_results, pinned_copy

        n, dtype = len(images), str(images.dtype)
        count, chunks = shape

        def make(size: int) -> Pipeline:
            made = Pipeline(plan, weights, size, dtype, size)
            made.with_scores = False
            return made

        self._streamer = Streamer(make, -(-n // chunks), count)
        self._host = pinned_copy(images)
        self._labels, _ = host_results(n, with_scores=False)
        for _ in range(2):
            self._labels[:] = -1
            self._run()
            wrong = int((self._labels != expected).sum())
            if wrong:
                raise LenetError(
                    f"{count} streams: expected the labels of one pass, found {wrong} others"
                )

    def _run(self) -> None:
        self._streamer.run(self._host, self._labels)

    def sample(self) -> float:
        """Milliseconds by the host's clock."""
        return cpu_ms(self._run)
