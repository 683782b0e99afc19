"""Images to pool2's features, conv2 by Winograd F(4,5): fp16 operands on wgmma (sm_90a)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.wgmma_winograd.fp16_launch import Design, Packed, pack
from lenetgpu.stages.registry import hopper, variant

_GROUPS = 2
DESIGN = Design(
    Path(__file__).with_suffix(".cu").resolve(),
    "winograd_features",
    threads=_GROUPS * 128,
    pixel_bytes=_GROUPS * 28 * 28 * 2,
    barriers=2,
)
"""Two warpgroups take turns."""


@variant(
    kind=FEATURES,
    family="wgmma_winograd_fp16",
    reads="NHWC",
    writes="F16",
    needs=hopper(),
    precision="fp16w",
    prepare=pack,
    kernels=DESIGN.kernels,
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 by Winograd, fp16 operands."""
    DESIGN.launch(x, w, y)
