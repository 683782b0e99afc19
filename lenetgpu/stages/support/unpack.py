"""Packed images to pixels on the GPU: what every plan reads follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.files.packed.records import FIRST_BITS, LONGEST, MASK_BYTES, SPAN_BITS
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import in_units
from lenetgpu.network import IMAGE_SHAPE

_WARPS = 8
RECORD = (
    ("ROWS", IMAGE_SHAPE[0]),
    ("COLUMNS", IMAGE_SHAPE[1]),
    ("MASK_BYTES", MASK_BYTES),
    ("SPAN_BITS", SPAN_BITS),
    ("FIRST_BITS", FIRST_BITS),
    ("LONGEST", LONGEST),
)
"""What record.cuh is compiled with."""
KERNEL = Kernel(Path(__file__).with_suffix(".cu").resolve(), "unpack", (("WARPS", _WARPS), *RECORD))


@dataclass(frozen=True)
class Records:
    """Packed images as kernels read them, in the place of an array of pixels.

    `payload` (bytes,) uint8 and `offsets` (n + 1,) uint32, counted from `base`, lie where the
    current GPU reads them. Whatever they hold, nothing beside them is read but the rest of the 16
    bytes (from a multiple of 16 on) that hold the first one or the last: their memory has these,
    as `records_on_gpu` sees to.
    """

    payload: Any
    offsets: Any
    base: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, part: slice) -> Records:
        lo, hi, _ = part.indices(len(self))
        return Records(self.payload, self.offsets[lo : hi + 1], self.base)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What a kernel takes: records, their bytes, offsets, what these count from."""
        import numpy as np

        return self.payload, np.int64(self.payload.size), self.offsets, np.int64(self.base)


def records_on_gpu(payload: Any, offsets: Any) -> Records:
    """A copy of `payload` and `offsets` of host memory on the current GPU, in whole units."""
    import cupy

    held = cupy.empty(in_units(len(payload)), "uint8")[: len(payload)]
    held.set(payload)
    return Records(held, cupy.asarray(offsets))


def unpack(packed: Records, out: Any) -> None:
    """Queue the unpacking of records into `out` (n, 28, 28, 1) uint8 on the current stream.

    Whatever they hold, nothing beyond them is read, and `out` is written whole.
    """
    import numpy as np

    n = len(out)
    args = (*packed.arguments, out, np.int32(n))
    launch(KERNEL, (blocks_for(n, _WARPS),), (32 * _WARPS,), args)
