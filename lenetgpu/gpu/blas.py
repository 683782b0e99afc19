"""cuBLAS products: SGEMM at full fp32 precision, GemmEx in fp16."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import Any


@contextmanager
def _shared_handle() -> Iterator[int]:
    """Yield CuPy's cuBLAS handle of this thread, its pointer mode set to host."""
    from cupy.cuda import cublas, device

    handle = device.get_cublas_handle()
    previous = cublas.getPointerMode(handle)
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    try:
        yield handle
    finally:
        cublas.setPointerMode(handle, previous)


@cache
def _search_handle(device: int, thread: int) -> int:
    """Return one thread's cuBLAS handle that leaves results on `device`, unlike CuPy's."""
    from cupy.cuda import cublas

    handle: int = cublas.create()
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_DEVICE)
    return handle


def half_gemm(a: Any, b: Any, out: Any) -> None:
    """Compute out (m, n) float32 = a (m, k) @ b (k, n), both float16, fp32 sums, by GemmEx."""
    import numpy as np
    from cupy.cuda import cublas, runtime

    (m, k), n = a.shape, b.shape[1]
    one, zero = np.ones((), np.float32), np.zeros((), np.float32)
    none, half, single = cublas.CUBLAS_OP_N, runtime.CUDA_R_16F, runtime.CUDA_R_32F
    with _shared_handle() as handle:
        cublas.gemmEx(
            handle, none, none, n, m, k, one.ctypes.data, b.data.ptr, half, n, a.data.ptr, half, k,
            zero.ctypes.data, out.data.ptr, single, n, cublas.CUBLAS_COMPUTE_32F,
            cublas.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip


def exact_sgemm(a: Any, b: Any, out: Any) -> None:
    """Compute out (m, n) = a (m, k) @ b (k, n), float32, row-major, by SGEMM with TF32 off."""
    import numpy as np
    from cupy.cuda import cublas, get_current_stream

    (m, k), n = a.shape, b.shape[1]
    one, zero = np.ones((), np.float32), np.zeros((), np.float32)
    none = cublas.CUBLAS_OP_N
    with _shared_handle() as handle:
        cublas.setStream(handle, get_current_stream().ptr)
        previous = cublas.getMathMode(handle)
        cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)
        cublas.sgemm(  # column-major: out^T = b^T a^T on the same memory
            handle, none, none, n, m, k, one.ctypes.data, b.data.ptr, n, a.data.ptr, k,
            zero.ctypes.data, out.data.ptr, n,
        )  # fmt: skip
        cublas.setMathMode(handle, previous)


def largest_of_rows(rows: Any, found: Any) -> None:
    """Set found[n] = 1 + the first index of the largest magnitude of rows[n], by cuBLAS Idamax.

    `rows` is (n, k) float64. `found` is (n,) int64 and must be zero before its first use, because
    some builds of CuPy write only 4 bytes of each element.
    """
    from cupy.cuda import cublas, get_current_stream, runtime

    handle = _search_handle(runtime.getDevice(), get_ident())
    cublas.setStream(handle, get_current_stream().ptr)
    n, k = rows.shape
    row, result = rows.data.ptr, found.data.ptr
    for _ in range(n):
        cublas.idamax(handle, k, row, 1, result)
        row, result = row + k * rows.itemsize, result + found.itemsize
