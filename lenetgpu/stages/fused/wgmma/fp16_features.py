"""Images to pool2's features in one kernel: fp16 operands on wgmma, fp32 sums (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.registry import hopper, variant

if TYPE_CHECKING:
    import numpy as np

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_WARPGROUP = 128
_FILTER1_BYTES = 32 * 64 * 2
_IMAGE_BYTES = 28 * 28 * 2
_BARRIER_BYTES = 8
TILE_IMAGES = 80


@dataclass(frozen=True)
class Tiling:
    """Warpgroups a block, images a warpgroup holds, conv2 steps before it hands its turn on.

    Then the bytes of conv2's filters and of an image's pooled conv1 maps.
    """

    groups: int = 3
    images: int = 2
    pass_step: int = 50
    filter2_bytes: int = 5 * 5 * 32 * 64 * 2
    map_bytes: int = 12 * 12 * 32 * 2

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.groups * _WARPGROUP

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        per_group = self.images * (self.map_bytes + _IMAGE_BYTES) + _BARRIER_BYTES
        return _FILTER1_BYTES + self.filter2_bytes + self.groups * per_group + 2 * _BARRIER_BYTES


TILING = Tiling()


@dataclass(frozen=True)
class Packed:
    """Filters on the device: conv1 (2, 2, 2, 64, 8) fp16, conv2 (50, 2, 64, 8) fp16."""

    conv1: Any
    conv2: Any


def defines(uint8: bool, tiling: Tiling) -> tuple[tuple[str, int], ...]:
    """What the kernels of conv2.cuh are compiled with."""
    return (
        ("UINT8_PIXELS", int(uint8)),
        ("SPLIT", 0),
        ("GROUPS", tiling.groups),
        ("IMAGES", tiling.images),
        ("PASS_STEP", tiling.pass_step),
        ("TILE", TILE_IMAGES),
        ("SHARED_BYTES", tiling.shared_bytes),
    )


def kernel(uint8: bool) -> Kernel:
    """The kernel for uint8 pixels (divided by 255) or float32 ones in 0..1."""
    return Kernel(_SOURCE, "features", defines(uint8, TILING))


def blocks(n: int) -> int:
    """Blocks that `n` images keep busy, the rest of the last tile's zeros included."""
    return blocks_for(n, TILE_IMAGES) * TILE_IMAGES // TILING.images


def feature_order() -> np.ndarray[Any, Any]:
    """(1024,) where feature i, as the kernel writes it, lies in (4, 4, 64) order.

    Thread t of a warpgroup writes 8: for each pooled row, channel c and c + 8.
    """
    import numpy as np

    thread, row, half = np.meshgrid(np.arange(128), np.arange(4), np.arange(2), indexing="ij")
    warp, lane = thread // 32, thread % 32
    channel = 16 * warp + lane // 4 + 8 * half
    order: np.ndarray[Any, Any] = ((row * 4 + lane % 4) * 64 + channel).reshape(-1)
    return order


def arrange_conv1(conv1: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(5, 5, 1, 32) filters as (2, 2, 64, 8): K step, half of it, column, K.

    Column 16a + 8dx + b is channel 8a + b shifted dx pixels to the right; K runs over 5 rows of 6
    pixels and ends in two zeros.
    """
    import numpy as np

    shifted = np.zeros((32, 4, 2, 8), conv1.dtype)
    taps = np.zeros((5, 6, 2, 32), conv1.dtype)
    for dx in range(2):
        taps[:, dx : dx + 5, dx] = conv1[:, :, 0]
    shifted[:30] = taps.reshape(30, 2, 4, 8).transpose(0, 2, 1, 3)
    return shifted.reshape(2, 2, 8, 64).transpose(0, 1, 3, 2)


def pack_conv1(conv1: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(5, 5, 1, 32) filters as (2, 2, 2, 64, 8) fp16: scale, then as `arrange_conv1`.

    The first serve pixels in 0..1, the second bytes / 256; the quarter of the mean is in both.
    """
    import numpy as np

    scales = np.array([0.25, 0.25 * 256 / 255], np.float32).reshape(2, 1, 1, 1, 1)
    return np.ascontiguousarray(scales * arrange_conv1(conv1), dtype=np.float16)


def pack_conv2(conv2: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(5, 5, 32, 64) filters as (50, 2, 64, 8) fp16: tap and channel half, channel/8, output, 8."""
    import numpy as np

    split = conv2.reshape(25, 2, 2, 8, 64).transpose(0, 1, 2, 4, 3)
    return np.ascontiguousarray(split, dtype=np.float16).reshape(50, 2, 64, 8)


def _prepare(w: Any, problem: Features, batch: int) -> Packed:
    import cupy

    return Packed(cupy.asarray(pack_conv1(w[0])), cupy.asarray(pack_conv2(w[1])))


@variant(
    kind=FEATURES,
    family="wgmma_fp16",
    also="fused.features",
    reads="NHWC",
    writes="F16",
    needs=hopper(),
    precision="fp16",
    prepare=_prepare,
    kernels=lambda problem, batch: (kernel(uint8=True), kernel(uint8=False)),
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, fp16 operands, fp32 sums."""
    import numpy as np

    uint8 = x.dtype == "uint8"
    launch(
        kernel(uint8),
        (min(multiprocessors(), blocks(len(x))),),
        (TILING.threads,),
        (x, w.conv1[int(uint8)], w.conv2, y, np.int32(len(x))),
        shared=TILING.shared_bytes,
        overlap=True,
    )
