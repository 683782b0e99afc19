"""Images to pool2's features, conv2 by Winograd F(4,5): fp16 operands on wgmma (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import SM_90_BLOCK_BYTES, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.cuda_cores.winograd import POINTS
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES
from lenetgpu.stages.fused.wgmma_winograd.fp16_pack import pack_conv1, pack_conv2
from lenetgpu.stages.registry import hopper, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
BATCH = 4
"""Images that a block has on their way through conv2 at a time."""
_GROUPS = 2
_IMAGE_BYTES = 28 * 28 * 2
_FILTER_BYTES = 32 * 64 * 2 + POINTS * 5 * 32 * 64 * 2
_MAP_BYTES = POINTS * 12 * 2 * 32 * 2
THREADS = _GROUPS * 128


@dataclass(frozen=True)
class Packed:
    """Filters on the device: conv1 (2, 2, 2, 64, 8) fp16, conv2 (8, 5, 2, 2, 64, 8) fp16."""

    conv1: Any
    conv2: Any


def shared_bytes(pixels: int, barriers: int) -> int:
    """Shared memory of a block: filters, transformed maps, `pixels` bytes, and mbarriers."""
    return _FILTER_BYTES + BATCH * _MAP_BYTES + pixels + 8 * barriers


_SHARED_BYTES = shared_bytes(_GROUPS * BATCH * _IMAGE_BYTES, 1 + POINTS + 2)


def kernel_of(source: Path, entry: str, shared: int, uint8: bool) -> Kernel:
    """A kernel of this folder for uint8 pixels (divided by 255) or float32 ones in 0..1."""
    return Kernel(
        source,
        entry,
        (
            ("UINT8_PIXELS", int(uint8)),
            ("SPLIT", 0),
            ("IMAGES", BATCH // 2),
            ("TILE", TILE_IMAGES),
            ("SHARED_BYTES", shared),
            ("MOST_BYTES", SM_90_BLOCK_BYTES),
        ),
    )


def kernel(uint8: bool) -> Kernel:
    """The kernel whose two warpgroups take turns."""
    return kernel_of(_SOURCE, "winograd_features", _SHARED_BYTES, uint8)


def pack(w: Any, problem: Features, batch: int) -> Packed:
    """Filters of conv1 (5, 5, 1, 32) and conv2 (5, 5, 32, 64), packed and on the device."""
    import cupy

    return Packed(cupy.asarray(pack_conv1(w[0])), cupy.asarray(pack_conv2(w[1])))


def launch_on(one: Kernel, threads: int, shared: int, x: Any, w: Packed, y: Any) -> None:
    """Launch `one` on images x (N, 28, 28, 1), features to y; a block takes batches in strides."""
    import numpy as np

    batches = blocks_for(len(x), TILE_IMAGES) * TILE_IMAGES // BATCH
    launch(
        one,
        (min(multiprocessors(), batches),),
        (threads,),
        (x, w.conv1[int(x.dtype == "uint8")], w.conv2, y, np.int32(len(x))),
        shared=shared,
        overlap=True,
    )


@variant(
    kind=FEATURES,
    family="wgmma_winograd_fp16",
    reads="NHWC",
    writes="F16",
    needs=hopper(),
    precision="fp16w",
    prepare=pack,
    kernels=lambda problem, batch: (kernel(uint8=True), kernel(uint8=False)),
    raw_images=True,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 by Winograd, fp16 operands."""
    launch_on(kernel(x.dtype == "uint8"), THREADS, _SHARED_BYTES, x, w, y)
