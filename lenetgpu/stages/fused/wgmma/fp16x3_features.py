"""Images to pool2's features at fp32 accuracy on wgmma: split fp16 operands (sm_90a)."""

from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import SM_90_BLOCK_BYTES, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Features
from lenetgpu.stages.fused.split import Filters, filters, hopper_features, of_pixels
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES
from lenetgpu.stages.fused.wgmma.fp16_pack import pack

_BATCH = 4
_THREADS = 384
_SHARED_BYTES = SM_90_BLOCK_BYTES


def kernel(uint8: bool) -> Kernel:
    """Return the kernel for uint8 pixels (divided by 255) or for float32 pixels in 0..1."""
    form = {"UINT8_PIXELS": int(uint8), "SPLIT": 1, "SHARED_BYTES": _SHARED_BYTES}
    sizes = {"IMAGES": 2, "TILE": TILE_IMAGES, "PROMOTE": 3, "STAGES": 8}
    return Kernel.beside(__file__, "split_features", **form, **sizes)


@hopper_features(
    family="wgmma_fp16x3",
    also="split.features",
    writes="F16X2",
    precision="fp16x3",
    prepare=lambda w, problem, batch: filters(pack(w)),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: Filters, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, split fp16 operands."""
    made, blocks = kernel(x.dtype == "uint8"), min(blocks_for(len(x), _BATCH), multiprocessors())
    launch(made, (blocks,), (_THREADS,), w.args(x, y), shared=_SHARED_BYTES, overlap=True)
