"""Images to pool2's features, conv2 in bytes with 2:4 sparse filters on sparse wgmma (sm_90a)."""

from types import SimpleNamespace
from typing import Any

from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Features
from lenetgpu.stages.fused.split import hopper_features, of_pixels
from lenetgpu.stages.fused.wgmma import fp16_features as fp16
from lenetgpu.stages.fused.wgmma.int8_features import args, on_gpu
from lenetgpu.stages.fused.wgmma_sparse.pack import pack
from lenetgpu.stages.fused.wgmma_sparse.prune import pruned

_PRODUCERS, _BUFFERS = 3, 2
# Bytes of an image's maps; the planes of two images are four core-matrix rows apart.
_MAP_BYTES = 12 * 12 * 32 + 4 * 16
_BARRIERS = 2 * _PRODUCERS * _BUFFERS + 1
# The last warpgroup is the consumer; each producer has two map buffers.
TILING = fp16.Tiling(
    _PRODUCERS + 1, 0, fp16.shared_bytes(_PRODUCERS, 0, _BUFFERS * _MAP_BYTES, _BARRIERS)
)


def kernel(uint8: bool) -> Kernel:
    """Return the kernel for uint8 or for float pixels."""
    return TILING.kernel(__file__, "sparse_features", uint8)


@hopper_features(
    family="wgmma_sparse_int8",
    writes="F16",
    precision="int8s",
    prepare=lambda w, problem, batch: on_gpu(pack(w[0], pruned(w[0], w[1]))),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: SimpleNamespace, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 in bytes with 2:4 sparse filters."""
    TILING.launch(kernel(x.dtype == "uint8"), args(x, w, y))
