"""Images to pool2's features at fp32 accuracy on mma.sync: every GPU from sm_80 on."""

from __future__ import annotations

from typing import Any

from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.mma.features import Weights, kernels, prepare, run
from lenetgpu.stages.registry import cuda, variant


@variant(
    kind=FEATURES,
    family="mma_split",
    reads="NHWC",
    writes="F16X2",
    needs=cuda(80),
    precision="fp16x3",
    prepare=lambda w, problem, batch: prepare(w, 2),
    kernels=lambda problem: kernels(2),
    raw_images=True,
)
def features(x: Any, w: Weights, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on mma.sync, operands split into fp16 hi and lo."""
    run(x, w, y, 2)
