"""A recorded pass known again by its arrays themselves, which costs less than to ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

from lenetgpu.net.streaming.cuda import Recording
from lenetgpu.net.streaming.lanes import Chunk


@dataclass(frozen=True)
class Same:
    """`graph` is of these arrays.

    They are not kept alive: memory that was let go of and taken again is another array's.
    """

    graph: Recording
    arrays: tuple[ref[Any] | None, ...]

    def holds(self, chunk: Chunk) -> bool:
        """Return whether a pass of `chunk` is what was recorded."""
        given = (chunk.images, chunk.labels, chunk.scores)
        for known, array in zip(self.arrays, given, strict=True):
            if (None if known is None else known()) is not array:
                return False
        return True


def same_as(chunk: Chunk, graph: Recording) -> Same:
    """Return what knows `chunk`, which `graph` was recorded of, again."""
    given = (chunk.images, chunk.labels, chunk.scores)
    return Same(graph, tuple(None if array is None else ref(array) for array in given))
