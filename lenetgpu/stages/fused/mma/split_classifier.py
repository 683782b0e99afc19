"""Features to labels at fp32 accuracy on mma.sync: every GPU from sm_80 on."""

from __future__ import annotations

from typing import Any

from lenetgpu.network import CLASSIFIER, Classifier
from lenetgpu.stages.fused.mma.classifier import Weights, kernel, prepare, run
from lenetgpu.stages.registry import cuda, variant


@variant(
    kind=CLASSIFIER,
    family="mma_split",
    reads="F16X2",
    writes="N",
    needs=cuda(80),
    precision="fp16x3",
    prepare=lambda w, problem, batch: prepare(w, 2),
    kernels=lambda problem: (kernel(2),),
)
def classifier(x: Any, w: Weights, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel on mma.sync, operands split into fp16 hi and lo."""
    run(x, w, y, 2)
