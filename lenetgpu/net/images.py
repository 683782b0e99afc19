"""Callers' images: location, checks, conversion to the network's layout, and results back.

Results are arrays of the caller's framework. No framework is imported here: a caller that passes
its arrays has imported it. Calls are short, so functions import CuPy locally, which takes a tenth
of the time of a look-up through `lenetgpu.arrays`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, first_line
from lenetgpu.files.orientation import Orientation
from lenetgpu.files.reading import EXPECTED_BRIGHT, FAINTEST, check_memory, first_unfit
from lenetgpu.gpu.faults import tell, telling
from lenetgpu.gpu.graph import new_stream
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.pipeline import ALIGNED

MANY = 256  # smallest batch of host images that is copied by threads
SLACK = 1000  # floats may exceed 0..1 by 1/SLACK, for rounding
_PLAIN = IMAGE_SHAPE[:2]
_MANY_LABELS, _LABEL_BYTES = 1 << 20, 4
_FLOATS = ("float16", "float32", "float64")
_SHAPES = "(28, 28), (N, 28, 28), (N, 28, 28, 1) or (N, 1, 28, 28)"
_TYPES = "uint8 pixels or floats from 0 to 1 (float16, float32, float64)"
_HOST_KINDS = (1, 3)  # DLPack's devices: the CPU, page-locked memory
_CUDA_KINDS = (2, 13)  # device memory, managed memory
_UNKNOWN = 0  # cudaMemoryTypeUnregistered
_UNREACHABLE = "images: expected arrays in host memory or on an NVIDIA GPU, found "


class Home:
    """Adapter of NumPy, and base of the others: views callers' arrays and converts results."""

    index: int | None = None  # CUDA device of the images; None: host memory
    # True if the owner may reuse the images' memory before work on `stream` has read it
    in_other_order = False

    @property
    def on_gpu(self) -> bool:
        """True if the images lie on a GPU."""
        return self.index is not None

    def view(self, images: Any) -> Any:
        """Return `images` as a NumPy array, or a CuPy array for a GPU, without copying."""
        return np.asarray(images)

    def give(self, answer: Any) -> Any:
        """Convert `answer`, an otherwise unused NumPy or CuPy array, to the caller's framework."""
        return answer

    def stream(self) -> Any:
        """Return the CuPy stream that orders images and results; None: any."""
        return None


class _Producer(Home):
    """Adapter of host arrays with DLPack from any other framework."""

    def view(self, images: Any) -> Any:
        return np.from_dlpack(images)


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


class _Torch(Home):
    def __init__(self, images: Any) -> None:
        self._torch, self._device = sys.modules["torch"], images.device
        if images.device.type == "cuda":
            self.index = images.device.index
        elif images.device.type != "cpu":
            raise LenetError(f"{_UNREACHABLE}a tensor on {images.device}")

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
        return external_stream(torch_stream(self._torch, self.index))


def torch_stream(torch: Any, index: int | None) -> int:
    """Return the handle of PyTorch's current stream on GPU `index`."""
    # takes a tenth of the public call's time
    short = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(short(index) if short else torch.cuda.current_stream(index).cuda_stream)


@lru_cache(maxsize=64)
def external_stream(handle: int) -> Any:
    """Return CuPy's view of the CUDA stream `handle`."""
    import cupy

    return cupy.cuda.ExternalStream(handle) if handle else cupy.cuda.Stream.null


@cache
def _own_stream(index: int) -> Any:
    """Return this package's stream on GPU `index`, for frameworks without a current stream."""
    with current(index):
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
        self._device, *others = images.devices()
        if others:
            count = 1 + len(others)
            raise LenetError(f"images: expected an array on one device, found {count} devices")
        if self._device.platform in ("gpu", "cuda"):
            self.index = self._device.local_hardware_id
        elif self._device.platform != "cpu":
            raise LenetError(f"{_UNREACHABLE}an array on {self._device}")

    def view(self, images: Any) -> Any:
        if not self.on_gpu:
            return super().view(images)
        import cupy

        return cupy.from_dlpack(images)

    def give(self, answer: Any) -> Any:
        if self.on_gpu:
            return self._jax.dlpack.from_dlpack(answer)
        return self._jax.device_put(answer, self._device)

    def stream(self) -> Any:
        return None if self.index is None else _own_stream(self.index)


def is_a(framework: str, name: str, images: Any) -> bool:
    """Return True if `images` is a `framework.name` of an imported framework."""
    kind = getattr(sys.modules.get(framework), name, None)
    return isinstance(kind, type) and isinstance(images, kind)


def home_of(images: Any) -> Home:
    """Return the adapter for `images`; raise LenetError if they are not in host or CUDA memory."""
    if is_a("numpy", "ndarray", images):
        return Home()
    if is_a("torch", "Tensor", images):
        return _Torch(images)
    if is_a("jax", "Array", images):
        return _Jax(images)
    if is_a("cupy", "ndarray", images):
        return _Cupy(images.device.id)
    if hasattr(images, "__dlpack_device__"):
        kind, index = map(int, images.__dlpack_device__())
        if kind in _CUDA_KINDS:
            return _Cupy(index, in_other_order=True)
        if kind not in _HOST_KINDS:
            raise LenetError(f"{_UNREACHABLE}DLPack device {kind}")
        return _Producer()
    if hasattr(images, "__cuda_array_interface__"):
        import cupy

        address = int(images.__cuda_array_interface__["data"][0])
        pointer = cupy.cuda.runtime.pointerGetAttributes(address)
        if pointer.type == _UNKNOWN:
            raise LenetError(f"{_UNREACHABLE}an address that no GPU knows")
        return _Cupy(pointer.device, in_other_order=True)
    return Home()


@dataclass(frozen=True)
class DeviceImages:
    """Contiguous images on a GPU as kernels read them, and new labels, in the caller's stream.

    `address` and `label_address` lie on the current GPU, `stream` is a handle; `labels` is the
    caller's array (n,) int32, whose first element is the result if `single`.
    """

    address: int
    count: int
    dtype: str
    labels: Any
    label_address: int
    stream: int
    single: bool


_READ_AS_IS = {"torch.uint8": "uint8", "torch.float32": "float32", "|u1": "uint8", "<f4": "float32"}
FORMS = (_PLAIN, IMAGE_SHAPE, (1, *_PLAIN))


def device_images(images: Any, index: int) -> DeviceImages | None:
    """View `images` if they are a plain array of PyTorch or CuPy on the current GPU, `index`.

    Return None for all others, which `accept` converts or refuses.
    """
    kind: Any = type(images)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if cupy is None or cupy.cuda.runtime.getDevice() != index:
        return None
    if torch is not None and kind is torch.Tensor:
        if not images.is_cuda or images.get_device() != index or images.layout is not torch.strided:
            return None
        dtype, plain, address = _READ_AS_IS.get(str(images.dtype)), images.is_contiguous(), 1
        with suppress(RuntimeError):  # a tensor that is being traced has no address
            address = images.data_ptr()
    elif kind is cupy.ndarray:
        if images.device.id != index:
            return None
        dtype, plain = _READ_AS_IS.get(images.dtype.str), images.flags.c_contiguous
        address = images.data.ptr
    else:
        return None
    shape = tuple(images.shape)
    single = shape == _PLAIN
    count = 1 if single else shape[0] if shape[1:] in FORMS else 0
    if dtype is None or not plain or address % ALIGNED or not count:
        return None
    if torch is not None and kind is torch.Tensor:
        labels = torch.empty(count, dtype=torch.int32, device=images.device)
        at, stream = labels.data_ptr(), torch_stream(torch, index)
    else:
        labels = cupy.empty(count, "int32")
        at, stream = labels.data.ptr, cupy.cuda.get_current_stream().ptr
    return DeviceImages(address, count, dtype, labels, at, stream, single)


def in_order_of(stream: Any) -> Any:
    """Return a context in which CuPy queues on `stream`; None: no change."""
    return nullcontext() if stream is None else stream


@dataclass(frozen=True)
class Accepted:
    """Accepted images: a NumPy or CuPy array; `single`: one image without a batch axis."""

    raw: Any
    home: Home
    single: bool
    count: int

    @property
    def dtype(self) -> str:
        """The dtype that the network reads: "uint8" or "float32"."""
        return "uint8" if self.raw.dtype.name == "uint8" else "float32"

    def check(self) -> None:
        """Raise LenetError naming the first host image that is NaN, outside 0..1 or too faint."""
        if not self.home.on_gpu and self.dtype != "uint8":
            _check_values(self.raw, self.single)

    def oriented(self, orientation: Orientation) -> "Accepted":
        """Return the images changed as `orientation` asks, on the current stream on a GPU."""
        self.check()
        with current(self.home.index), in_order_of(self.home.stream()):
            return replace(self, raw=orientation.apply(self.raw))

    @telling()
    def pixels(self, copied: bool = False) -> Any:
        """Return contiguous (N, 28, 28, 1) of `dtype`, aligned on a GPU, on the current stream."""
        if self.home.on_gpu:
            import cupy as arrays
        else:
            import numpy as arrays
        make = arrays.array if copied else arrays.ascontiguousarray
        pixels = make(self.raw, dtype=self.dtype)
        if self.home.on_gpu and pixels.data.ptr % ALIGNED:
            pixels = pixels.copy()
        return pixels.reshape(self.count, *IMAGE_SHAPE)


@telling()
def accept(images: Any, device: str, later: bool = False) -> Accepted:
    """Check `images` for a net on `device`; lists become arrays, arrays are viewed.

    Labels of a batch [images, labels] are ignored; bfloat16 becomes float32. With `later`, many
    host floats are not checked: see `Accepted.check`.

    Raises LenetError for unsupported shapes and types, masked arrays, images on another GPU, more
    images than their labels fit in memory (a broadcast view can have any number), and host floats
    that are NaN, outside 0..1 or too faint (`reading.FAINTEST`).
    """
    images = _without_labels(images)
    listed = isinstance(images, list | tuple)
    arrays = (images, *images) if listed else (images,)
    if any(is_a("numpy.ma", "MaskedArray", array) for array in arrays):
        raise LenetError("images: expected arrays without a mask, found a masked array")
    if listed:
        raw, home = _listed(images), Home()
    else:
        with _readable(images):
            home = home_of(images)
            if home.on_gpu and device != f"cuda:{home.index}":
                raise LenetError(
                    f"images: expected host memory or the net's device, {device}, "
                    f"found cuda:{home.index}"
                )
            if str(getattr(images, "dtype", "")).endswith("bfloat16"):
                images = images.float() if is_a("torch", "Tensor", images) else images.astype("f4")
            _check_type(images)
            with current(home.index), in_order_of(home.stream()):
                raw = home.view(images)
            _check_type(raw)
    shape = tuple(raw.shape)
    single = shape == _PLAIN
    if not single and shape[1:] not in FORMS:
        raise LenetError(f"images: expected shape {_SHAPES}, found {shape}")
    accepted = Accepted(raw, home, single, 1 if single else shape[0])
    if not home.on_gpu and accepted.count > _MANY_LABELS:
        check_memory(f"images: labels of {accepted.count:,}", _LABEL_BYTES * accepted.count, None)
    if not (later and accepted.count >= MANY):
        accepted.check()
    return accepted


def _without_labels(images: Any) -> Any:
    """Return the images of a batch [images, labels], as PyTorch's loaders give; others as is."""
    if isinstance(images, list | tuple) and len(images) == 2:
        shapes = [tuple(getattr(part, "shape", ())) for part in images]
        whole = "int" in str(getattr(images[1], "dtype", ""))
        if whole and len(shapes[0]) > len(_PLAIN) and shapes[1] == shapes[0][:1]:
            return images[0]
    return images


def _check_type(images: Any) -> None:
    dtype = getattr(images, "dtype", None)
    if dtype is None:
        return
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    if name != "uint8" and name not in _FLOATS:
        raise LenetError(f"images: expected {_TYPES}, found {name}")


@contextmanager
def _readable(images: Any) -> Iterator[None]:
    """Convert any exception of the images' own code to LenetError."""
    try:
        yield
    except LenetError:
        raise
    except Exception as error:
        tell(error)
        found = f"{type(images).__name__} ({first_line(error)})"
        raise LenetError(f"images: expected an array that can be read, found {found}") from error


def current(index: int | None) -> Any:
    """Return a context in which GPU `index` (None: any) is current, as CuPy's streams need."""
    if index is None:
        return nullcontext()
    import cupy

    return cupy.cuda.Device(index)


def _listed(images: Any) -> Array:
    """Convert nested lists to an array; integers are pixels."""
    if not len(images):
        return np.empty((0, *IMAGE_SHAPE), np.uint8)
    try:
        raw = np.asarray(images)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise LenetError(
            "images: expected nested lists of numbers with rows of equal length, found others"
        ) from error
    if raw.dtype.kind in "iu" and raw.dtype != np.uint8 and raw.size:
        low, high = int(raw.min()), int(raw.max())
        if low < 0 or high > 255:
            expected = "expected whole numbers in lists from 0 to 255"
            raise LenetError(f"images: {expected}, found {low} to {high}")
        return raw.astype(np.uint8)
    _check_type(raw)
    return raw


def _check_values(raw: Array, single: bool) -> None:
    """Raise LenetError naming the first image with floats outside 0..1."""
    unfit = first_unfit(raw[None] if single else raw)
    if unfit is None:
        return
    number, low, high = unfit
    at = "" if single else f" in image {number:,} (from 0)"
    if low != low or high != high:
        raise LenetError(f"images: expected floats from 0 to 1, found NaN{at}")
    if 0 < high < FAINTEST:
        raise LenetError(f"images: expected {EXPECTED_BRIGHT}, found {high:.2g}{at}")
    raise LenetError(
        f"images: expected floats from 0 to 1, found {low:g} to {high:g}{at}; "
        "whole pixels are uint8"
    )
