"""Streams, and CUDA graphs: calls recorded once, launched together without the host's overhead."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any


@cache
def _quiet(kind: type) -> Any:
    """CuPy's stream, whose destructor says nothing where the constructor failed.

    Once the GPU is lost the constructor raises before it sets what the destructor asks for: CuPy
    13's for `ptr`, 14's first for an owner elsewhere. They find here that nothing is to be freed.
    """
    return type("Stream", (kind,), {"ptr": 0, "_foreign_stream_ref": None})


def new_stream(priority: int | None = None) -> Any:
    """A CuPy stream that does not wait for the default one.

    Work of a lower `priority` number comes first; CuPy 13's streams have none.
    """
    import cupy

    how = {} if int(cupy.__version__.partition(".")[0]) < 14 else {"priority": priority}
    return _quiet(cupy.cuda.Stream)(non_blocking=True, **how)


class Graph:
    """`calls` calls of `work`, one after the other, recorded on a stream of their own.

    `branches` are other streams that `work` queues on, idle now: in the graph they begin where it
    begins, and it ends when all of them have. Raises RuntimeError with the reason where something
    in `work` cannot be recorded. What `work` needs (compiled kernels, workspaces) must be there
    already: nothing is allocated while it is recorded.
    """

    def __init__(self, work: Callable[[], Any], calls: int, branches: Sequence[Any] = ()) -> None:
        import cupy

        self.stream = new_stream()
        cupy.cuda.get_current_stream().synchronize()
        with self.stream:
            self.stream.begin_capture()
            try:
                self._order(self.stream, branches)
                for _ in range(calls):
                    work()
                for branch in branches:
                    self._order(branch, [self.stream])
            except BaseException as error:
                with contextlib.suppress(Exception):
                    self.stream.end_capture()
                if not isinstance(error, Exception):
                    raise
                reason = (str(error).splitlines() or [""])[0]
                raise RuntimeError(reason or type(error).__name__) from error
            self._graph = self.stream.end_capture()

    @staticmethod
    def _order(before: Any, streams: Sequence[Any]) -> None:
        """Make what is queued on `streams` from now on wait for what `before` holds."""
        import cupy

        event = cupy.cuda.Event(disable_timing=True)
        event.record(before)
        for stream in streams:
            stream.wait_event(event)

    def launch(self) -> None:
        """Queue all calls on the current stream."""
        self._graph.launch()

    def launch_alone(self) -> None:
        """Queue all calls on the stream that they were recorded on."""
        self._graph.launch(self.stream)


class TorchGraph:
    """The same of calls of PyTorch, which records them itself: its allocator has to know.

    `stream` is CuPy's name for the stream of PyTorch's that it is launched on.
    """

    def __init__(self, work: Callable[[], Any], calls: int) -> None:
        import cupy

        torch = importlib.import_module("torch")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(calls):
                work()
        self.stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)

    def launch(self) -> None:
        """Queue all calls on PyTorch's current stream."""
        self._graph.replay()
