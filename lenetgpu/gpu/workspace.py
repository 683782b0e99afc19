"""Device and pinned host memory, and workspace sizes."""

from __future__ import annotations

from math import prod
from typing import Any

from lenetgpu.gpu.faults import lacks_memory

WORKSPACE_BYTES = 1 << 30
CONSTANT_BYTES = 64 << 10


def in_units(size: int) -> int:
    """`size` in whole units of 16 bytes, as a kernel's bulk copies are."""
    return -(-size // 16) * 16


def images_within(batch: int, bytes_per_image: int, limit: int = WORKSPACE_BYTES) -> int:
    """The number of images, of `batch`, that fit into `limit` bytes, at least one."""
    return max(1, min(batch, limit // max(1, bytes_per_image)))


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Uninitialised page-locked NumPy array, which the copy engine reads at full speed.

    Its memory is the runtime's own (`cudaHostAlloc`) and goes back when nothing views it any more:
    CuPy's pool would keep it until the process ends. It is of whole units.
    """
    import numpy as np
    from cupy.cuda import PinnedMemory, PinnedMemoryPointer

    kind = np.dtype(dtype)
    memory = PinnedMemory(max(1, in_units(prod(shape) * kind.itemsize)))
    return np.ndarray(shape, kind, PinnedMemoryPointer(memory, 0))


def host_empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Uninitialised NumPy array, page-locked where the system gives such memory."""
    import numpy as np

    try:
        return pinned_empty(shape, dtype)
    except Exception as error:
        if not lacks_memory(error):
            raise
    return np.empty(shape, dtype)


def copy_to_constant(address: int, array: Any) -> None:
    """Queue a copy of device `array` to a module's constant memory on the current stream."""
    import cupy

    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    kind = runtime.memcpyDeviceToDevice
    runtime.memcpyAsync(address, array.data.ptr, array.nbytes, kind, stream.ptr)
