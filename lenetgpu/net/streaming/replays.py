"""Graphs of passes over the same page-locked arrays, recorded when these come a second time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from lenetgpu.net.streaming.cuda import Recording
from lenetgpu.net.streaming.lanes import Chunk
from lenetgpu.net.streaming.same import Same, same_as

_GRAPHS = 4
"""Graphs that are kept, those that were used last."""
Key = tuple[int, ...]
"""How many images there are, where each array lies, and where packed images' chunks begin."""


class Replays:
    """What was recorded, by where its arrays lie. `refusal` says why nothing can be."""

    def __init__(self) -> None:
        self.refusal = ""
        self._graphs: OrderedDict[Key, Recording | None] = OrderedDict()
        self._last: Same | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def forget(self) -> None:
        """Let go of every graph."""
        self._graphs.clear()
        self._last = None

    def again(self, whole: Chunk) -> Recording | None:
        """The graph that was found last, where `whole` is of the very arrays that it was for."""
        last = self._last
        return last.graph if last is not None and last.holds(whole) else None

    def has(self, key: Key) -> bool:
        """Whether there is a graph of arrays that lie there."""
        return self._graphs.get(key) is not None

    def find(self, key: Key, whole: Chunk, record: Callable[[], Recording]) -> Recording | None:
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
        self._last = same_as(whole, graph)
        return graph
