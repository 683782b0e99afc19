"""Images to pool2's features in one kernel: fp16 operands on wgmma, fp32 sums (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.split import Halves, in_halves, of_pixels
from lenetgpu.stages.fused.wgmma.fp16_pack import pack_conv1, pack_conv2
from lenetgpu.stages.registry import hopper, variant

_WARPGROUP = 128
_FILTER1_BYTES = 32 * 64 * 2
_IMAGE_BYTES = 28 * 28 * 2
_BARRIER_BYTES = 8
TILE_IMAGES = 80


@dataclass(frozen=True)
class Tiling:
    """Warpgroups a block, images a warpgroup holds, conv2 steps before it hands its turn on.

    Then the bytes of conv2's filters and of an image's pooled conv1 maps.
    """

    groups: int = 3
    images: int = 2
    pass_step: int = 50
    filter2_bytes: int = 5 * 5 * 32 * 64 * 2
    map_bytes: int = 12 * 12 * 32 * 2

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.groups * _WARPGROUP

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        per_group = self.images * (self.map_bytes + _IMAGE_BYTES) + _BARRIER_BYTES
        return _FILTER1_BYTES + self.filter2_bytes + self.groups * per_group + 2 * _BARRIER_BYTES


TILING = Tiling()


def defines(uint8: bool, tiling: Tiling) -> dict[str, int]:
    """What the kernels of conv2.cuh are compiled with."""
    return {
        "UINT8_PIXELS": int(uint8),
        "SPLIT": 0,
        "GROUPS": tiling.groups,
        "IMAGES": tiling.images,
        "PASS_STEP": tiling.pass_step,
        "TILE": TILE_IMAGES,
        "SHARED_BYTES": tiling.shared_bytes,
    }


def kernel(uint8: bool) -> Kernel:
    """The kernel for such pixels."""
    return Kernel.beside(__file__, "features", **defines(uint8, TILING))


def blocks(n: int) -> int:
    """Blocks that `n` images keep busy, the rest of the last tile's zeros included."""
    return blocks_for(n, TILE_IMAGES) * TILE_IMAGES // TILING.images


@variant(
    kind=FEATURES,
    family="wgmma_fp16",
    also="fused.features",
    writes="F16",
    needs=hopper(),
    precision="fp16",
    prepare=in_halves(pack_conv1, pack_conv2),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: Halves, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, fp16 operands, fp32 sums."""
    launch(
        kernel(x.dtype == "uint8"),
        (min(multiprocessors(), blocks(len(x))),),
        (TILING.threads,),
        w.args(x, y),
        shared=TILING.shared_bytes,
        overlap=True,
    )
