"""Reading ahead: threads fill a ring of page-locked buffers, which come out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from lenetgpu.cpu.threads import core_count
from lenetgpu.net.streaming.cuda import Device
from lenetgpu.net.streaming.lanes import Chunk
from lenetgpu.network import CLASSES, IMAGE_SHAPE

SLOT_BYTES = 8 << 20
"""Images of one buffer of the ring, in bytes, at most."""
MOST_READERS = 8


class Readable(Protocol):
    """Images by their number: a data set in a file, or an array."""

    def __len__(self) -> int:
        """How many images there are."""

    def read(self, lo: int, out: Any) -> None:
        """Fill `out` (n, 28, 28, 1) with images `lo` to `lo + n`; several threads may ask at once.

        LenetError where they cannot be had.
        """


class ArrayImages:
    """An array (n, 28, 28, 1) in host memory, read by copying."""

    def __init__(self, images: Any) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def read(self, lo: int, out: Any) -> None:
        """Copy images `lo` on into `out`."""
        out[...] = self._images[lo : lo + len(out)]


@dataclass
class Slot:
    """A page-locked buffer for images and what came of them, and the event that it is there."""

    images: Any
    labels: Any
    scores: Any
    done: Any

    def chunk(self, n: int) -> Chunk:
        """The first `n` images with labels and, where the ring has them, scores."""
        scores = None if self.scores is None else self.scores[:n]
        return Chunk(self.images[:n], self.labels[:n], scores)


class Ring:
    """At most `readers` + `lanes` + 1 slots and `readers` threads, made when needed and kept.

    A slot holds up to SLOT_BYTES of images, or one image, with 4 bytes an image for its label and
    40 for scores: so much page-locked memory (9 MB a slot), however long the source is.
    """

    def __init__(
        self, device: Device, dtype: str, chunk: int, lanes: int, with_scores: bool
    ) -> None:
        import numpy as np

        self._device, self._dtype, self.with_scores = device, dtype, with_scores
        fitting = SLOT_BYTES // (prod(IMAGE_SHAPE) * np.dtype(dtype).itemsize)
        self.images = max(1, min(chunk, fitting))
        self.readers = min(MOST_READERS, core_count())
        self.most = self.readers + lanes + 1
        self.threads = ThreadPoolExecutor(self.readers, thread_name_prefix="lenetgpu-read")
        self._free: list[Slot] = []
        self._made = 0

    def close(self) -> None:
        """Read nothing more; returns when no thread runs."""
        self.threads.shutdown(wait=True, cancel_futures=True)

    def take(self) -> Slot | None:
        """A slot that nobody uses, or None where all are out."""
        if self._free:
            return self._free.pop()
        if self._made == self.most:
            return None
        made = Slot(
            self._device.pinned((self.images, *IMAGE_SHAPE), self._dtype),
            self._device.pinned((self.images,), "int32"),
            self._device.pinned((self.images, CLASSES), "float32") if self.with_scores else None,
            self._device.event(),
        )
        self._made += 1
        return made

    def give_back(self, slot: Slot) -> None:
        """Nobody uses `slot` any more."""
        self._free.append(slot)


@dataclass
class Filled:
    """Images `lo` to `lo + n` of a source in a slot."""

    slot: Slot
    lo: int
    n: int

    def chunk(self) -> Chunk:
        """What a lane is given of them."""
        return self.slot.chunk(self.n)


class Reading:
    """A source's images from `start` on, a slot at a time, read ahead while the ring has room.

    As a context manager: an exception drops what was not begun and joins the threads, and the ring,
    which then misses slots, is closed.
    """

    def __init__(self, source: Readable, ring: Ring, start: int = 0) -> None:
        self._source, self._ring = source, ring
        self._next, self._end = start, len(source)
        self._ahead: deque[tuple[Filled, Future[None]]] = deque()

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self._ring.close()

    def read_ahead(self) -> None:
        """Ask for as much as there is room for."""
        while self._next < self._end:
            slot = self._ring.take()
            if slot is None:
                return
            n = min(self._ring.images, self._end - self._next)
            filled = Filled(slot, self._next, n)
            future = self._ring.threads.submit(self._read, filled)
            self._ahead.append((filled, future))
            self._next += n

    def _read(self, filled: Filled) -> None:
        lo, n, images = filled.lo, filled.n, filled.slot.images
        self._source.read(lo, images[:n])

    @property
    def waiting(self) -> bool:
        """Whether something was asked for that was not taken yet."""
        return bool(self._ahead)

    @property
    def ready(self) -> bool:
        """Whether `take` would not wait."""
        return bool(self._ahead) and self._ahead[0][1].done()

    def take(self) -> Filled:
        """The next images, once they are read; raises what the reader raised."""
        filled, future = self._ahead[0]
        future.result()
        self._ahead.popleft()
        return filled


Deliver = Callable[[Any, Any], None]
"""Given labels (n,) int32 and scores (n, 10) float32 or None, which it may not keep."""
