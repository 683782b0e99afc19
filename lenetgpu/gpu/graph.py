"""Streams, and CUDA graphs: calls recorded once, launched together without host overhead."""

import contextlib
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.errors import first_line


@cache
def _quiet(kind: type) -> Any:
    """Return a CuPy stream class whose destructor can run after its constructor failed."""
    return type("Stream", (kind,), {"ptr": 0, "_foreign_stream_ref": None})


def new_stream(priority: int | None = None) -> Any:
    """Return a CuPy stream that does not wait for the default one; low `priority` numbers first."""
    # CuPy 13's streams have no priority
    options = {} if int(cupy.__version__.partition(".")[0]) < 14 else {"priority": priority}
    return _quiet(cupy.cuda.Stream)(non_blocking=True, **options)


class Graph:
    """`calls` consecutive calls of `work`, recorded on a stream of their own.

    `branches` are other streams, idle now, on which `work` queues: in the graph they begin with
    `work`, and it ends when all of them have. Raises RuntimeError with the reason if `work` cannot
    be recorded. Recording allocates nothing: kernels and workspaces must exist.
    """

    def __init__(self, work: Callable[[], Any], calls: int, branches: Sequence[Any] = ()) -> None:
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
                raise RuntimeError(first_line(error)) from error
            self._graph = self.stream.end_capture()

    @staticmethod
    def _order(before: Any, streams: Sequence[Any]) -> None:
        """Make future work on `streams` wait for the work queued on `before`."""
        event = cupy.cuda.Event(disable_timing=True)
        event.record(before)
        for stream in streams:
            stream.wait_event(event)

    def launch(self) -> None:
        """Queue all calls on the current stream."""
        self._graph.launch()

    def launch_alone(self, stream: Any = None) -> None:
        """Queue all calls on `stream`; None: that on which they were recorded."""
        self._graph.launch(self.stream if stream is None else stream)


class TorchGraph:
    """`Graph` for calls of PyTorch; `stream` is CuPy's view of the stream of its launches."""

    def __init__(self, work: Callable[[], Any], calls: int) -> None:
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
