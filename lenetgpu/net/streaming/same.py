"""A recorded pass known again by its arrays themselves, which costs less than to ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import ref

from lenetgpu.net.streaming.cuda import Recording
from lenetgpu.net.streaming.lanes import Chunk
from lenetgpu.net.streaming.packed import PackedImages


@dataclass(frozen=True)
class Same:
    """`graph` is of these arrays, of packed images with records that end where `at` says.

    They are not kept alive: memory that was let go of and taken again is another array's.
    """

    graph: Recording
    arrays: tuple[ref[Any] | None, ...]
    edges: Any
    at: bytes

    def holds(self, chunk: Chunk) -> bool:
        """Whether a pass of `chunk` is what was recorded."""
        given = (chunk.images, chunk.labels, chunk.scores)
        for known, array in zip(self.arrays, given, strict=True):
            if (None if known is None else known()) is not array:
                return False
        return self.edges is None or _ends(chunk.images, self.edges) == self.at


def same_as(chunk: Chunk, graph: Recording, sizes: list[int]) -> Same:
    """What knows `chunk`, recorded in chunks of `sizes` images, again."""
    import numpy as np

    given = (chunk.images, chunk.labels, chunk.scores)
    arrays = tuple(None if array is None else ref(array) for array in given)
    if not isinstance(chunk.images, PackedImages):
        return Same(graph, arrays, None, b"")
    edges = np.array([0, *accumulate(sizes)])
    return Same(graph, arrays, edges, _ends(chunk.images, edges))


def _ends(images: Any, edges: Any) -> bytes:
    found: bytes = images.offsets.take(edges).tobytes()
    return found
