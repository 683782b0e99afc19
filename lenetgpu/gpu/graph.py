"""CUDA graphs: many calls recorded once, then launched together without the host's overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Graph:
    """`calls` calls of `work`, one after the other, recorded on a stream of their own.

    Raises RuntimeError with the reason where something in `work` cannot be recorded. What `work`
    needs (compiled kernels, workspaces) must be there already.
    """

    def __init__(self, work: Callable[[], Any], calls: int) -> None:
        import cupy

        self.stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        with self.stream:
            self.stream.begin_capture()
            try:
                for _ in range(calls):
                    work()
            except Exception as error:
                self._abandon()
                reason = (str(error).splitlines() or [""])[0]
                raise RuntimeError(reason or type(error).__name__) from error
            self._graph = self.stream.end_capture()

    def _abandon(self) -> None:
        import contextlib

        with contextlib.suppress(Exception):
            self.stream.end_capture()

    def launch(self) -> None:
        """Queue all calls on the current stream."""
        self._graph.launch()
