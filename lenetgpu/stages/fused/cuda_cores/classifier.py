"""Features to labels in fp32 on CUDA cores: fc1, ReLU, fc2 and argmax in one kernel."""

from functools import cache
from typing import Any

from lenetgpu.arrays import Array, cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import CLASSES, Classifier
from lenetgpu.stages.fused.cuda_cores.tuning import TUNINGS, Tuning, tuning
from lenetgpu.stages.fused.split import on_device
from lenetgpu.stages.registry import classifier_variant

_HIDDEN, _THREADS, _STAGES = 128, 128, 2


def _shared_bytes(size: Tuning) -> int:
    images, bk = size.classifier_images, size.classifier_bk
    return 4 * _STAGES * (images * (bk + 4) + bk * _HIDDEN)


@cache
def kernel(size: Tuning) -> Kernel:
    """Return the kernel for a tuning."""
    sizes = {"THREADS": _THREADS, "BLOCKS": size.classifier_blocks}
    sizes |= {"IMAGES": size.classifier_images, "BK": size.classifier_bk, "STAGES": _STAGES}
    return size.kernel(__file__, "plain_classify", **sizes, SHARED_BYTES=_shared_bytes(size))


def pack(fc1: Array, fc2: Array) -> tuple[Array, Array]:
    """Return fc1 (1024, 128) scaled by pool2's 1/4 and fc2 (128, 10) as (10, 128), both float32."""
    quarter = np.asarray(fc1, np.float64) / 4
    return quarter.astype(np.float32), np.ascontiguousarray(np.asarray(fc2).T, np.float32)


def _prepare(w: Any, problem: Classifier, batch: int) -> Any:
    fc1, fc2 = pack(w[2], w[3])
    unasked = cupy.empty((batch, CLASSES), cupy.float32)
    return on_device(fc1=fc1, fc2=fc2, scores=unasked)


@classifier_variant(
    family="cuda_cores_fp32",
    also="plain.classifier",
    reads="F32",
    prepare=_prepare,
    kernels=lambda problem, batch: tuple(kernel(size) for size in TUNINGS),
)
def classifier(x: Any, w: Any, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel, register tiles of images x hidden units."""
    labels, scores = y
    size, scores = tuning(), w.scores if scores is None else scores
    blocks = blocks_for(len(labels), size.classifier_images)
    args = (x, w.fc1, w.fc2, scores, labels, np.int32(len(labels)))
    launch(kernel(size), (blocks,), (_THREADS,), args, shared=_shared_bytes(size))
