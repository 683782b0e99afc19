"""Device and pinned host memory, and workspace sizes."""

from __future__ import annotations

from math import prod
from typing import Any

from lenetgpu.gpu.faults import lacks_memory

WORKSPACE_BYTES = 1 << 30
CONSTANT_BYTES = 64 << 10
UNIT_BYTES = 16
"""A kernel's bulk copies are of whole units of so many bytes, from a multiple of them on."""


def in_units(size: int) -> int:
    """The bytes of the units that hold `size` bytes, of which the first begins one."""
    return -(-size // UNIT_BYTES) * UNIT_BYTES


def images_within(batch: int, bytes_per_image: int, limit: int = WORKSPACE_BYTES) -> int:
    """How many of `batch` images fit into `limit` bytes of workspace, at least one."""
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
