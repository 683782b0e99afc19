"""Device and pinned host memory, and workspace sizes."""

from math import prod
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.faults import lacks_memory

WORKSPACE_BYTES = 1 << 30
CONSTANT_BYTES = 64 << 10


def in_units(size: int) -> int:
    """Round `size` up to whole units of 16 bytes, as kernels' bulk copies require."""
    return -(-size // 16) * 16


def images_within(batch: int, bytes_per_image: int, limit: int = WORKSPACE_BYTES) -> int:
    """Return the number of images, at most `batch` and at least one, that fit in `limit` bytes."""
    return max(1, min(batch, limit // max(1, bytes_per_image)))


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised page-locked NumPy array, in memory of a multiple of 16 bytes."""
    from cupy.cuda import PinnedMemory, PinnedMemoryPointer

    kind = np.dtype(dtype)
    # freed with the last view, unlike memory of CuPy's pool
    memory = PinnedMemory(max(1, in_units(prod(shape) * kind.itemsize)))
    return np.ndarray(shape, kind, PinnedMemoryPointer(memory, 0))


def host_empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised NumPy array, page-locked if the system allows it."""
    try:
        return pinned_empty(shape, dtype)
    except Exception as error:
        if not lacks_memory(error):
            raise
    return np.empty(shape, dtype)


def copy_to_constant(address: int, array: Any) -> None:
    """Queue a copy of device `array` to a module's constant memory on the current stream."""
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    kind = runtime.memcpyDeviceToDevice
    runtime.memcpyAsync(address, array.data.ptr, array.nbytes, kind, stream.ptr)
