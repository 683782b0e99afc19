"""Device and pinned host memory, what its refusal looks like, and workspace sizes."""

from __future__ import annotations

from math import prod
from typing import Any

WORKSPACE_BYTES = 1 << 30
CONSTANT_BYTES = 64 << 10
OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation` of the runtime, `CUDA_ERROR_OUT_OF_MEMORY` of the driver."""
_CUDA_ERRORS = {"CUDARuntimeError", "CUDADriverError"}


def lacks_memory(error: BaseException) -> bool:
    """Whether `error` says that memory was refused: the host's, page-locked or a GPU's.

    CuPy's own refusal is a MemoryError; those of the runtime and the driver are known by name, so
    that nobody imports CuPy to ask.
    """
    if isinstance(error, MemoryError):
        return True
    status: object = getattr(error, "status", None)
    return type(error).__name__ in _CUDA_ERRORS and status == OUT_OF_MEMORY


def images_within(batch: int, bytes_per_image: int, limit: int = WORKSPACE_BYTES) -> int:
    """How many of `batch` images fit into `limit` bytes of workspace, at least one."""
    return max(1, min(batch, limit // max(1, bytes_per_image)))


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Uninitialised page-locked NumPy array, which the copy engine reads at full speed.

    Its memory is the runtime's own (`cudaHostAlloc`) and goes back when nothing views it any more:
    CuPy's pool would keep it until the process ends.
    """
    import numpy as np
    from cupy.cuda import PinnedMemory, PinnedMemoryPointer

    kind = np.dtype(dtype)
    memory = PinnedMemory(max(1, prod(shape) * kind.itemsize))
    return np.ndarray(shape, kind, PinnedMemoryPointer(memory, 0))


def copy_to_constant(address: int, array: Any) -> None:
    """Queue a copy of device `array` to a module's constant memory on the current stream."""
    import cupy

    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    kind = runtime.memcpyDeviceToDevice
    runtime.memcpyAsync(address, array.data.ptr, array.nbytes, kind, stream.ptr)
