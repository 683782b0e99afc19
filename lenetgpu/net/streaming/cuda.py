"""CUDA operations of the streaming code, through CuPy; tests replace them."""

from collections.abc import Callable, Sequence
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
        """Return a new non-blocking stream."""
        return new_stream()

    def event(self) -> Any:
        """Return a new event without timing."""
        return self._cupy.cuda.Event(disable_timing=True)

    def current(self) -> Any:
        """Return the current stream."""
        return self._cupy.cuda.get_current_stream()

    def copy(self, to: Any, source: Any, stream: Any) -> None:
        """Queue a copy between a device array and a page-locked array of equal size."""
        to_at, from_at = (
            array.data.ptr if isinstance(array, self._cupy.ndarray) else array.ctypes.data
            for array in (to, source)
        )
        inward = isinstance(to, self._cupy.ndarray)
        kind = self._runtime.memcpyHostToDevice if inward else self._runtime.memcpyDeviceToHost
        size = source.nbytes if inward else to.nbytes
        self._runtime.memcpyAsync(to_at, from_at, size, kind, stream.ptr)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Allocate an uninitialised device array."""
        return self._cupy.empty(shape, dtype)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Allocate an uninitialised page-locked array."""
        return pinned_empty(shape, dtype)

    def mapped(self, array: Any) -> Any:
        """Return a device view of a page-locked array, for kernels that read it in place."""
        cuda, device = self._cupy.cuda, self._runtime.getDevice()
        memory = cuda.UnownedMemory(array.ctypes.data, array.nbytes, array, device)
        return self._cupy.ndarray(array.shape, array.dtype, cuda.MemoryPointer(memory, 0))

    def is_pinned(self, address: int, size: int) -> bool:
        """Return True if the first and last of `size` bytes at `address` are page-locked."""
        ask = self._runtime.pointerGetAttributes
        last = address + size - 1
        return ask(address).type == _PAGE_LOCKED and (size <= 1 or ask(last).type == _PAGE_LOCKED)

    def record_graph(self, work: Callable[[], None], streams: Sequence[Any]) -> Graph:
        """Record `work`, which queues on `streams`, as a graph, or raise RuntimeError."""
        return Graph(work, 1, streams)

    def release(self) -> None:
        """Return unused pool memory to the driver."""
        release()
