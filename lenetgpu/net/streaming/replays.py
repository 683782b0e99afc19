"""CUDA graphs of passes over the same page-locked arrays, recorded at their second use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import ref

from lenetgpu.gpu.graph import Graph
from lenetgpu.net.streaming.lanes import Chunk

_GRAPHS = 4  # graphs kept, least recently used dropped
Key = tuple[int, ...]  # number of images and the address of each array


class Replays:
    """Recorded passes by the addresses of their arrays; `refusal`: why none can be recorded."""

    def __init__(self) -> None:
        self.refusal = ""
        self._graphs: OrderedDict[Key, Graph | None] = OrderedDict()
        self._last: tuple[Graph, tuple[ref[Any] | None, ...]] | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def forget(self) -> None:
        """Drop all graphs."""
        self._graphs.clear()
        self._last = None

    def again(self, whole: Chunk) -> Graph | None:
        """Return the last graph if `whole` consists of the same array objects.

        Comparing objects is cheaper than comparing addresses. The arrays are not kept alive, so
        freed and reused memory does not match.
        """
        if self._last is None:
            return None
        graph, known = self._last
        for reference, array in zip(known, whole.arrays, strict=True):
            if (None if reference is None else reference()) is not array:
                return None
        return graph

    def has(self, key: Key) -> bool:
        """Return True if there is a graph for these addresses."""
        return self._graphs.get(key) is not None

    def find(self, key: Key, whole: Chunk, record: Callable[[], Graph]) -> Graph | None:
        """Return the graph of `whole`; call `record` when its arrays are used a second time."""
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
