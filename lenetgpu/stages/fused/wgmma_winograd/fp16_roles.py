"""As fp16_features, by warpgroups with roles: three for conv1, one that multiplies (sm_90a)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.wgmma_winograd.fp16_launch import Design, Packed, pack
from lenetgpu.stages.registry import hopper, variant

_BANDS = 3
DESIGN = Design(
    Path(__file__).with_suffix(".cu").resolve(),
    "roles_features",
    threads=(_BANDS + 1) * 128,
    pixel_bytes=_BANDS * 12 * 28 * 2,
    barriers=4,
)
"""Three warpgroups have a band of lines each; the fourth multiplies."""


@variant(
    kind=FEATURES,
    family="wgmma_winograd_roles_fp16",
    reads="NHWC",
    writes="F16",
    needs=hopper(),
    precision="fp16w",
    prepare=pack,
    kernels=DESIGN.kernels,
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one kernel on wgmma whose warpgroups have roles, conv2 by Winograd."""
    DESIGN.launch(x, w, y)
