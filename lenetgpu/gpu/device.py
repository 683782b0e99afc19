"""Which GPU there is, found without importing CuPy, and its limits once CuPy is wanted."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from dataclasses import dataclass
from functools import cache

from lenetgpu.errors import LenetError

INSTALL_HINT = "pip install 'lenetgpu[cuda13]' (or [cuda12], as nvidia-smi's CUDA version says)"
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as the driver names it; `compute_capability` is 90 for 9.0."""

    index: int
    name: str
    compute_capability: int

    @property
    def version(self) -> str:
        """Its compute capability as NVIDIA writes it: 9.0."""
        return f"{self.compute_capability // 10}.{self.compute_capability % 10}"

    @property
    def arch(self) -> str:
        """NVRTC's architecture: with the `a` suffix where the chip has its own instructions."""
        suffix = "a" if self.compute_capability == 90 else ""
        return f"sm_{self.compute_capability}{suffix}"


@cache
def driver_gpus() -> tuple[Gpu, ...]:
    """The GPUs the CUDA driver lists, empty where there is no driver or no GPU."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if ctypes.util.find_library("nvcuda") else "libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    found = []
    for index in range(count.value):
        handle, value = ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        driver.cuDeviceGet(ctypes.byref(handle), index)
        driver.cuDeviceGetName(name, len(name), handle)
        version = []
        for attribute in (_MAJOR, _MINOR):
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
            version.append(value.value)
        found.append(Gpu(index, name.value.decode(), 10 * version[0] + version[1]))
    return tuple(found)


def cupy_installed() -> bool:
    """Whether CuPy can be imported, without importing it."""
    return importlib.util.find_spec("cupy") is not None


def require_gpu(index: int = 0) -> Gpu:
    """The GPU called cuda:`index`; LenetError where it, or CuPy, is missing."""
    gpus = driver_gpus()
    if not gpus:
        raise LenetError(
            "device cuda: expected an NVIDIA GPU and its driver, found none; "
            "use --device cpu or auto"
        )
    if index >= len(gpus):
        have = ", ".join(f"cuda:{gpu.index}" for gpu in gpus)
        raise LenetError(f"device cuda:{index}: expected one of {have}, found no such GPU")
    if not cupy_installed():
        raise LenetError(f"device cuda: expected CuPy, found it not installed; {INSTALL_HINT}")
    return gpus[index]


def activate(gpu: Gpu) -> None:
    """Make `gpu` the current device and create its context."""
    import cupy

    cupy.cuda.Device(gpu.index).use()
    cupy.cuda.runtime.free(0)


def current_arch() -> str:
    """NVRTC's name for the current device's architecture."""
    import cupy

    index: int = cupy.cuda.runtime.getDevice()
    return driver_gpus()[index].arch


def free_bytes() -> int:
    """Free memory of the current device, in bytes, its pool's unused blocks included."""
    import cupy

    free: int = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    return free
