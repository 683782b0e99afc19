"""Images to pool2's features at fp32 accuracy, conv2 by Winograd F(4,5) on wgmma (sm_90a)."""

from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import SM_90_BLOCK_BYTES, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Features
from lenetgpu.stages.fused.cuda_cores.tuning import POINTS
from lenetgpu.stages.fused.split import Filters, filters, hopper_features, of_pixels
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES
from lenetgpu.stages.fused.wgmma_winograd.fp16_features import BATCH, FILTER_BYTES, MAP_BYTES
from lenetgpu.stages.fused.wgmma_winograd.fp16_pack import pack

_CLUSTER = 2
_BANDS = 3
_PARTS = 2
THREADS = (_BANDS + 1) * 128
_BARRIERS = 1 + 4 * _PARTS + POINTS


def _shared_bytes(uint8: bool) -> int:
    """Return the bytes of filters of two points and of conv1, maps, pixels and mbarriers."""
    filters2 = 2 * FILTER_BYTES // POINTS
    pixels = BATCH * _BANDS * 12 * 28 * 2 * (1 if uint8 else _PARTS)
    conv1 = 32 * 64 * 2
    return _PARTS * (filters2 + conv1 + BATCH * MAP_BYTES) + pixels + 8 * _BARRIERS


def kernel(uint8: bool) -> Kernel:
    """Return the kernel for uint8 pixels (divided by 255) or for float32 pixels in 0..1."""
    memory = {"SHARED_BYTES": _shared_bytes(uint8), "MOST_BYTES": SM_90_BLOCK_BYTES}
    forms = {"UINT8_PIXELS": int(uint8), "SPLIT": 1, "IMAGES": BATCH // 2, "TILE": TILE_IMAGES}
    return Kernel.beside(__file__, "split_features", **forms, **memory)


@hopper_features(
    family="wgmma_winograd_fp16x3",
    precision="fp16x3",
    writes="F16X2",
    prepare=lambda w, problem, batch: filters(pack(w)),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: Filters, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one cluster kernel on wgmma, conv2 by Winograd, split operands."""
    uint8 = x.dtype == "uint8"
    clusters = min(blocks_for(len(x), _CLUSTER * BATCH), multiprocessors() // _CLUSTER)
    grid, shared = (_CLUSTER * clusters,), _shared_bytes(uint8)
    launch(kernel(uint8), grid, (THREADS,), w.args(x, y), shared=shared, overlap=True)
