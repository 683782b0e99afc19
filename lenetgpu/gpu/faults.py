"""Meanings of a GPU's errors: no memory, after which less is tried, or a lost context.

Nobody imports CuPy to ask: its errors are known by their names and numbers.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from lenetgpu.errors import LenetError

_Made = TypeVar("_Made")

OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation` of the runtime, `CUDA_ERROR_OUT_OF_MEMORY` of the driver."""
_NO_MEMORY = {
    "CUDARuntimeError": (OUT_OF_MEMORY,),
    "CUDADriverError": (OUT_OF_MEMORY,),
    "CUBLASError": (1, 3),  # CUBLAS_STATUS_NOT_INITIALIZED: no room for its context; ALLOC_FAILED
    "CuFFTError": (2,),  # CUFFT_ALLOC_FAILED
    "CuDNNError": (2, 4000, 4001, 4002, 4003),  # CUDNN_STATUS_ALLOC_FAILED, and since version 9
}
_WORDS = ("ALLOC_FAILED", "ALLOCATION_FAILED")
_LITTLE_BYTES = 256 << 20
_LOST = {
    214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    220: "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    227: "CUDA_ERROR_CONTAINED",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT",
    709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    710: "CUDA_ERROR_ASSERT",
    714: "CUDA_ERROR_HARDWARE_STACK_ERROR",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    717: "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    718: "CUDA_ERROR_INVALID_PC",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    721: "CUDA_ERROR_TENSOR_MEMORY_LEAK",
}
"""After these every call in the process answers the same; the runtime's numbers are the same."""

last_queued: deque[Any] = deque(maxlen=1)
"""The kernel that was queued last, for the sentence: errors come up behind it."""
_said: list[str] = []


def _chain(error: BaseException | None) -> Iterator[tuple[BaseException, str, Any]]:
    """An error and what it was raised from, each with its class's name and its number."""
    while error is not None:
        status = getattr(error, "status", getattr(error, "result", None))
        yield error, type(error).__name__, status
        error = error.__cause__


def _refused(error: BaseException, name: str, status: Any) -> bool:
    if isinstance(error, MemoryError) or name == "OutOfMemoryError":  # PyTorch's is none
        return True
    if name == "CuFFTError" and status == 5:  # CUFFT_INTERNAL_ERROR: for want of memory too
        return _little_left()
    known = _NO_MEMORY.get(name, ())
    return status in known or (bool(known) and any(word in str(error) for word in _WORDS))


def _little_left() -> bool:
    """True if the GPU has so little free memory that a library may lack it."""
    cupy: Any = sys.modules.get("cupy")
    if not hasattr(cupy, "cuda"):
        return False
    try:
        return bool(cupy.cuda.runtime.memGetInfo()[0] < _LITTLE_BYTES)
    except Exception:  # a GPU that does not answer lacks more than memory
        return False


def lacks_memory(error: BaseException) -> bool:
    """True if `error`, or its cause, says that memory was refused, by whomever."""
    return any(_refused(*found) for found in _chain(error))


def loses_context(error: BaseException) -> bool:
    """True if `error`, or its cause, says that the process can use no GPU any more.

    What it is is kept, and what destructors raise about it from now on is not printed.
    """
    cuda = ("CUDARuntimeError", "CUDADriverError")
    return any(name in cuda and note_lost(status) for _, name, status in _chain(error))


def note_lost(status: Any) -> bool:
    """True if the runtime's or driver's `status` says so; it is kept like such an error."""
    if status in _LOST and not _said:
        queued = f", the kernel queued last was {last_queued[0].entry}" if last_queued else ""
        _said.append(
            f"GPU: expected its kernels to end, found {_LOST[status]} ({status}){queued}; "
            "nothing more can run on it in this process, start another"
        )
        silence()
    return status in _LOST


def lost() -> str:
    """The sentence of the error that took this process its GPU, or nothing."""
    return _said[0] if _said else ""


def silence() -> None:
    """Print no error of CUDA's that a destructor raises: without a context all of them do.

    As Python ends there are destructors that heed no hook: stderr then leads to nowhere.
    """
    atexit.register(_hush)
    shown = sys.unraisablehook

    def hook(raised: Any) -> None:
        if not type(raised.exc_value).__name__.startswith(("CUDA", "CUBLAS", "CuFFT")):
            shown(raised)

    sys.unraisablehook = hook


def _hush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)


def sentence(error: BaseException) -> str:
    """The sentence for a lack of memory or a lost context; empty for other errors."""
    if loses_context(error):
        return lost()
    if not lacks_memory(error):
        return ""
    return f"memory: expected enough for this job, found: {reason(error)}; take less at once"


def reason(error: BaseException) -> str:
    """The first line of what `error` says."""
    return (str(error).splitlines() or [""])[0] or "no more memory"


def tell(error: Exception) -> None:
    """Raise the LenetError of `sentence` where there is one; one that has its own keeps it."""
    said = sentence(error)
    if said and (lost() or not isinstance(error, LenetError)):
        raise LenetError(said) from error


@contextmanager
def telling() -> Iterator[None]:
    """A block whose lack of memory or lost context is a LenetError."""
    try:
        yield
    except Exception as error:
        tell(error)
        raise


def release() -> None:
    """Give the GPU's and page-locked memory that nobody holds back to the driver."""
    gc.collect()  # cycles of what was tried hold some, and `infer` has it disabled
    cupy: Any = sys.modules.get("cupy")
    if hasattr(cupy, "get_default_memory_pool"):
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def within_memory(make: Callable[[int], _Made], most: int, what: str) -> tuple[_Made, int]:
    """`make(n)` and n: `most`, or where memory does not suffice half as many, and so on.

    What nobody holds is given back in between, also before one image is tried again. LenetError,
    which begins with `what`, where memory does not suffice for one.
    """
    size, last = most, False
    while True:
        try:
            return make(size), size
        except Exception as error:
            if not lacks_memory(error):
                raise
            refusal = reason(error)
        if last:
            raise LenetError(f"{what}: expected memory for one image, found: {refusal}")
        release()  # out of the except block, which keeps what was tried
        last, size = size == 1, -(-size // 2)
