"""NumPy's matrix products on the threads of the other CPU variants.

NumPy's BLAS has threads of its own. On a loaded machine they wait for each other in every small
product of a batch, which takes ten times as long as one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.cpu.threads import parallel_ranges

_LEAST_FLOP = 1 << 22  # of a part: handing it to a thread costs about 0.1 ms
_lock, _threads = Lock(), [0]
_earlier: list[int] = []


@cache
def _libraries() -> list[Any]:
    """Return threadpoolctl's controllers of the BLAS libraries in this process."""
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Bind BLAS to the calling threads while any thread is in such a block; then undo it."""
    with _lock:
        _threads[0] += 1
        if _threads[0] == 1:
            _earlier[:] = [library.num_threads for library in _libraries()]
            for library in _libraries():
                library.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _threads[0] -= 1
            if not _threads[0]:
                for library, count in zip(_libraries(), _earlier, strict=True):
                    library.set_num_threads(count)


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return a @ b, both of 2 or of 3 dimensions, in `out`; `thread_count()` threads compute it."""
    if out is None:
        out = np.empty((*a.shape[:-1], b.shape[-1]), np.result_type(a, b))
    axis = max(range(-1, -out.ndim - 1, -1), key=lambda axis: out.shape[axis])
    count, flop, errors = out.shape[axis], 2 * out.size * a.shape[-1], np.geterr()

    def part(lo: int, hi: int) -> None:
        cut_a, cut_b, cut_out = (
            np.moveaxis(np.moveaxis(x, axis, 0)[lo:hi], 0, axis) if axis != shared else x
            for x, shared in ((a, -1), (b, -2), (out, None))
        )
        with np.errstate(**errors):  # the caller's, in each thread
            np.matmul(cut_a, cut_b, out=cut_out)

    with one_blas_thread():
        parallel_ranges(count, part, max(1, _LEAST_FLOP * count // max(1, flop)))
    return out
