"""Images to pool2's features with conv2 in bytes: twice the rate of fp16 (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.files.calibration import largest_pooled
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.wgmma import fp16_features as fp16
from lenetgpu.stages.registry import hopper, variant

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_FILTER2_BYTES = 5 * 5 * 32 * 64
_MAP_BYTES = 12 * 12 * 32
TILING = fp16.Tiling(4, 2, 25, _FILTER2_BYTES, _MAP_BYTES)
BYTE_MOST, FILTER_MOST = 255, 127


@dataclass(frozen=True)
class Packed:
    """On the device: conv1 (2, 2, 2, 64, 8) fp16, conv2 (25, 2, 64, 16) int8, scales (64,)."""

    conv1: Any
    conv2: Any
    scales: Any


def kernel(uint8: bool) -> Kernel:
    """The kernel for uint8 pixels (divided by 255) or float32 ones in 0..1."""
    return Kernel(_SOURCE, "int8_features", fp16.defines(uint8, TILING))


def quantize(conv2: Array, largest: float) -> tuple[Array, Array]:
    """(5, 5, 32, 64) filters as int8 and, per output, what four sums of byte products mean."""
    import numpy as np

    widest = np.abs(conv2).max((0, 1, 2)).astype(np.float64)
    step = np.where(widest > 0, widest, 1.0) / FILTER_MOST
    whole = np.rint(conv2 / step).astype(np.int8)
    return whole, (0.25 * step * largest / BYTE_MOST).astype(np.float32)


def pack_conv1(conv1: Array, largest: float) -> Array:
    """fp16's packing with `largest` as 255, channels ordered so that a thread's 8 are adjacent.

    Column 16a + 8dx + 2q + e is channel 8q + 2a + e.
    """
    import numpy as np

    plane, quad, item = np.meshgrid(np.arange(4), np.arange(4), np.arange(2), indexing="ij")
    order = (8 * quad + 2 * plane + item).reshape(-1)
    return fp16.pack_conv1(conv1[..., order] * np.float32(BYTE_MOST / largest))


def pack_conv2(whole: Array) -> Array:
    """(5, 5, 32, 64) int8 as (25, 2, 64, 16): tap, channel/16, output, channel."""
    import numpy as np

    return np.ascontiguousarray(whole.reshape(25, 2, 16, 64).transpose(0, 1, 3, 2))


def _prepare(w: Any, problem: Features, batch: int) -> Packed:
    """Without a largest activation (w[4]) it is found on the shipped digits."""
    import cupy

    conv1, conv2, largest = w[0], w[1], w[4]
    most = largest_pooled(conv1) if largest is None else largest
    most = most if most > 0 else 1.0
    whole, scales = quantize(conv2, most)
    return Packed(
        cupy.asarray(pack_conv1(conv1, most)), cupy.asarray(pack_conv2(whole)), cupy.asarray(scales)
    )


@variant(
    kind=FEATURES,
    family="wgmma_int8",
    also="int8.features",
    reads="NHWC",
    writes="F16",
    needs=hopper(),
    precision="int8",
    prepare=_prepare,
    kernels=lambda problem, batch: (kernel(uint8=True), kernel(uint8=False)),
    raw_images=True,
    calibrated=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 in bytes with int32 sums."""
    import numpy as np

    uint8 = x.dtype == "uint8"
    launch(
        kernel(uint8),
        (min(multiprocessors(), fp16.blocks(len(x))),),
        (TILING.threads,),
        (x, w.conv1[int(uint8)], w.conv2, w.scales, y, np.int32(len(x))),
        shared=TILING.shared_bytes,
        overlap=True,
    )
