"""Features to labels in one kernel: fp16 operands on wgmma, fp32 sums (sm_90a)."""

from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import CLASSES, FEATURE_COUNT, Classifier
from lenetgpu.stages.fused.split import hopper_classifier, on_device, output_args
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES
from lenetgpu.stages.fused.wgmma.fp16_pack import HIDDEN, pack_fc1, pack_fc2

_CLUSTER = 2
_THREADS = 256 + 32
_SLICE = 64
_SLICES = FEATURE_COUNT // _SLICE
_STAGES = 4
_FILTER_BYTES = FEATURE_COUNT * HIDDEN // _CLUSTER * 2
_STAGES_BYTES = _STAGES * _CLUSTER * TILE_IMAGES * _SLICE * 2
_SCORE_BYTES = 4 * CLASSES * (TILE_IMAGES + 8) * 4
_BARRIER_BYTES = 8 * (_SLICES + 2 * _STAGES + 1)
_SHARED_BYTES = _FILTER_BYTES + _STAGES_BYTES + _SCORE_BYTES + _BARRIER_BYTES


def kernel() -> Kernel:
    """Return the kernel from features to labels; a block classifies 80 images."""
    sizes = {"TILE": TILE_IMAGES, "STAGES": _STAGES, "SHARED_BYTES": _SHARED_BYTES}
    return Kernel.beside(__file__, "classifier", **sizes)


@hopper_classifier(
    family="wgmma_fp16",
    also="fused.classifier",
    reads="F16",
    precision="fp16",
    prepare=lambda w, problem, batch: on_device(fc1=pack_fc1(w[2]), fc2=pack_fc2(w[3])),
    kernels=lambda problem, batch: (kernel(),),
)
def classifier(x: Any, w: Any, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel on wgmma, fp16 operands, fp32 sums."""
    labels, scores, count = output_args(y)
    blocks = _CLUSTER * blocks_for(len(labels), _CLUSTER * TILE_IMAGES)
    args = (x, w.fc1, w.fc2, labels, scores, count)
    launch(kernel(), (blocks,), (_THREADS,), args, shared=_SHARED_BYTES, overlap=True)
