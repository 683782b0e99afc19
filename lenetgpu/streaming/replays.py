"""Graphs of passes over the same page-locked arrays, recorded when these come a second time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import ref

from lenetgpu.streaming.cuda import Recording
from lenetgpu.streaming.lanes import Chunk
from lenetgpu.streaming.packed import PackedImages

_GRAPHS = 4
"""Graphs that are kept, those that were used last."""
Key = tuple[int, ...]
"""How many images there are, where each array lies, and where packed images' chunks begin."""


class Replays:
    """What was recorded, by where its arrays lie. `refusal` says why nothing can be."""

    def __init__(self) -> None:
        self.refusal = ""
        self._graphs: OrderedDict[Key, Recording | None] = OrderedDict()
        self._last: tuple[Recording, list[Any]] | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def forget(self) -> None:
        """Let go of every graph."""
        self._graphs.clear()
        self._last = None

    def again(self, whole: Chunk) -> Recording | None:
        """The graph that was found last, where `whole` is of the very arrays that it was for."""
        if self._last is None:
            return None
        graph, arrays = self._last
        images, labels, scores = (array() for array in arrays)
        same = images is whole.images and labels is whole.labels and scores is whole.scores
        return graph if same else None

    def has(self, key: Key) -> bool:
        """Whether there is a graph of arrays that lie there."""
        return self._graphs.get(key) is not None

    def find(self, key: Key, whole: Chunk, record: Callable[[], Recording]) -> Recording | None:
        """The graph of `whole`, made by `record` where these arrays come a second time, or None."""
        if self.refusal:
            return None
        if key not in self._graphs:
            self._graphs[key] = None
            if len(self._graphs) > _GRAPHS:
                self._graphs.popitem(last=False)
            return None
        try:
            graph = self._graphs[key] or record()
        except RuntimeError as error:
            self.refusal = str(error)
            return None
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        self._remember(graph, whole)
        return graph

    def _remember(self, graph: Recording, whole: Chunk) -> None:
        """Not of packed images, whose chunks may begin elsewhere in the same arrays."""
        self._last = None
        if not isinstance(whole.images, PackedImages):
            arrays = (whole.images, whole.labels, whole.scores)
            self._last = graph, [_nothing if array is None else ref(array) for array in arrays]


def _nothing() -> None:
    """What is not there, asked for as a weak reference is."""
