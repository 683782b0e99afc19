"""What a stream of images asks of a GPU: streams, events, copies, graphs, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lenetgpu.gpu.faults import lacks_memory, release
from lenetgpu.gpu.graph import Graph, new_stream
from lenetgpu.gpu.workspace import pinned_empty


class Recording(Protocol):
    """A recorded graph and the stream that it is launched on."""

    stream: Any

    def launch_alone(self) -> None:
        """Queue it on that stream."""


class Device(Protocol):
    """A GPU, or what a test puts in its place.

    Streams have `synchronize()`, and are made current by `on`; arrays on the device are those that
    a pipeline takes and returns.
    """

    def stream(self) -> Any:
        """A stream that does not wait for the default one."""

    def event(self) -> Any:
        """A place in a stream to wait for, with `synchronize()`."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """What is launched inside goes to `stream`."""

    def record(self, event: Any, stream: Any) -> None:
        """`event` is what `stream` holds now."""

    def wait(self, stream: Any, event: Any) -> None:
        """What `stream` is given from now on waits for `event`."""

    def copy(self, to: Any, source: Any, stream: Any) -> None:
        """Queue a copy between an array on the device and a page-locked one of as many bytes."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised array on the device."""

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised page-locked array in host memory."""

    def mapped(self, array: Any) -> Any:
        """A page-locked array as kernels see it, where it lies."""

    def is_pinned(self, address: int, size: int) -> bool:
        """Whether host memory is page-locked, at its first byte and its last of `size`."""

    def record_graph(self, work: Callable[[], None], streams: Sequence[Any]) -> Recording:
        """`work`, which queues on `streams`, as one graph; RuntimeError where it cannot be."""

    def lacks_memory(self, error: BaseException) -> bool:
        """Whether `error` says that memory was refused."""

    def release(self) -> None:
        """Give the memory that nobody holds back to the driver."""


_PAGE_LOCKED = 1


class Cuda:
    """The current GPU, through CuPy."""

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
        """`stream` is the current one inside."""
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
        inward = isinstance(to, self._cupy.ndarray)
        held, kind = (
            (source, self._runtime.memcpyHostToDevice)
            if inward
            else (to, self._runtime.memcpyDeviceToHost)
        )
        device, host = (to if inward else source).data.ptr, held.ctypes.data
        ends = (device, host) if inward else (host, device)
        self._runtime.memcpyAsync(*ends, held.nbytes, kind, stream.ptr)

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
        """Whether host memory is page-locked, at its first byte and its last of `size`."""
        ask = self._runtime.pointerGetAttributes
        last = address + size - 1
        return ask(address).type == _PAGE_LOCKED and (size <= 1 or ask(last).type == _PAGE_LOCKED)

    def record_graph(self, work: Callable[[], None], streams: Sequence[Any]) -> Recording:
        """`work`, which queues on `streams`, as one graph; RuntimeError where it cannot be."""
        return Graph(work, 1, streams)

    def lacks_memory(self, error: BaseException) -> bool:
        """Whether `error` says that memory was refused, on the device or page-locked."""
        return lacks_memory(error)

    def release(self) -> None:
        """Give the memory that nobody holds back to the driver."""
        release()
