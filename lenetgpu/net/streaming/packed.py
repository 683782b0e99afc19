"""Packed images on their way to labels: records that kernels read, here or on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lenetgpu.errors import LenetError
from lenetgpu.files.packed.records import LONGEST, SHORTEST, unpack
from lenetgpu.gpu.workspace import UNIT_BYTES, in_units

if TYPE_CHECKING:
    from lenetgpu.net.streaming.cuda import Device

_OFFSET_BYTES = 4


@dataclass(frozen=True)
class PackedImages:
    """Images as the records of docs/packed.md, in the place of an array of them.

    `payload` holds the records, uint8; each begins at one of `offsets` (n + 1,) uint32 and ends at
    the next. `packed_images` makes them of arrays of an unknown maker.
    """

    payload: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, part: slice) -> PackedImages:
        lo, hi, _ = part.indices(len(self))
        return PackedImages(self.payload, self.offsets[lo : hi + 1])

    @property
    def ends(self) -> tuple[int, int]:
        """Where the first record begins in `payload`, and where the last one ends."""
        return int(self.offsets[0]), int(self.offsets[-1])

    @property
    def units(self) -> tuple[int, int, bool]:
        """The address and bytes of the units that hold the records; are all of them `payload`'s?"""
        at, (begin, end) = self.payload.ctypes.data, self.ends
        first = (at + begin) // UNIT_BYTES * UNIT_BYTES
        size = in_units(at + end - first)
        return first, size, at <= first and first + size <= at + self.payload.nbytes

    def room(self, lo: int, hi: int) -> int:
        """Bytes of images `lo` to `hi`."""
        return int(self.offsets[hi]) - int(self.offsets[lo])

    def packed(self, lo: int, hi: int, out: Any) -> tuple[Any, Any]:
        """Records of images `lo` to `hi` copied to `out`, and where each begins there."""
        begin, end = self[lo:hi].ends
        out[: end - begin] = self.payload[begin:end]
        return out[: end - begin], self.offsets[lo : hi + 1] - self.offsets[lo]

    def read(self, lo: int, out: Any) -> None:
        """Unpack images from `lo` on into `out` (n, 28, 28, 1) uint8; LenetError for bad ones."""
        import numpy as np

        part = self[lo : lo + len(out)]
        begin, end = part.ends
        unpack(self.payload[begin:end], np.diff(part.offsets), out, "packed images", lo)


def packed_images(payload: Any, offsets: Any) -> PackedImages:
    """Records and where each begins and the last ends, C-contiguous in host memory.

    LenetError where they are of another form, or `offsets` do not rise by the bytes that a record
    may have. Records are not looked at: the kernel is safe with any.
    """
    import numpy as np

    for name, array, dtype in (("payload", payload, "uint8"), ("offsets", offsets, "uint32")):
        if array.ndim != 1 or array.dtype != dtype or not array.flags.c_contiguous:
            raise LenetError(
                f"packed images: expected {name} to be a C-contiguous row of {dtype}, "
                f"found {array.shape} of {array.dtype}"
            )
    steps = np.diff(offsets.astype(np.int64))
    fit = len(steps) > 0 and steps.min() >= SHORTEST and steps.max() <= LONGEST
    if not fit or offsets[-1] > len(payload):
        raise LenetError(
            f"packed images: expected offsets that rise by {SHORTEST} to {LONGEST} within "
            f"{len(payload):,} bytes, found others"
        )
    return PackedImages(payload, offsets)


def arrays_of(images: Any) -> tuple[Any, ...]:
    """The arrays that images lie in: themselves, or those of packed ones."""
    packed = isinstance(images, PackedImages)
    return (images.payload, images.offsets) if packed else (images,)


@runtime_checkable
class PackedReadable(Protocol):
    """A source that has its images packed: a file of them, or `PackedImages`."""

    def room(self, lo: int, hi: int) -> int:
        """Bytes that `packed` needs of `out`."""

    def packed(self, lo: int, hi: int, out: Any) -> tuple[Any, Any]:
        """Records of images `lo` to `hi`, a view of `out`, and where each begins in it."""


def packed_into(source: PackedReadable, lo: int, n: int, raw: Any) -> PackedImages | None:
    """Images `lo` to `lo + n` of `source` in `raw`, a row of uint8; None where it is too small."""
    room = source.room(lo, lo + n)
    at = -(-room // _OFFSET_BYTES) * _OFFSET_BYTES
    end = at + _OFFSET_BYTES * (n + 1)
    if end > len(raw):
        return None
    payload, offsets = source.packed(lo, lo + n, raw[:room])
    held = raw[at:end].view("uint32")
    held[...] = offsets
    return PackedImages(payload, held)


class Landing:
    """Where a lane's records lie on the GPU until they are read: 827 bytes an image."""

    def __init__(self, device: Device, chunk: int) -> None:
        self._device = device
        self._payload = device.empty((in_units(chunk * LONGEST),), "uint8")
        self._offsets = device.empty((chunk + 1,), "uint32")

    def copy(self, images: PackedImages, stream: Any, own: Any) -> None:
        """Queue the copies of up to `chunk` images: records on `stream`.

        Offsets go beside them on the lane's `own`, which comes to them when it read the last ones.
        """
        begin, end = images.ends
        self._device.copy(self._payload[: end - begin], images.payload[begin:end], stream)
        self._device.copy(self._offsets[: len(images) + 1], images.offsets, own)

    def records(self, images: PackedImages) -> Any:
        """Those that were copied here last, as a pipeline takes them."""
        begin, end = images.ends
        offsets = self._offsets[: len(images) + 1]
        return self._device.records(self._payload[: end - begin], offsets, begin)
