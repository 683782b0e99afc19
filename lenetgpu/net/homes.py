"""Arrays of other frameworks: where they lie, how they are read, answers handed back as theirs.

Nothing here imports a framework: who hands in its arrays has imported it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import cache
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu.graph import new_stream

_HOST_KINDS = (1, 3)  # DLPack's devices: the CPU, page-locked memory
_CUDA_KINDS = (2, 13)  # device memory, managed memory
_UNKNOWN = 0  # cudaMemoryTypeUnregistered
_NOT_THERE = "images: expected arrays in host memory or on an NVIDIA GPU, found "


class Home:
    """Where a caller's arrays come from, and how answers get back there. This one is NumPy's."""

    index: int | None = None
    """The CUDA device that the images lie on, None: host memory."""
    in_other_order = False
    """Whether the owner may use the images' memory again before work on `stream` has read it."""

    @property
    def on_gpu(self) -> bool:
        """Whether the images lie on a GPU."""
        return self.index is not None

    def view(self, images: Any) -> Any:
        """`images` as a NumPy array, or on a GPU as a CuPy array of the same memory."""
        import numpy as np

        return np.asarray(images)

    def give(self, answer: Any) -> Any:
        """`answer`, a NumPy or CuPy array that nobody else holds, in the caller's framework."""
        return answer

    def stream(self) -> Any:
        """CuPy's stream in whose order the images are ready and the answer is to be; None: any."""
        return None


class _Cupy(Home):
    def __init__(self, index: int, in_other_order: bool = False) -> None:
        self.index, self.in_other_order = index, in_other_order

    def view(self, images: Any) -> Any:
        import cupy

        if isinstance(images, cupy.ndarray):
            return images
        if hasattr(images, "__dlpack__"):
            return cupy.from_dlpack(images)
        return cupy.asarray(images)

    def stream(self) -> Any:
        import cupy

        return cupy.cuda.get_current_stream()


class _Producer(Home):
    """Somebody's host arrays that speak DLPack; answers are NumPy's."""

    def view(self, images: Any) -> Any:
        import numpy as np

        return np.from_dlpack(images)


class _Torch(Home):
    def __init__(self, images: Any) -> None:
        self._torch, self._device = sys.modules["torch"], images.device
        if images.device.type == "cuda":
            self.index = images.device.index
        elif images.device.type != "cpu":
            raise LenetError(f"{_NOT_THERE}a tensor on {images.device}")

    def view(self, images: Any) -> Any:
        if not self.on_gpu:
            return images.detach().numpy()
        import cupy

        return cupy.from_dlpack(images.detach())

    def give(self, answer: Any) -> Any:
        if not self.on_gpu:
            return self._torch.from_numpy(answer)
        import cupy

        dtype = getattr(self._torch, answer.dtype.name)
        given = self._torch.empty(answer.shape, dtype=dtype, device=self._device)
        cupy.from_dlpack(given)[...] = answer
        return given

    def stream(self) -> Any:
        if not self.on_gpu:
            return None
        import cupy

        pointer = self._torch.cuda.current_stream(self._device).cuda_stream
        return cupy.cuda.ExternalStream(pointer) if pointer else cupy.cuda.Stream.null


@cache
def _own_stream(index: int) -> Any:
    """A stream of this package's on GPU `index`, for owners that name none."""
    import cupy

    with cupy.cuda.Device(index):
        return new_stream()


class _Jax(Home):
    in_other_order = True

    def __init__(self, images: Any) -> None:
        self._jax = sys.modules["jax"]
        if isinstance(images, self._jax.core.Tracer):
            raise LenetError(
                "images: expected an array with values, found one that jax.jit is tracing; "
                "call the net outside of jit"
            )
        devices = images.devices()
        if len(devices) != 1:
            raise LenetError(
                f"images: expected an array on one device, found it on {len(devices)} devices"
            )
        (self._device,) = devices
        if self._device.platform in ("gpu", "cuda"):
            self.index = self._device.local_hardware_id
        elif self._device.platform != "cpu":
            raise LenetError(f"{_NOT_THERE}an array on {self._device}")

    def view(self, images: Any) -> Any:
        if not self.on_gpu:
            return super().view(images)
        import cupy

        return cupy.from_dlpack(images)

    def give(self, answer: Any) -> Any:
        if not self.on_gpu:
            return self._jax.device_put(answer, self._device)
        return self._jax.dlpack.from_dlpack(answer)

    def stream(self) -> Any:
        return None if self.index is None else _own_stream(self.index)


def _from(framework: str, name: str, images: Any) -> bool:
    """Whether `images` is a `framework.name`, of a framework that somebody has imported."""
    kind = getattr(sys.modules.get(framework), name, None)
    return isinstance(kind, type) and isinstance(images, kind)


def _address(images: Any) -> int:
    """Where the CUDA array interface says that they lie; LenetError where it says nothing."""
    told = images.__cuda_array_interface__
    try:
        return int(told["data"][0])
    except (LookupError, TypeError, ValueError) as error:
        raise LenetError(
            "images: expected a __cuda_array_interface__ whose data is (address, read-only), "
            f"found {type(images).__name__} with another"
        ) from error


def _device_of(address: int) -> int:
    import cupy

    told = cupy.cuda.runtime.pointerGetAttributes(address)
    if told.type == _UNKNOWN:
        raise LenetError(f"{_NOT_THERE}an address that no GPU knows")
    found: int = told.device
    return found


def home_of(images: Any) -> Home:
    """Who `images` belong to, by their type and device.

    LenetError for memory that is neither the host's nor a CUDA device's.
    """
    if _from("numpy", "ndarray", images):
        return Home()
    if _from("torch", "Tensor", images):
        return _Torch(images)
    if _from("jax", "Array", images):
        return _Jax(images)
    if _from("cupy", "ndarray", images):
        return _Cupy(images.device.id)
    if hasattr(images, "__dlpack_device__"):
        kind, index = map(int, images.__dlpack_device__())
        if kind in _CUDA_KINDS:
            return _Cupy(index, in_other_order=True)
        if kind not in _HOST_KINDS:
            raise LenetError(f"{_NOT_THERE}DLPack device {kind}")
        return _Producer()
    if hasattr(images, "__cuda_array_interface__"):
        return _Cupy(_device_of(_address(images)), in_other_order=True)
    return Home()


def in_order_of(stream: Any) -> Any:
    """A context in which CuPy queues on `stream`; None: wherever it does."""
    return nullcontext() if stream is None else stream
