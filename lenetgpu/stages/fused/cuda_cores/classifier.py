"""Features to labels in fp32 on CUDA cores: fc1, ReLU, fc2 and argmax in one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import CLASSES, CLASSIFIER, Classifier
from lenetgpu.stages.fused.cuda_cores.features import TUNINGS, Tuning, tuning
from lenetgpu.stages.registry import cuda, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_HIDDEN = 128


def _shared(size: Tuning) -> int:
    stage = size.classify_images * (size.classify_depth + 4) + size.classify_depth * _HIDDEN
    return 4 * size.classify_stages * stage


@cache
def classify_kernel(size: Tuning) -> Kernel:
    """fc1, fc2 and argmax."""
    return Kernel(
        _SOURCE,
        "plain_classify",
        (
            ("THREADS", size.classify_threads),
            ("SPLIT", size.classify_split),
            ("BLOCKS", size.classify_blocks),
            ("IMAGES", size.classify_images),
            ("DEPTH", size.classify_depth),
            ("STAGES", size.classify_stages),
            ("SHARED_BYTES", _shared(size)),
        ),
        size.only,
    )


@dataclass(frozen=True)
class Packed:
    """fc1 (1024, 128) with pool2's 1/4, fc2 (10, 128), and room for scores nobody asked for."""

    fc1: Any
    fc2: Any
    scores: Any


def _prepare(w: Any, problem: Classifier, batch: int) -> Packed:
    import cupy
    import numpy as np

    first = np.asarray(w[2], np.float64) / 4
    second = np.ascontiguousarray(np.asarray(w[3]).T)
    return Packed(
        cupy.asarray(first.astype(np.float32)),
        cupy.asarray(second.astype(np.float32)),
        cupy.empty((batch, CLASSES), cupy.float32),
    )


@variant(
    kind=CLASSIFIER,
    family="plain",
    reads="F32",
    writes="N",
    needs=cuda(75),
    prepare=_prepare,
    kernels=lambda problem: tuple(classify_kernel(size) for size in TUNINGS),
)
def classifier(x: Any, w: Packed, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel, register tiles of images x hidden units."""
    import numpy as np

    labels, scores = y
    size = tuning()
    launch(
        classify_kernel(size),
        (blocks_for(len(labels), size.classify_images),),
        (size.classify_threads,),
        (x, w.fc1, w.fc2, w.scores if scores is None else scores, labels, np.int32(len(labels))),
        shared=_shared(size),
    )
