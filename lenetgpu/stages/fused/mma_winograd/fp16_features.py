"""Images to pool2's features, conv2 by Winograd F(4,5): fp16 operands on mma.sync (sm_80 on)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.cuda_cores.winograd import POINTS
from lenetgpu.stages.fused.mma_winograd.fp16_pack import WARPS, pack_conv1, pack_conv2
from lenetgpu.stages.registry import cuda, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
IMAGES = WARPS
"""Images of a block."""
THREADS = WARPS * WARP
_CELL_BYTES = 16
_MAP_BYTES = POINTS * 12 * 2 * 32 * 2
SHARED_BYTES = IMAGES * (_MAP_BYTES + _CELL_BYTES)
"""Transformed maps, a cell between images; pixels lie where maps will."""


@dataclass(frozen=True)
class Packed:
    """Filters on the device: conv1 (2, 4, 32, 2, 2, 4) fp16, conv2 (8, 5, 8, 32, 2, 4) fp16."""

    conv1: Any
    conv2: Any


def _prepare(w: Any, problem: Features, batch: int) -> Packed:
    return Packed(cupy.asarray(pack_conv1(w[0])), cupy.asarray(pack_conv2(w[1])))


def kernel(uint8: bool) -> Kernel:
    """The kernel for uint8 pixels (divided by 255) or float32 ones in 0..1."""
    defines = (("UINT8_PIXELS", int(uint8)), ("SHARED_BYTES", SHARED_BYTES))
    return Kernel(_SOURCE, "mma_winograd_features", defines)


@variant(
    kind=FEATURES,
    family="mma_winograd_fp16",
    reads="NHWC",
    writes="F16",
    needs=cuda(80),
    precision="fp16w",
    prepare=_prepare,
    kernels=lambda problem, batch: (kernel(uint8=True), kernel(uint8=False)),
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on mma.sync, conv2 by Winograd, fp16 operands."""
    uint8 = bool(x.dtype == "uint8")
    launch(
        kernel(uint8),
        (min(multiprocessors(), blocks_for(len(x), IMAGES)),),
        (THREADS,),
        (x, w.conv1[int(uint8)], w.conv2, y, np.int32(len(x))),
        shared=SHARED_BYTES,
    )
