"""Features to labels in one kernel: fc1, ReLU, fc2 and argmax (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import CLASSIFIER, FEATURE_COUNT, Classifier
from lenetgpu.stages.fused.features import feature_order
from lenetgpu.stages.registry import hopper, variant

if TYPE_CHECKING:
    import numpy as np

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_THREADS = 256
_HIDDEN = 128


@dataclass(frozen=True)
class Tiling:
    """Images a block takes, features in a slice, slices in flight."""

    tile: int = 80
    slice: int = 128
    stages: int = 4

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: slots of filters and features, and their barriers."""
        planes = self.slice // 8 * (self.tile + 1) * 16
        return self.stages * (_HIDDEN * self.slice * 2 + planes + 8)


TILING = Tiling()


@dataclass(frozen=True)
class Packed:
    """Weights on the device: fc1 (64, 2, 2, 64, 8) fp16, fc2 (8, 2, 32, 4) fp16."""

    fc1: Any
    fc2: Any


def kernel(tiling: Tiling = TILING, **extra: int) -> Kernel:
    """The kernel of one tiling."""
    defines = {
        "TILE": tiling.tile,
        "SLICE": tiling.slice,
        "STAGES": tiling.stages,
        "SHARED_BYTES": tiling.shared_bytes,
        **extra,
    }
    return Kernel(_SOURCE, "classifier", tuple(defines.items()))


def pack_fc1(fc1: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(1024, 128) weights as (64, 2, 2, 64, 8) fp16, rows in the order of the features kernel.

    K step, half of the outputs, feature/8, output, feature.
    """
    import numpy as np

    rows = fc1[feature_order()].reshape(FEATURE_COUNT // 16, 2, 8, 2, 64)
    return np.ascontiguousarray(rows.transpose(0, 3, 1, 4, 2), dtype=np.float16)


def pack_fc2(fc2: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(128, 10) weights as (8, 2, 32, 4) fp16: K step, classes/8, lane, mma's B, zeros past 10."""
    import numpy as np

    padded = np.zeros((_HIDDEN, 16), np.float16)
    padded[:, :10] = fc2
    step, eight, lane, item = np.indices((8, 2, 32, 4))
    k = 16 * step + 2 * (lane % 4) + item % 2 + 8 * (item // 2)
    packed: np.ndarray[Any, Any] = padded[k, 8 * eight + lane // 4]
    return packed


def prepare_classifier(fc1: np.ndarray[Any, Any], fc2: np.ndarray[Any, Any]) -> Packed:
    """Weights (1024, 128) and (128, 10) as the kernel reads them, on the device."""
    import cupy

    return Packed(cupy.asarray(pack_fc1(fc1)), cupy.asarray(pack_fc2(fc2)))


def _prepare(w: Any, problem: Classifier, batch: int) -> Packed:
    return prepare_classifier(w[2], w[3])


@variant(
    kind=CLASSIFIER,
    family="fused",
    reads="F16",
    writes="N",
    needs=hopper(),
    precision="fp16",
    prepare=_prepare,
    kernels=lambda problem: (kernel(),),
)
def classifier(x: Any, w: Packed, y: Any, problem: Classifier) -> None:
    """fc1, ReLU, fc2 and argmax in one kernel on wgmma, fp16 operands, fp32 sums."""
    import numpy as np

    labels, scores = y
    launch(
        kernel(),
        (blocks_for(len(labels), TILING.tile),),
        (_THREADS,),
        (
            x,
            w.fc1,
            w.fc2,
            labels,
            np.uint64(0) if scores is None else scores,
            np.int32(len(labels)),
        ),
        shared=TILING.shared_bytes,
    )
