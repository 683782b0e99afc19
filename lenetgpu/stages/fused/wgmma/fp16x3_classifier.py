"""Features to labels at fp32 accuracy on Hopper's tensor cores: the second kernel of `split`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import CLASSIFIER, Classifier
from lenetgpu.stages.fused.wgmma.fp16x3_features import SHARED_BYTES, TILE, Packed, prepare_span
from lenetgpu.stages.registry import hopper, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_TILE: dict[str, int] = {"STAGES": 4}
_THREADS = 256


@cache
def classifier_kernel(**tile: int) -> Kernel:
    """The kernel from features to labels."""
    defines = {"SHARED_BYTES": SHARED_BYTES} | TILE | _TILE | tile
    return Kernel(_SOURCE, "split_classifier", tuple(defines.items()))


@variant(
    kind=CLASSIFIER,
    family="split",
    reads="F16X2",
    writes="N",
    needs=hopper(),
    precision="fp16x3",
    prepare=prepare_span,
    kernels=lambda problem: (classifier_kernel(),),
)
def classifier(x: Any, w: Packed, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel on wgmma, operands split into fp16 hi and lo."""
    import numpy as np

    labels, scores = y
    launch(
        classifier_kernel(),
        (blocks_for(len(labels), TILE["CLASSIFIER_IMAGES"]),),
        (_THREADS,),
        (
            x,
            w.weights1,
            w.weights2,
            labels,
            np.uint64(0) if scores is None else scores,
            np.int32(len(labels)),
            np.float32(w.scale3),
        ),
        SHARED_BYTES,
        overlap=True,
    )
