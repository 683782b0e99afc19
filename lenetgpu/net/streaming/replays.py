"""Graphs of passes over the same page-locked arrays, recorded when these come a second time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import ref

from lenetgpu.gpu.graph import Graph
from lenetgpu.net.streaming.lanes import Chunk

_GRAPHS = 4
"""Graphs that are kept, those that were used last."""
Key = tuple[int, ...]
"""How many images there are, and where each array lies."""


class Replays:
    """Recorded passes by where their arrays lie. `refusal` says why nothing can be recorded."""

    def __init__(self) -> None:
        self.refusal = ""
        self._graphs: OrderedDict[Key, Graph | None] = OrderedDict()
        self._last: tuple[Graph, tuple[ref[Any] | None, ...]] | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def forget(self) -> None:
        """Let go of every graph."""
        self._graphs.clear()
        self._last = None

    def again(self, whole: Chunk) -> Graph | None:
        """The graph that was found last, where `whole` is of the very arrays that it was for.

        To compare arrays costs less than to ask where they lie. They are not kept alive: memory
        that was let go of and taken again is another array's.
        """
        if self._last is None:
            return None
        graph, known = self._last
        for reference, array in zip(known, whole.arrays, strict=True):
            if (None if reference is None else reference()) is not array:
                return None
        return graph

    def has(self, key: Key) -> bool:
        """Return whether there is a graph of arrays that lie there."""
        return self._graphs.get(key) is not None

    def find(self, key: Key, whole: Chunk, record: Callable[[], Graph]) -> Graph | None:
        """Return the graph of `whole`, made by `record` where its arrays come a second time."""
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
        self._last = graph, tuple(None if array is None else ref(array) for array in whole.arrays)
        return graph
