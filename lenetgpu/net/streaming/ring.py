"""Page-locked buffers that threads fill with images ahead of the GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

from lenetgpu.cpu.threads import core_count
from lenetgpu.net.streaming.cuda import Cuda
from lenetgpu.net.streaming.lanes import Chunk
from lenetgpu.network import CLASSES, IMAGE_SHAPE

SLOT_BYTES = 8 << 20  # most image bytes of one buffer
MOST_READERS = 8


@dataclass
class Slot:
    """A page-locked buffer for `n` images and their results; event `done` follows the results."""

    images: Any
    labels: Any
    scores: Any
    done: Any
    n: int = 0

    def chunk(self) -> Chunk:
        """Return the images in use with their labels and scores."""
        scores = None if self.scores is None else self.scores[: self.n]
        return Chunk(self.images[: self.n], self.labels[: self.n], scores)


class Ring:
    """Reader threads and at most `readers` + `lanes` + 1 slots, created on demand.

    A slot holds up to SLOT_BYTES of images plus labels and scores (about 9 MB of page-locked
    memory), however long the source is. As a context manager: an exception cancels reads that have
    not started and joins the threads.
    """

    def __init__(self, device: Cuda, dtype: str, chunk: int, lanes: int, with_scores: bool) -> None:
        import numpy as np

        self._device, self._dtype, self.with_scores = device, dtype, with_scores
        fitting = SLOT_BYTES // (prod(IMAGE_SHAPE) * np.dtype(dtype).itemsize)
        self.images = max(1, min(chunk, fitting))
        readers = min(MOST_READERS, core_count())
        self.threads = ThreadPoolExecutor(readers, thread_name_prefix="lenetgpu-read")
        self.free: list[Slot] = []
        self._left = readers + lanes + 1

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self.threads.shutdown(wait=True, cancel_futures=True)

    def take(self) -> Slot | None:
        """Return a free slot, or None if all are in use."""
        if self.free:
            return self.free.pop()
        if not self._left:
            return None
        made = Slot(
            self._device.pinned((self.images, *IMAGE_SHAPE), self._dtype),
            self._device.pinned((self.images,), "int32"),
            self._device.pinned((self.images, CLASSES), "float32") if self.with_scores else None,
            self._device.event(),
        )
        self._left -= 1
        return made
