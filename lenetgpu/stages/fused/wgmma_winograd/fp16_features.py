"""Images to pool2's features, conv2 by Winograd F(4,5): fp16 operands on wgmma (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import SM_90_BLOCK_BYTES, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.cuda_cores.winograd import POINTS
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES
from lenetgpu.stages.fused.wgmma_winograd.fp16_pack import pack_conv1, pack_conv2
from lenetgpu.stages.registry import hopper, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_GROUPS = 2
_BATCH = 4
_THREADS = _GROUPS * 128
_FILTER_BYTES = 32 * 64 * 2 + POINTS * 5 * 32 * 64 * 2
_MAP_BYTES = POINTS * 12 * 2 * 32 * 2
_IMAGE_BYTES = 28 * 28 * 2
_BARRIERS = 1 + POINTS + 2
_SHARED_BYTES = _FILTER_BYTES + _BATCH * (_MAP_BYTES + _GROUPS * _IMAGE_BYTES) + 8 * _BARRIERS


@dataclass(frozen=True)
class Packed:
    """Filters on the device: conv1 (2, 2, 2, 64, 8) fp16, conv2 (8, 5, 2, 2, 64, 8) fp16."""

    conv1: Any
    conv2: Any


def kernel(uint8: bool) -> Kernel:
    """The kernel for uint8 pixels (divided by 255) or float32 ones in 0..1."""
    return Kernel(
        _SOURCE,
        "winograd_features",
        (
            ("UINT8_PIXELS", int(uint8)),
            ("SPLIT", 0),
            ("IMAGES", _BATCH // 2),
            ("TILE", TILE_IMAGES),
            ("SHARED_BYTES", _SHARED_BYTES),
            ("MOST_BYTES", SM_90_BLOCK_BYTES),
        ),
    )


def _prepare(w: Any, problem: Features, batch: int) -> Packed:
    import cupy

    return Packed(cupy.asarray(pack_conv1(w[0])), cupy.asarray(pack_conv2(w[1])))


@variant(
    kind=FEATURES,
    family="wgmma_winograd_fp16",
    reads="NHWC",
    writes="F16",
    needs=hopper(),
    precision="fp16",
    prepare=_prepare,
    kernels=lambda problem, batch: (kernel(uint8=True), kernel(uint8=False)),
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 by Winograd, fp16 operands."""
    import numpy as np

    uint8 = x.dtype == "uint8"
    batches = blocks_for(len(x), TILE_IMAGES) * TILE_IMAGES // _BATCH
    launch(
        kernel(uint8),
        (min(multiprocessors(), batches),),
        (_THREADS,),
        (x, w.conv1[int(uint8)], w.conv2, y, np.int32(len(x))),
        shared=_SHARED_BYTES,
        overlap=True,
    )
