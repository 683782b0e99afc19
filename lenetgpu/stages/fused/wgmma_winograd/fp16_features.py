"""Images to pool2's features, conv2 by Winograd F(4,5): fp16 operands on wgmma (sm_90a)."""

from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import SM_90_BLOCK_BYTES, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Features
from lenetgpu.stages.fused.cuda_cores.tuning import POINTS
from lenetgpu.stages.fused.split import Filters, hopper_features, in_fp16, of_pixels
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES
from lenetgpu.stages.fused.wgmma_winograd.fp16_pack import pack_conv1, pack_conv2

BATCH = 4  # images of a block in flight through conv2
FILTER_BYTES = POINTS * 5 * 32 * 64 * 2  # conv2's filters, fp16
MAP_BYTES = POINTS * 12 * 2 * 32 * 2  # an image's transformed maps, fp16


_BANDS = 3  # bands of rows, one per producer warpgroup; the fourth warpgroup is the consumer
THREADS = (_BANDS + 1) * 128
_BARRIERS = 1 + POINTS + 4
_PIXEL_BYTES = _BANDS * 12 * 28 * 2
# Filters, transformed maps, pixels and mbarriers.
SHARED_BYTES = 32 * 64 * 2 + FILTER_BYTES + BATCH * (MAP_BYTES + _PIXEL_BYTES) + 8 * _BARRIERS


def kernel(uint8: bool) -> Kernel:
    """Return the kernel for uint8 pixels (divided by 255) or for float32 pixels in 0..1."""
    forms = {"UINT8_PIXELS": int(uint8), "SPLIT": 0, "IMAGES": BATCH // 2, "TILE": TILE_IMAGES}
    memory = {"SHARED_BYTES": SHARED_BYTES, "MOST_BYTES": SM_90_BLOCK_BYTES}
    return Kernel.beside(__file__, "winograd_features", **forms, **memory)


@hopper_features(
    family="wgmma_winograd_fp16",
    also="wgmma_winograd_roles_fp16.features",
    writes="F16",
    precision="fp16w",
    prepare=in_fp16(pack_conv1, pack_conv2),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: Filters, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one warp-specialized kernel on wgmma, conv2 by Winograd."""
    batches = blocks_for(len(x), TILE_IMAGES) * TILE_IMAGES // BATCH
    made, grid = kernel(x.dtype == "uint8"), (min(multiprocessors(), batches),)
    launch(made, grid, (THREADS,), w.args(x, y), shared=SHARED_BYTES, overlap=True)
