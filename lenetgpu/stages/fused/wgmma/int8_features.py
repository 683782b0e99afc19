"""Images to pool2's features with conv2 in int8: twice the rate of fp16 (sm_90a)."""

from types import SimpleNamespace
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Features
from lenetgpu.stages.fused.split import hopper_features, of_pixels, on_device
from lenetgpu.stages.fused.wgmma import fp16_features as fp16
from lenetgpu.stages.fused.wgmma.int8_pack import pack

TILING = fp16.Tiling(4, 25, fp16.shared_bytes(4, 5 * 5 * 32 * 64, 12 * 12 * 32, 6))


def kernel(uint8: bool) -> Kernel:
    """Return the kernel for uint8 or for float pixels."""
    return TILING.kernel(__file__, "int8_features", uint8)


def on_gpu(packed: tuple[Array, Array, Array]) -> SimpleNamespace:
    """Copy the result of `int8_pack.pack` to the device: conv1, conv2 and scales."""
    conv1, conv2, scales = packed
    return on_device(conv1=conv1, conv2=conv2, scales=scales)


def args(x: Any, w: SimpleNamespace, y: Any) -> tuple[Any, ...]:
    """Return the arguments of an int8 conv2 kernel for images `x` and features `y`."""
    return (x, w.conv1[int(x.dtype == "uint8")], w.conv2, w.scales, y, np.int32(len(x)))


@hopper_features(
    family="wgmma_int8",
    also="int8.features",
    writes="F16",
    precision="int8",
    prepare=lambda w, problem, batch: on_gpu(pack(w[0], w[1])),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: SimpleNamespace, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 in bytes with int32 sums."""
    TILING.launch(kernel(x.dtype == "uint8"), args(x, w, y))
