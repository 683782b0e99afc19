"""Images to pool2's features, conv2 by Winograd F(4,5): fp16 operands on mma.sync (sm_80 on)."""

from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Features
from lenetgpu.stages.fused.cuda_cores.tuning import POINTS
from lenetgpu.stages.fused.mma.pack import fragments
from lenetgpu.stages.fused.split import Filters, in_fp16, of_pixels
from lenetgpu.stages.fused.wgmma_winograd import fp16_pack
from lenetgpu.stages.registry import cuda, features_variant

WARPS = IMAGES = 8  # warps of a block (8 conv2 outputs each), and images of a block


def pack_conv1(conv1: Array) -> Array:
    """Arrange (5, 5, 1, 32) filters as (2, 4, 32, 2, 2, 4) fp16, scales and K as for wgmma.

    Axes: scale, channel/8, lane, dx, K step, 4.
    """
    columns = fp16_pack.pack_conv1(conv1).transpose(0, 1, 2, 4, 3).reshape(2, 32, 64)
    packed = fragments(columns).reshape(2, 2, 4, 32, 2, 4).transpose(0, 2, 3, 4, 1, 5)
    return np.ascontiguousarray(packed)


def pack_conv2(conv2: Array) -> Array:
    """Arrange (5, 5, 32, 64) filters as (8, 5, 8, 32, 2, 4) fp16; infinity is first, 0 second.

    Axes: point, row, warp, lane, K step, 4. In K a vector has pairs of each 8 channels; outputs
    are ordered warp by warp, a 16-byte vector of the features each.
    """
    vec, item = np.divmod(np.arange(32), 8)
    channels = 8 * (item // 2) + 2 * vec + item % 2
    warp, column = np.divmod(np.arange(64), 8)
    outputs = 32 * (warp // 4) + 8 * (column // 2) + 2 * (warp % 4) + column % 2
    points = fp16_pack.in_fp16(conv2)[[1, 0, *range(2, POINTS)]]
    matrix = points[:, :, channels][:, :, :, outputs]
    packed = fragments(matrix).reshape(POINTS, 5, 2, WARPS // 2, 32, 2, 4)
    packed = packed.transpose(0, 1, 3, 5, 4, 2, 6).reshape(POINTS, 5, WARPS, 32, 2, 4)
    return np.ascontiguousarray(packed)


THREADS = WARPS * WARP
_VEC_BYTES = 16
_MAP_BYTES = POINTS * 12 * 2 * 32 * 2
# Transformed maps, with a vector of padding between images; pixels share the maps' memory.
SHARED_BYTES = IMAGES * (_MAP_BYTES + _VEC_BYTES)


def kernel(uint8: bool) -> Kernel:
    """Return the kernel for uint8 pixels (divided by 255) or for float32 pixels in 0..1."""
    defines = {"UINT8_PIXELS": int(uint8), "SHARED_BYTES": SHARED_BYTES}
    return Kernel.beside(__file__, "mma_winograd_features", **defines)


@features_variant(
    family="mma_winograd_fp16",
    writes="F16",
    needs=cuda(80),
    precision="fp16w",
    prepare=in_fp16(pack_conv1, pack_conv2),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: Filters, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on mma.sync, conv2 by Winograd, fp16 operands."""
    blocks, uint8 = min(multiprocessors(), blocks_for(len(x), IMAGES)), bool(x.dtype == "uint8")
    launch(kernel(uint8), (blocks,), (THREADS,), w.args(x, y), shared=SHARED_BYTES)
