"""Images to pool2's features with conv2 in bytes: twice the rate of fp16 (sm_90a)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.split import of_pixels, on_device
from lenetgpu.stages.fused.wgmma import fp16_features as fp16
from lenetgpu.stages.fused.wgmma.int8_pack import pack
from lenetgpu.stages.registry import hopper, variant

TILING = fp16.Tiling(4, 2, 25, filter2_bytes=5 * 5 * 32 * 64, map_bytes=12 * 12 * 32)


def kernel(uint8: bool) -> Kernel:
    """The kernel for such pixels."""
    return Kernel.beside(__file__, "int8_features", **fp16.defines(uint8, TILING))


def on_gpu(packed: tuple[Array, Array, Array]) -> SimpleNamespace:
    """What `int8_pack.pack` gave on the device: conv1, conv2 and scales."""
    conv1, conv2, scales = packed
    return on_device(conv1=conv1, conv2=conv2, scales=scales)


def run(made: Kernel, tiling: fp16.Tiling, x: Any, w: SimpleNamespace, y: Any) -> None:
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
    prepare=lambda w, problem, batch: on_gpu(pack(w[0], w[1])),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: SimpleNamespace, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 in bytes with int32 sums."""
    run(kernel(x.dtype == "uint8"), TILING, x, w, y)
