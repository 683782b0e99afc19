"""Images to pool2's features with conv2 in bytes: twice the rate of fp16 (sm_90a)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.split import of_pixels
from lenetgpu.stages.fused.wgmma import fp16_features as fp16
from lenetgpu.stages.fused.wgmma.int8_pack import pack_conv1, pack_conv2, quantize, ranges
from lenetgpu.stages.registry import hopper, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_FILTER2_BYTES = 5 * 5 * 32 * 64
_MAP_BYTES = 12 * 12 * 32
TILING = fp16.Tiling(4, 2, 25, _FILTER2_BYTES, _MAP_BYTES)


@dataclass(frozen=True)
class Packed:
    """On the device: conv1 (2, 2, 2, 64, 8) fp16, conv2 in bytes as it is read, scales (64,)."""

    conv1: Any
    conv2: Any
    scales: Any


def kernel(uint8: bool) -> Kernel:
    """The kernel for such pixels."""
    return Kernel(_SOURCE, "int8_features", fp16.defines(uint8, TILING))


def packed(conv1: Any, conv2: Any, pack: Callable[[Any], Any]) -> Packed:
    """Filters of conv1 (5, 5, 1, 32) and conv2 (5, 5, 32, 64); `pack` takes conv2's as int8."""
    largest = ranges(conv1)
    whole, scales = quantize(conv2, largest)
    return Packed(
        cupy.asarray(pack_conv1(conv1, largest)), cupy.asarray(pack(whole)), cupy.asarray(scales)
    )


def run(made: Kernel, tiling: fp16.Tiling, x: Any, w: Packed, y: Any) -> None:
    """Images x to features y by a kernel of such a tiling whose conv2 is in bytes."""
    filters = w.conv1[int(x.dtype == "uint8")]
    launch(
        made,
        (min(multiprocessors(), fp16.blocks(len(x))),),
        (tiling.threads,),
        (x, filters, w.conv2, w.scales, y, np.int32(len(x))),
        shared=tiling.shared_bytes,
        overlap=True,
    )


@variant(
    kind=FEATURES,
    family="wgmma_int8",
    also="int8.features",
    writes="F16",
    needs=hopper(),
    precision="int8",
    prepare=lambda w, problem, batch: packed(w[0], w[1], pack_conv2),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 in bytes with int32 sums."""
    run(kernel(x.dtype == "uint8"), TILING, x, w, y)
