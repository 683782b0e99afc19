"""Images to pool2's features in one kernel on mma.sync: every GPU from sm_80 on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.mma.pack import FLOAT_PIXEL_EXPONENT, pack
from lenetgpu.stages.registry import cuda, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_WARP = 32
_MAP_BYTES = 12 * 12 * 32 * 2
_PIXEL_BYTES = 28 * 28 * 2
_STAGE_BYTES = 4096
_RESERVED_BYTES = 1024
_BLOCK_BYTES = 99 << 10


@dataclass(frozen=True)
class Tiling:
    """Warps a block, warps an image, blocks a multiprocessor."""

    warps: int
    share: int
    blocks: int

    @property
    def images(self) -> int:
        """Images a block holds."""
        return self.warps // self.share

    def shared_bytes(self, uint8: bool, parts: int) -> int:
        """Dynamic shared memory of a block; uint8 pixels are exact in one part."""
        pixel_parts = 1 if uint8 else parts
        per_image = parts * _MAP_BYTES + pixel_parts * _PIXEL_BYTES
        return self.images * per_image + (2 * parts + 1) * _STAGE_BYTES

    def fits(self, uint8: bool, parts: int, room: int) -> bool:
        """Whether a multiprocessor with `room` bytes of shared memory holds all of its blocks."""
        return self.blocks * (self.shared_bytes(uint8, parts) + _RESERVED_BYTES) <= room


# by parts, fastest first; a device takes the first that its shared memory holds
TILINGS = {
    1: (Tiling(4, 1, 2), Tiling(8, 1, 1)),
    2: (Tiling(4, 2, 2), Tiling(8, 2, 1), Tiling(6, 2, 1)),
}


def kernel(uint8: bool, parts: int, tiling: Tiling) -> Kernel:
    """The kernel for uint8 pixels or float32 ones in 0..1."""
    return Kernel(
        _SOURCE,
        "mma_features",
        (
            ("UINT8_PIXELS", int(uint8)),
            ("PIXEL_SCALE", f"{2**FLOAT_PIXEL_EXPONENT if parts == 2 else 1}.0f"),
            ("PARTS", parts),
            ("WARPS", tiling.warps),
            ("SHARE", tiling.share),
            ("BLOCKS", tiling.blocks),
            ("SHARED_BYTES", tiling.shared_bytes(uint8, parts)),
        ),
    )


@cache
def _tiling(uint8: bool, parts: int, device: int) -> Tiling:
    import cupy

    room = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerMultiprocessor"]
    return next(size for size in _tilings(uint8, parts) if size.fits(uint8, parts, room))


def _tilings(uint8: bool, parts: int) -> tuple[Tiling, ...]:
    sizes = TILINGS[parts]
    return tuple(size for size in sizes if size.shared_bytes(uint8, parts) <= _BLOCK_BYTES)


def tiling(uint8: bool, parts: int) -> Tiling:
    """The tiling for the current device."""
    import cupy

    return _tiling(uint8, parts, cupy.cuda.runtime.getDevice())


def kernels(parts: int) -> tuple[Kernel, ...]:
    """Every kernel of `parts` parts that a device may take."""
    return tuple(
        kernel(uint8, parts, size) for uint8 in (True, False) for size in _tilings(uint8, parts)
    )


@dataclass(frozen=True)
class Weights:
    """Operands on the device, and the factors that undo their scales, uint8 pixels' first."""

    conv1: Any
    conv2: Any
    scales1: tuple[Any, Any]
    scale2: Any


def prepare(w: Any, parts: int) -> Weights:
    """Filters of the span's four tensors as the kernel reads them, on the current device."""
    import cupy
    import numpy as np

    packed = pack(w, parts)
    return Weights(
        cupy.asarray(packed.conv1),
        cupy.asarray(packed.conv2),
        (np.float32(packed.scale_bytes), np.float32(packed.scale_floats)),
        np.float32(packed.scale_conv2),
    )


def run(x: Any, w: Weights, y: Any, parts: int, size: Tiling | None = None) -> None:
    """Launch the kernel on images `x` (n, ...) into features `y`; `size` forces a tiling."""
    import numpy as np

    uint8 = bool(x.dtype == "uint8")
    size = size or tiling(uint8, parts)
    launch(
        kernel(uint8, parts, size),
        (min(size.blocks * multiprocessors(), blocks_for(len(x), size.images)),),
        (size.warps * _WARP,),
        (x, w.conv1, w.conv2, y, np.int32(len(x)), w.scales1[0 if uint8 else 1], w.scale2),
        shared=size.shared_bytes(uint8, parts),
    )


@variant(
    kind=FEATURES,
    family="mma",
    reads="NHWC",
    writes="F16",
    needs=cuda(80),
    precision="fp16",
    prepare=lambda w, problem, batch: prepare(w, 1),
    kernels=lambda problem: kernels(1),
    raw_images=True,
)
def features(x: Any, w: Weights, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on mma.sync, fp16 operands, fp32 sums."""
    run(x, w, y, 1)
