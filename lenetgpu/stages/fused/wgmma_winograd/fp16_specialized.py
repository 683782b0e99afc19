"""As fp16_features, by warpgroups with roles: three for conv1, one that multiplies (sm_90a)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.cuda_cores.winograd import POINTS
from lenetgpu.stages.fused.wgmma_winograd.fp16_features import (
    BATCH,
    Packed,
    kernel_of,
    launch_on,
    pack,
    shared_bytes,
)
from lenetgpu.stages.registry import hopper, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_BANDS = 3
_BAND_BYTES = 12 * 28 * 2
THREADS = (_BANDS + 1) * 128
_SHARED_BYTES = shared_bytes(_BANDS * BATCH * _BAND_BYTES, 1 + POINTS + 4)


def kernel(uint8: bool) -> Kernel:
    """The kernel whose fourth warpgroup multiplies what three have transformed."""
    return kernel_of(_SOURCE, "specialized_features", _SHARED_BYTES, uint8)


@variant(
    kind=FEATURES,
    family="wgmma_winograd_specialized_fp16",
    reads="NHWC",
    writes="F16",
    needs=hopper(),
    precision="fp16w",
    prepare=pack,
    kernels=lambda problem, batch: (kernel(uint8=True), kernel(uint8=False)),
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, by warpgroups with roles, fp16 operands."""
    launch_on(kernel(x.dtype == "uint8"), THREADS, _SHARED_BYTES, x, w, y)
