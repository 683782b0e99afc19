"""The available GPUs, found without importing CuPy, and the current GPU's limits."""

import ctypes
import ctypes.util
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from lenetgpu.cpu import turns
from lenetgpu.errors import LenetError
from lenetgpu.gpu import faults
from lenetgpu.store.entries import settle_cupy

INSTALL_HINT = "pip install 'lenetgpu[cuda13]' (or [cuda12], as nvidia-smi's CUDA version says)"
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU with the driver's name for it; `compute_capability` is 90 for 9.0."""

    index: int
    name: str
    compute_capability: int

    @property
    def version(self) -> str:
        """Its compute capability in NVIDIA's notation: 9.0."""
        return f"{self.compute_capability // 10}.{self.compute_capability % 10}"

    @property
    def arch(self) -> str:
        """NVRTC's architecture name; with the suffix `a` for architecture-specific instructions."""
        suffix = "a" if self.compute_capability == 90 else ""
        return f"sm_{self.compute_capability}{suffix}"


@cache
def driver() -> Any:
    """Return the initialised CUDA driver, or None if there is no driver or no GPU."""
    try:  # by file name: a search would run ldconfig, gcc and ld
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    if library.cuInit(0) != 0:
        return None
    turns.tell_children(_here)
    return library


class _Process:
    is_child = False  # forked from a process that has loaded the driver: may not use CUDA

    def forked(self) -> None:
        self.is_child = True
        faults.silence()


_here = _Process()
FORKED = (
    "device cuda: expected a process that starts with CUDA, found a child forked from one that "
    "uses it, where it cannot be used; start the child with multiprocessing's spawn, or take "
    "device cpu"
)


def usable() -> bool:
    """Return True if CUDA calls can succeed: the GPU is not lost and belongs to this process."""
    return not (_here.is_child or faults.lost())


@cache
def _listed() -> tuple[Gpu, ...]:
    cuda, count = driver(), ctypes.c_int()
    if cuda is None or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    gpus = []
    for index in range(count.value):
        handle, major, minor = (ctypes.c_int() for _ in range(3))
        name = ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(handle), index)
        cuda.cuDeviceGetName(name, len(name), handle)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
        gpus.append(Gpu(index, name.value.decode(), 10 * major.value + minor.value))
    return tuple(gpus)


_listing = threading.Lock()
_contexts: list[threading.Thread] = []


def driver_gpus() -> tuple[Gpu, ...]:
    """Return the CUDA driver's GPUs, () if there are none; raise LenetError in a forked child."""
    if _here.is_child:
        raise LenetError(FORKED)
    with _listing:
        return _listed()


def begin(wanted: str = "auto") -> None:
    """Start creating the context of `--device wanted`; `driver_gpus` and `activate` wait for it."""
    index = "0" if wanted in ("auto", "cuda") else wanted.removeprefix("cuda:")
    if index.isascii() and index.isdecimal():
        thread = threading.Thread(target=_create_context, args=(int(index),))
        _contexts.append(thread)
        thread.start()


def _create_context(index: int) -> None:
    if not _here.is_child and index < len(driver_gpus()):
        device, context, cuda = ctypes.c_int(), ctypes.c_void_p(), driver()
        if cuda.cuDeviceGet(ctypes.byref(device), index) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def cupy_installed() -> bool:
    """Return True if CuPy can be imported, without importing it."""
    return importlib.util.find_spec("cupy") is not None


def require_gpu(index: int = 0) -> Gpu:
    """Return GPU cuda:`index`; raise LenetError if it or CuPy is missing."""
    gpus = driver_gpus()
    if not gpus:
        expected = "expected an NVIDIA GPU and its driver, found none"
        raise LenetError(f"device cuda:{index}: {expected}; use --device cpu or auto")
    if index >= len(gpus):
        available = ", ".join(f"cuda:{gpu.index}" for gpu in gpus)
        raise LenetError(f"device cuda:{index}: expected one of {available}, found no such GPU")
    if not cupy_installed():
        raise LenetError(f"device cuda:{index}: requires CuPy, found none; {INSTALL_HINT}")
    return gpus[index]


@contextmanager
def libraries_by_name() -> Iterator[None]:
    """Keep imports of GPU packages in a block from running ldconfig, gcc and ld to find libdl."""
    search = ctypes.util.find_library
    named = {"dl": "libdl.so.2"} if sys.platform == "linux" else {}
    ctypes.util.find_library = lambda name: named.get(name) or search(name)
    try:
        yield
    finally:
        ctypes.util.find_library = search


@contextmanager
def _without_cutensor() -> Iterator[None]:
    """Keep CuPy 14 from loading cuBLAS, which takes 70 ms, for a cuTENSOR that is not installed."""
    try:
        from cuda import pathfinder
    except ImportError:
        yield
        return
    load, found = pathfinder.load_nvidia_dynamic_lib, importlib.util.find_spec("cutensor")

    def load_others(name: str) -> Any:
        if name == "cutensor" and found is None:
            raise pathfinder.DynamicLibNotFoundError(name)
        return load(name)

    pathfinder.load_nvidia_dynamic_lib = load_others
    try:
        yield
    finally:
        pathfinder.load_nvidia_dynamic_lib = load


def import_cupy() -> None:
    """Import CuPy, without searches for its libraries."""
    settle_cupy()
    if "cupy" not in sys.modules:
        with libraries_by_name(), _without_cutensor():
            import cupy  # noqa: F401


def activate(gpu: Gpu) -> None:
    """Make `gpu` the current device with a context, waiting for the one that `begin` started."""
    import_cupy()
    import cupy

    if _here.is_child:
        raise LenetError(FORKED)
    while _contexts:
        _contexts.pop().join()
    cupy.cuda.Device(gpu.index).use()
    cupy.cuda.runtime.free(0)


def current_arch() -> str:
    """Return NVRTC's name for the current device's architecture."""
    import cupy

    return driver_gpus()[int(cupy.cuda.runtime.getDevice())].arch


def free_bytes() -> int:
    """Return the current device's free memory in bytes, including unused blocks of CuPy's pool."""
    import cupy

    free: int = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    return free
