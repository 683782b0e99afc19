"""Features to labels in one kernel at fp32 accuracy: fc1, ReLU, fc2 and argmax (sm_90a)."""

from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import SM_90_BLOCK_BYTES
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Classifier
from lenetgpu.stages.fused.split import hopper_classifier, on_device, output_args
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES
from lenetgpu.stages.fused.wgmma.fp16_pack import VECS, pack

_THREADS = 256
_SHARED_BYTES = SM_90_BLOCK_BYTES


def kernel() -> Kernel:
    """Return the kernel from features to labels."""
    tile = {"CLASSIFIER_IMAGES": TILE_IMAGES, "CLASSIFIER_VECS": VECS, "STAGES": 4}
    return Kernel.beside(__file__, "split_classifier", SHARED_BYTES=_SHARED_BYTES, **tile)


def _prepare(w: Any, problem: Classifier, batch: int) -> Any:
    packed = pack(w)
    return on_device(fc1=packed.fc1, fc2=packed.fc2, scale1=np.float32(packed.factors.fc1))


@hopper_classifier(
    family="wgmma_fp16x3",
    also="split.classifier",
    reads="F16X2",
    precision="fp16x3",
    prepare=_prepare,
    kernels=lambda problem, batch: (kernel(),),
)
def classifier(x: Any, w: Any, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel on wgmma, split fp16 operands."""
    labels, scores, count = output_args(y)
    blocks = blocks_for(len(labels), TILE_IMAGES)
    args = (x, w.fc1, w.fc2, labels, scores, count, w.scale1)
    launch(kernel(), (blocks,), (_THREADS,), args, shared=_SHARED_BYTES, overlap=True)
