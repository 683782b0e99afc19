"""Classification of GPU errors: out of memory, after which less is tried, or a lost context.

This module does not import CuPy: errors are recognized by class name and number.
"""

import atexit
import gc
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from lenetgpu.errors import LenetError, first_line

_Made = TypeVar("_Made")

NO_MEMORY = "no more memory"  # the reason if an error has no message
OUT_OF_MEMORY = 2  # runtime: cudaErrorMemoryAllocation; driver: CUDA_ERROR_OUT_OF_MEMORY
_NO_MEMORY = {
    "CUDARuntimeError": (OUT_OF_MEMORY,),
    "CUDADriverError": (OUT_OF_MEMORY,),
    "CUBLASError": (1, 3),  # NOT_INITIALIZED (no memory for its context), ALLOC_FAILED
    "CuFFTError": (2,),  # ALLOC_FAILED
    "CuDNNError": (2, 4000, 4001, 4002, 4003),  # ALLOC_FAILED before and since version 9
}
_WORDS = ("ALLOC_FAILED", "ALLOCATION_FAILED")
_LITTLE_BYTES = 256 << 20
# After these errors of the runtime or driver every call in the process fails the same way.
_ERRORS = json.loads(Path(__file__).with_suffix(".json").read_text())
_LOST: dict[int, str] = {int(number): name for number, name in _ERRORS.items()}
last_queued: deque[Any] = deque(maxlen=1)  # a kernel, for the message: errors surface after it
_lost_message: list[str] = []


def _chain(error: BaseException | None) -> Iterator[tuple[BaseException, str, Any]]:
    """Yield an error and its causes, each with its class name and error number."""
    while error is not None:
        status = getattr(error, "status", getattr(error, "result", None))
        yield error, type(error).__name__, status
        error = error.__cause__


def _refused(error: BaseException, name: str, status: Any) -> bool:
    if isinstance(error, MemoryError) or name == "OutOfMemoryError":  # the latter is PyTorch's
        return True
    if name == "CuFFTError" and status == 5:  # CUFFT_INTERNAL_ERROR, also when out of memory
        return _little_left()
    statuses = _NO_MEMORY.get(name, ())
    return status in statuses or (bool(statuses) and any(word in str(error) for word in _WORDS))


def _little_left() -> bool:
    """Return True if the GPU has so little free memory that a library may run out."""
    cupy: Any = sys.modules.get("cupy")
    if not hasattr(cupy, "cuda"):
        return False
    try:
        return bool(cupy.cuda.runtime.memGetInfo()[0] < _LITTLE_BYTES)
    except Exception:  # the GPU does not answer: not a memory problem
        return False


def lacks_memory(error: BaseException) -> bool:
    """Return True if `error` or one of its causes is a failed allocation in any library."""
    return any(_refused(*cause) for cause in _chain(error))


def loses_context(error: BaseException) -> bool:
    """Return True if `error` or a cause means a lost context, and record the first such error."""
    cuda = ("CUDARuntimeError", "CUDADriverError")
    return any(name in cuda and note_lost(status) for _, name, status in _chain(error))


def note_lost(status: Any) -> bool:
    """Return True if `status` of the runtime or driver means a lost context, and record it."""
    if status in _LOST and not _lost_message:
        queued = f", the kernel queued last was {last_queued[0].entry}" if last_queued else ""
        _lost_message.append(
            f"GPU: expected its kernels to end, found {_LOST[status]} ({status}){queued}; "
            "nothing more can run on it in this process, start another"
        )
        silence()
    return status in _LOST


def lost() -> str:
    """Return the message of the error that lost this process its GPU, or ""."""
    return _lost_message[0] if _lost_message else ""


def silence() -> None:
    """Suppress CUDA errors in destructors: without a context all of them fail."""
    atexit.register(_hush)  # some destructors at interpreter exit bypass the hook
    previous = sys.unraisablehook

    def hook(raised: Any) -> None:
        if not type(raised.exc_value).__name__.startswith(("CUDA", "CUBLAS", "CuFFT")):
            previous(raised)

    sys.unraisablehook = hook


def _hush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)


def sentence(error: BaseException) -> str:
    """Return the message for exhausted memory or a lost context; "" for other errors."""
    if loses_context(error):
        return lost()
    if not lacks_memory(error):
        return ""
    reason = first_line(error, NO_MEMORY)
    return f"memory: expected enough for this job, found: {reason}; use a smaller batch"


def tell(error: Exception) -> None:
    """Raise LenetError with the message of `sentence`, if any, unless `error` is one already."""
    message = sentence(error)
    if message and (lost() or not isinstance(error, LenetError)):
        raise LenetError(message) from error


@contextmanager
def telling() -> Iterator[None]:
    """Convert exhausted memory or a lost context within the block to LenetError."""
    try:
        yield
    except Exception as error:
        tell(error)
        raise


def release() -> None:
    """Return unused GPU and page-locked memory in CuPy's pools to the driver."""
    gc.collect()  # reference cycles hold memory, and `infer` disables the collector
    cupy: Any = sys.modules.get("cupy")
    if hasattr(cupy, "get_default_memory_pool"):
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def within_memory(make: Callable[[int], _Made], most: int, what: str) -> tuple[_Made, int]:
    """Return `make(n)` and n, where n is `most`, halved each time that memory does not suffice.

    Unused memory is released between attempts, and one image is tried twice. Raises LenetError,
    with a message that begins with `what`, if memory does not suffice for one image.
    """
    size, last = most, False
    while True:
        try:
            return make(size), size
        except Exception as error:
            if not lacks_memory(error):
                raise
            refusal = first_line(error, NO_MEMORY)
        if last:
            raise LenetError(f"{what}: expected memory for one image, found: {refusal}")
        release()  # outside the except block, whose traceback holds memory
        last, size = size == 1, -(-size // 2)
