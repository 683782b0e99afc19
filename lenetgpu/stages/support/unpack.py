"""Packed images to pixels on the GPU: what every plan reads follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.files.packed.records import FIRST_BITS, LONGEST, MASK_BYTES, SPAN_BITS
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import IMAGE_SHAPE

_WARPS = 8
KERNEL = Kernel(
    Path(__file__).with_suffix(".cu").resolve(),
    "unpack",
    (
        ("WARPS", _WARPS),
        ("ROWS", IMAGE_SHAPE[0]),
        ("COLUMNS", IMAGE_SHAPE[1]),
        ("MASK_BYTES", MASK_BYTES),
        ("SPAN_BITS", SPAN_BITS),
        ("FIRST_BITS", FIRST_BITS),
        ("LONGEST", LONGEST),
    ),
)


def unpack(payload: Any, offsets: Any, out: Any, base: int = 0) -> None:
    """Queue the unpacking of records into `out` (n, 28, 28, 1) uint8 on the current stream.

    `payload` is uint8 and holds the records, one that begins at each of `offsets` (n + 1,) uint32
    and ends at the next, counted from `base`; all three lie on the device. Whatever they hold,
    nothing beyond them is read, and `out` is written whole.
    """
    import numpy as np

    n = len(out)
    args = (payload, int(payload.size), offsets, base, out, np.int32(n))
    launch(KERNEL, (blocks_for(n, _WARPS),), (32 * _WARPS,), args)
