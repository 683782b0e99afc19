"""Launching compiled kernels on the current device and stream, and recording what was launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.device import current_arch
from lenetgpu.gpu.nvrtc import Kernel

Dim = tuple[int, ...]
_PLAIN_SHARED_BYTES = 48 << 10


@dataclass(frozen=True)
class Launch:
    """One kernel launch: its grid, block and dynamic shared memory in bytes."""

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
    """A fresh module of `kernel`, with constant memory of its own (CuPy's RawModule shares it)."""
    from cupy.cuda.function import Module

    module = Module()
    module.load(nvrtc.compile_kernel(kernel, current_arch()).path.read_bytes())
    return module


@cache
def _allow_shared(function: int, shared: int) -> None:
    """Let `function` take `shared` bytes of dynamic shared memory; past 48 KiB it must be asked."""
    from cupy.cuda import driver

    driver.funcSetAttribute(
        function, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared
    )


@cache
def _function(kernel: Kernel, device: int) -> Any:
    return load_module(kernel).get_function(kernel.entry)


def function(kernel: Kernel) -> Any:
    """The loaded function of `kernel` on the current device, compiled on first use."""
    import cupy

    return _function(kernel, cupy.cuda.runtime.getDevice())


def launch(
    kernel: Kernel,
    grid: Dim,
    block: Dim,
    args: tuple[Any, ...],
    shared: int = 0,
    loaded: Any = None,
) -> None:
    """Launch `kernel` on the current stream; `loaded` is a function of a module of its own."""
    call = loaded if loaded is not None else function(kernel)
    if shared > _PLAIN_SHARED_BYTES:
        _allow_shared(call.ptr, shared)
    call(grid, block, args, shared_mem=shared)
    for launches in _recorders:
        launches.append(Launch(kernel, grid, block, shared))


@cache
def _multiprocessors(device: int) -> int:
    import cupy

    count: int = cupy.cuda.Device(device).attributes["MultiProcessorCount"]
    return count


def multiprocessors() -> int:
    """Multiprocessors of the current device."""
    import cupy

    return _multiprocessors(cupy.cuda.runtime.getDevice())


def blocks_for(count: int, per_block: int) -> int:
    """Blocks that cover `count` items."""
    return -(-count // per_block)
