"""The whole network at fp32 accuracy on Hopper's tensor cores: two kernels, images to labels.

Every operand is scaled by a power of two and split into fp16 hi + lo (22 bits); the three products
that matter are accumulated apart from long sums (Ootomo & Yokota, arXiv 2203.03341). Scales are
chosen from the weights so that no activation of images within +-`PIXEL_BOUND` overflows fp16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.gpu.launch import blocks_for, launch, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import CLASSES, FEATURES, PIXEL_SCALE, Features
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES, arrange_conv1
from lenetgpu.stages.registry import hopper, variant

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PIXEL_BOUND = 4.0
SHARED_BYTES = 227 * 1024
TILE: dict[str, int] = {"CLASSIFIER_IMAGES": TILE_IMAGES, "CLASSIFIER_CELLS": 8}
FEATURE_TILE: dict[str, int] = {"IMAGES": 2, "TILE": TILE_IMAGES, "PROMOTE": 3, "STAGES": 8}
BATCH = 4
_THREADS = 384

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_HALF_EXPONENT = 15
_FLOAT_PIXEL_EXPONENT = 8


@dataclass(frozen=True)
class Packed:
    """Weights on the device in the kernels' order, and the factors that undo their scales."""

    filters1: Any
    filters2: Any
    weights1: Any
    weights2: Any
    scale_bytes: float
    scale_floats: float
    scale2: float
    scale3: float


@cache
def features_kernel(floats: bool, **tile: int) -> Kernel:
    """The kernel from images (float32 or uint8) to features."""
    defines = {"UINT8_PIXELS": int(not floats), "SPLIT": 1, "SHARED_BYTES": SHARED_BYTES}
    return Kernel(_SOURCE, "split_features", tuple((defines | FEATURE_TILE | tile).items()))


def _exponent(bound: float) -> int:
    """Smallest e with bound <= 2**e; 0 for a bound of zero."""
    return math.ceil(math.log2(bound)) if bound > 0 else 0


def _split(w: Array, axis: int = 0) -> tuple[Array, int]:
    """`w` times 2**k as fp16 hi and lo stacked along a new axis, and k."""
    import numpy as np

    k = _HALF_EXPONENT - 1 - _exponent(float(np.abs(w).max()))
    scaled = np.ldexp(w.astype(np.float64), k)
    high = scaled.astype(np.float16)
    low = (scaled - high).astype(np.float16)
    return np.stack([high, low], axis), k


def _pack_filters1(w: Array) -> tuple[Array, int]:
    """(5, 5, 1, 32) as [part][K step][half][column][8] (see `arrange_conv1`), and the exponent."""
    import numpy as np

    split, k = _split(w)
    return np.stack([arrange_conv1(part) for part in split]), k


def _pack_filters2(w: Array) -> tuple[Array, int]:
    """(5, 5, 32, 64) as [tap][part][channel/8][map][8], and the exponent."""
    import numpy as np

    split, k = _split(w.reshape(25, 4, 8, 64), axis=1)
    return np.ascontiguousarray(split.transpose(0, 1, 2, 4, 3)), k


def _pack_weights1(w: Array) -> tuple[Array, int]:
    """(1024, 128) as [chunk][part][k/8][output][8] in the features' order, and the exponent.

    Features lie as cells of one thread: cell 32*warp + 4*g + px, element 2*py + h is channel
    16*warp + 8*h + g of pooled position (py, px).
    """
    import numpy as np

    cells = w.reshape(4, 4, 4, 2, 8, 128).transpose(2, 4, 1, 0, 3, 5)  # warp, g, px, py, h, output
    split, k = _split(cells.reshape(-1, TILE["CLASSIFIER_CELLS"], 8, 128), axis=1)
    return np.ascontiguousarray(split.transpose(0, 1, 2, 4, 3)), k


def prepare(weights: Mapping[str, Array]) -> Packed:
    """Split and pack `conv1`, `conv2`, `fc1`, `fc2` for the kernels, on the current device."""
    import cupy
    import numpy as np

    filters1, k1 = _pack_filters1(weights["conv1"])
    filters2, k2 = _pack_filters2(weights["conv2"])
    weights1, k3 = _pack_weights1(weights["fc1"])
    padded = np.zeros((128, -(-CLASSES // 4) * 4), np.float32)
    padded[:, :CLASSES] = weights["fc2"]
    reach1 = PIXEL_BOUND * np.abs(weights["conv1"].astype(np.float64)).sum((0, 1, 2))
    reach2 = np.einsum("rscm,c->m", np.abs(weights["conv2"].astype(np.float64)), reach1)
    a1 = _HALF_EXPONENT - _exponent(float(reach1.max()))
    a2 = _HALF_EXPONENT - _exponent(float(reach2.max()))
    return Packed(
        cupy.asarray(filters1),
        cupy.asarray(filters2),
        cupy.asarray(weights1),
        cupy.asarray(padded),
        scale_bytes=math.ldexp(0.25, a1 - k1 + 8) / PIXEL_SCALE,
        scale_floats=math.ldexp(0.25, a1 - k1 - _FLOAT_PIXEL_EXPONENT),
        scale2=math.ldexp(0.25, a2 - k2 - a1),
        scale3=math.ldexp(1.0, -k3 - a2),
    )


def prepare_span(w: Any, problem: Any, batch: int) -> Packed:
    """`prepare` for the four tensors of a span."""
    return prepare(dict(zip(("conv1", "conv2", "fc1", "fc2"), w, strict=True)))


@variant(
    kind=FEATURES,
    family="split",
    reads="NHWC",
    writes="F16X2",
    needs=hopper(),
    precision="fp16x3",
    prepare=prepare_span,
    kernels=lambda problem: (features_kernel(floats=False), features_kernel(floats=True)),
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, operands split into fp16 hi and lo."""
    import numpy as np

    floats = x.dtype == "float32"
    scale1 = w.scale_floats if floats else w.scale_bytes
    count, scales = np.int32(len(x)), (np.float32(scale1), np.float32(w.scale2))
    launch(
        features_kernel(floats),
        (min(blocks_for(len(x), BATCH), multiprocessors()),),
        (_THREADS,),
        (x, w.filters1, w.filters2, y, count, *scales),
        SHARED_BYTES,
        overlap=True,
    )
