"""Features to labels in one kernel on mma.sync (sm_80 and later)."""

from collections.abc import Callable
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import CLASSIFIER, Classifier
from lenetgpu.stages.fused.mma.pack import pack
from lenetgpu.stages.fused.split import on_device, output_args
from lenetgpu.stages.registry import cuda, variant

_THREADS = 256
_TILE, _STAGES = 80, 3
_STAGE_BYTES = 64 * 128 * 2 + 64 // 8 * (_TILE + 1) * 16
_SHARED_BYTES = _STAGES * _STAGE_BYTES


def kernel(parts: int) -> Kernel:
    """Return the kernel for operands of `parts` parts; a block classifies 80 images."""
    sizes = {"TILE": _TILE, "STAGES": _STAGES, "BLOCKS": 1, "SHARED_BYTES": _SHARED_BYTES}
    return Kernel.beside(__file__, "mma_classifier", PARTS=parts, **sizes)


def _prepare(w: Any, parts: int) -> Any:
    packed = pack(w, parts)
    scale1, scale2 = np.float32(packed.factors.fc1), np.float32(packed.factors.fc2)
    return on_device(fc1=packed.fc1, fc2=packed.fc2, scale1=scale1, scale2=scale2)


def _run(x: Any, w: Any, y: Any, parts: int) -> None:
    labels, scores, count = output_args(y)
    args = (x, w.fc1, w.fc2, labels, scores, count, w.scale1, w.scale2)
    blocks = blocks_for(len(labels), _TILE)
    launch(kernel(parts), (blocks,), (_THREADS,), args, shared=_SHARED_BYTES)


def _variant(parts: int, **fields: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return variant(
        kind=CLASSIFIER,
        needs=cuda(80),
        prepare=lambda w, problem, batch: _prepare(w, parts),
        kernels=lambda problem, batch: (kernel(parts),),
        **fields,
    )


@_variant(1, family="mma_fp16", also="mma.classifier", reads="F16", precision="fp16")
def classifier(x: Any, w: Any, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel on mma.sync, fp16 operands, fp32 sums."""
    _run(x, w, y, 1)


@_variant(2, family="mma_fp16x3", also="mma_split.classifier", reads="F16X2", precision="fp16x3")
def classifier_(x: Any, w: Any, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel on mma.sync, split fp16 operands."""
    _run(x, w, y, 2)
