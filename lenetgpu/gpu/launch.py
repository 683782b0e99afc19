"""Launches of compiled kernels on the current device, their record and their occupancy."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.device import current_arch, driver
from lenetgpu.gpu.faults import OUT_OF_MEMORY, last_queued, lost, note_lost
from lenetgpu.gpu.machines import current
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.occupancy import Demand, explain_waves, residency

Dim = tuple[int, ...]
_PLAIN_SHARED_BYTES = 48 << 10


@dataclass(frozen=True)
class Launch:
    """A kernel launch: grid, block, and dynamic shared memory in bytes."""

    kernel: Kernel
    grid: Dim
    block: Dim
    shared: int


_recorders: list[list[Launch]] = []


@contextmanager
def record() -> Iterator[list[Launch]]:
    """Collect the launches made inside the block."""
    launches: list[Launch] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        _recorders.remove(launches)


def load_module(kernel: Kernel) -> Any:
    """Load a new module of `kernel` with its own constant memory (CuPy's RawModule shares it)."""
    from cupy.cuda.function import Module

    module = Module()
    module.load(nvrtc.compile_kernel(kernel, current_arch()).binary)
    return module


_allowed: dict[int, int] = {}


def _allow_shared(function: int, shared: int) -> None:
    """Allow `function` to use `shared` bytes of dynamic shared memory; CUDA's default is 48 KiB."""
    if shared <= _allowed.get(function, _PLAIN_SHARED_BYTES):
        return
    from cupy.cuda import driver

    attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.funcSetAttribute(function, attribute, shared)
    _allowed[function] = shared


@cache
def _function(kernel: Kernel, device: int) -> Any:
    return load_module(kernel).get_function(kernel.entry)


def function(kernel: Kernel) -> Any:
    """Return the loaded function of `kernel` on the current device, compiled on first use."""
    import cupy

    return _function(kernel, cupy.cuda.runtime.getDevice())


class _Attribute(ctypes.Structure):
    """`CUlaunchAttribute` of cuda.h with a flag as its value."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("flag", ctypes.c_int),
                ("rest", ctypes.c_int * 15)]  # fmt: skip


class _Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint)]  # fmt: skip


_SERIALISED = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


@cache
def _can_overlap(arch: str) -> bool:
    return int(arch[3:].rstrip("a")) >= 90 and hasattr(driver(), "cuLaunchKernelEx")


class Packed:
    """A launch with its arguments in memory, which can be repeated on any stream.

    `values` are the arguments as ctypes objects, addresses as integers. With `overlap`, its blocks
    may start before the previous kernel ends.
    """

    def __init__(
        self,
        function: int,
        grid: Dim,
        block: Dim,
        args: tuple[Any, ...],
        shared: int,
        overlap: bool = True,
    ) -> None:
        import cupy
        import numpy as np

        def held(arg: Any) -> Any:
            if isinstance(arg, cupy.ndarray):
                return ctypes.c_uint64(arg.data.ptr)
            if isinstance(arg, int):
                return ctypes.c_int64(arg)
            return np.ctypeslib.as_ctypes_type(arg.dtype)(arg.item())  # the same bytes

        self.values: list[Any] = list(map(held, args))
        places = map(ctypes.addressof, self.values)
        sizes = [(ctypes.c_uint * 3)(*(*dim, 1, 1)[:3]) for dim in (grid, block)]
        allowed = _Attribute(_SERIALISED, 0, 1)
        self._config = _Config(*sizes, shared, None, ctypes.pointer(allowed), int(overlap))
        self._rest = ctypes.c_void_p(function), (ctypes.c_void_p * len(args))(*places), None

    def launch(self, stream: int) -> None:
        """Launch on the CUDA stream with handle `stream`; its device must be current."""
        self._config.stream = stream
        status = driver().cuLaunchKernelEx(ctypes.byref(self._config), *self._rest)
        if status != 0:
            raise _failure(status)


def _failure(status: int) -> Exception:
    name = ctypes.c_char_p()
    driver().cuGetErrorName(status, ctypes.byref(name))
    said = (name.value or b"error %d" % status).decode()
    sentence = f"launching a kernel: the driver answers {said}"
    if status == OUT_OF_MEMORY:
        return MemoryError(sentence)
    return LenetError(lost() if note_lost(status) else sentence)


class _Thread(threading.local):
    traced: list[tuple[Kernel, Packed]] | None = None


_thread = _Thread()


class Repeat:
    """The launches of `work`, made once and repeated for other arrays.

    `work` runs during construction. `arrays` are device arrays as (first address, bytes):
    addresses within them move with them, all other arguments stay. The owner serialises threads,
    and makes sure that `work` queues nothing but launches.
    """

    def __init__(self, work: Callable[[], object], *arrays: tuple[int, int]) -> None:
        calls: list[tuple[Kernel, Packed]] = []
        _thread.traced = calls
        try:
            work()
        finally:
            _thread.traced = None
        self._kernel, self._calls = calls[-1][0], [packed for _, packed in calls]
        self.kernels = [kernel for kernel, _ in calls]
        self._moving = []
        for packed in self._calls:
            for value in packed.values:
                for index, (first, size) in enumerate(arrays):
                    if isinstance(value, ctypes.c_uint64) and 0 <= value.value - first < size:
                        self._moving.append((value, index, value.value - first))

    def run(self, at: tuple[int, ...], stream: int) -> None:
        """Launch all for arrays at addresses `at` on the stream with handle `stream`.

        The stream's device is current.
        """
        for value, index, offset in self._moving:
            value.value = at[index] + offset
        last_queued.append(self._kernel)
        for packed in self._calls:
            packed.launch(stream)


def launch(
    kernel: Kernel,
    grid: Dim,
    block: Dim,
    args: tuple[Any, ...],
    shared: int = 0,
    loaded: Any = None,
    overlap: bool = False,
) -> None:
    """Launch `kernel` on the current stream; `loaded` is a function of a separate module.

    `overlap` lets its blocks start while the previous kernel is ending (sm_90 and later): the
    kernel must call `ptx::wait_for_grid` before it touches memory that others read or write.
    """
    call = loaded if loaded is not None else function(kernel)
    _allow_shared(call.ptr, shared)
    last_queued.append(kernel)
    import cupy  # a launch is short: faster than through lenetgpu.arrays

    overlap = overlap and _can_overlap(current_arch())
    if overlap or _thread.traced is not None:
        packed = Packed(call.ptr, grid, block, args, shared, overlap)
        packed.launch(cupy.cuda.get_current_stream().ptr)
        if _thread.traced is not None:
            _thread.traced.append((kernel, packed))
    else:
        call(grid, block, args, shared_mem=shared)
    for launches in _recorders:
        launches.append(Launch(kernel, grid, block, shared))


def blocks_for(count: int, per_block: int) -> int:
    """Return the number of blocks that cover `count` items."""
    return -(-count // per_block)


def demand_of(launched: Launch) -> Demand:
    """Return the resource demand of a recorded launch's block, from ptxas' report."""
    used = nvrtc.compile_kernel(launched.kernel, current_arch()).resources
    return Demand(used.registers, prod(launched.block), used.shared_bytes + launched.shared)


def binding_limit(launched: Launch) -> str:
    """Return the resource that limits the blocks per SM of a recorded launch."""
    return residency(demand_of(launched), current().limits).limit


def active_blocks(launched: Launch) -> int:
    """Return the blocks per SM of a recorded launch, from the driver."""
    from cupy.cuda import driver

    blocks_of, at = driver.occupancyMaxActiveBlocksPerMultiprocessor, function(launched.kernel).ptr
    return int(blocks_of(at, prod(launched.block), launched.shared))


def occupancy(launched: Launch) -> float:
    """Return resident threads over the SM's maximum for a recorded launch, 0 to 1."""
    import cupy

    limit = int(cupy.cuda.Device().attributes["MaxThreadsPerMultiProcessor"])
    return active_blocks(launched) * prod(launched.block) / limit


def explain_launch(
    launched: Launch, per_image: Fraction | int | None = None
) -> list[tuple[str, str]]:
    """Return `explain_waves` of a recorded launch on the current device."""
    machine, demand, grid = current(), demand_of(launched), prod(launched.grid)
    return explain_waves(demand, machine.limits, machine.multiprocessors, grid, per_image)
