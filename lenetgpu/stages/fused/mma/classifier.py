"""Features to labels in one kernel on mma.sync: every GPU from sm_80 on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import CLASSIFIER, Classifier
from lenetgpu.stages.fused.mma.pack import pack
from lenetgpu.stages.registry import cuda, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256
_HIDDEN = 128
_STAGE_DEPTH = 64


@dataclass(frozen=True)
class Tiling:
    """Images a block takes, stages in flight, blocks a multiprocessor."""

    tile: int = 80
    stages: int = 3
    blocks: int = 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: stages of weights and of features."""
        planes = _STAGE_DEPTH // 8 * (self.tile + 1) * 16
        return self.stages * (_STAGE_DEPTH * _HIDDEN * 2 + planes)


TILING = Tiling()


def kernel(parts: int, tiling: Tiling = TILING) -> Kernel:
    """The kernel for operands of `parts` parts."""
    return Kernel(
        _SOURCE,
        "mma_classifier",
        (
            ("PARTS", parts),
            ("TILE", tiling.tile),
            ("STAGES", tiling.stages),
            ("BLOCKS", tiling.blocks),
            ("SHARED_BYTES", tiling.shared_bytes),
        ),
    )


@dataclass(frozen=True)
class Weights:
    """Operands on the device, and the factors that undo their scales."""

    fc1: Any
    fc2: Any
    scale1: Any
    scale2: Any


def prepare(w: Any, parts: int) -> Weights:
    """Weights of the span's four tensors as the kernel reads them, on the current device."""
    import cupy
    import numpy as np

    packed = pack(w, parts)
    return Weights(
        cupy.asarray(packed.fc1),
        cupy.asarray(packed.fc2),
        np.float32(packed.scale_fc1),
        np.float32(packed.scale_fc2),
    )


def run(x: Any, w: Weights, y: Any, parts: int, tiling: Tiling = TILING) -> None:
    """Launch the kernel on features `x`; `y` is labels, and scores or None."""
    import numpy as np

    labels, scores = y
    launch(
        kernel(parts, tiling),
        (blocks_for(len(labels), tiling.tile),),
        (_THREADS,),
        (
            x,
            w.fc1,
            w.fc2,
            labels,
            np.uint64(0) if scores is None else scores,
            np.int32(len(labels)),
            w.scale1,
            w.scale2,
        ),
        shared=tiling.shared_bytes,
    )


@variant(
    kind=CLASSIFIER,
    family="mma",
    reads="F16",
    writes="N",
    needs=cuda(80),
    precision="fp16",
    prepare=lambda w, problem, batch: prepare(w, 1),
    kernels=lambda problem: (kernel(1),),
)
def classifier(x: Any, w: Weights, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel on mma.sync, fp16 operands, fp32 sums."""
    run(x, w, y, 1)
