"""What a stream of images asks of the current GPU, through CuPy; tests put another in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from lenetgpu.gpu.faults import release
from lenetgpu.gpu.graph import Graph, new_stream
from lenetgpu.gpu.workspace import pinned_empty

_PAGE_LOCKED = 1


class Cuda:
    """Streams, events, copies, graphs and memory."""

    def __init__(self) -> None:
        import cupy

        self._cupy, self._runtime = cupy, cupy.cuda.runtime

    def stream(self) -> Any:
        """A stream that does not wait for the default one."""
        return new_stream()

    def event(self) -> Any:
        """An event without a time."""
        return self._cupy.cuda.Event(disable_timing=True)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """A block whose launches go to `stream`."""
        current: AbstractContextManager[Any] = stream
        return current

    def current(self) -> Any:
        """The current stream."""
        return self._cupy.cuda.get_current_stream()

    def record(self, event: Any, stream: Any) -> None:
        """`event` is what `stream` holds now."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """What `stream` is given from now on waits for `event`."""
        stream.wait_event(event)

    def copy(self, to: Any, source: Any, stream: Any) -> None:
        """Queue a copy between an array on the device and a page-locked one of as many bytes."""
        to_at, from_at = (
            array.data.ptr if isinstance(array, self._cupy.ndarray) else array.ctypes.data
            for array in (to, source)
        )
        inward = isinstance(to, self._cupy.ndarray)
        kind = self._runtime.memcpyHostToDevice if inward else self._runtime.memcpyDeviceToHost
        size = source.nbytes if inward else to.nbytes
        self._runtime.memcpyAsync(to_at, from_at, size, kind, stream.ptr)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised array on the device."""
        return self._cupy.empty(shape, dtype)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised page-locked array in host memory."""
        return pinned_empty(shape, dtype)

    def mapped(self, array: Any) -> Any:
        """A page-locked array as kernels see it, where it lies."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(
            array.ctypes.data, array.nbytes, array, self._runtime.getDevice()
        )
        return self._cupy.ndarray(array.shape, array.dtype, cuda.MemoryPointer(memory, 0))

    def is_pinned(self, address: int, size: int) -> bool:
        """Return whether host memory is page-locked, at its first byte and its last of `size`."""
        ask = self._runtime.pointerGetAttributes
        last = address + size - 1
        return ask(address).type == _PAGE_LOCKED and (size <= 1 or ask(last).type == _PAGE_LOCKED)

    def record_graph(self, work: Callable[[], None], streams: Sequence[Any]) -> Graph:
        """`work`, which queues on `streams`, as one graph; RuntimeError where it cannot be."""
        return Graph(work, 1, streams)

    def release(self) -> None:
        """Give the memory that nobody holds back to the driver."""
        release()
