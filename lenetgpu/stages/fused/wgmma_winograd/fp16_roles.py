"""Images to pool2's features, conv2 by Winograd F(4,5): fp16 operands on wgmma (sm_90a).

Three producer warpgroups do conv1 and the transforms, one consumer warpgroup multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import SM_90_BLOCK_BYTES, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.cuda_cores.tuning import POINTS
from lenetgpu.stages.fused.wgmma.fp16_features import TILE_IMAGES
from lenetgpu.stages.fused.wgmma_winograd.fp16_pack import pack_conv1, pack_conv2
from lenetgpu.stages.registry import hopper, variant

BATCH = 4
"""Images that a block has on their way through conv2 at a time."""
FILTER_BYTES = POINTS * 5 * 32 * 64 * 2
"""conv2's filters, as halves."""
MAP_BYTES = POINTS * 12 * 2 * 32 * 2
"""An image's transformed maps, as halves."""
_FILTER_BARRIERS = 1 + POINTS


@dataclass(frozen=True)
class Packed:
    """Filters on the device: conv1 (2, 2, 2, 64, 8) fp16, conv2 (8, 5, 2, 2, 64, 8) fp16."""

    conv1: Any
    conv2: Any


def pack(w: Any, problem: Features, batch: int) -> Packed:
    """Filters of conv1 (5, 5, 1, 32) and conv2 (5, 5, 32, 64), packed and on the device."""
    return Packed(cupy.asarray(pack_conv1(w[0])), cupy.asarray(pack_conv2(w[1])))


@dataclass(frozen=True)
class Design:
    """A kernel of `source`: its threads, and its bytes of pixels and mbarriers besides filters'."""

    source: Path
    entry: str
    threads: int
    pixel_bytes: int
    barriers: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: filters, transformed maps, pixels and mbarriers."""
        barriers = 8 * (_FILTER_BARRIERS + self.barriers)
        filters = 32 * 64 * 2 + FILTER_BYTES
        return filters + BATCH * (MAP_BYTES + self.pixel_bytes) + barriers

    def kernel(self, uint8: bool) -> Kernel:
        """The kernel for uint8 pixels (divided by 255) or float32 ones in 0..1."""
        return Kernel(
            self.source,
            self.entry,
            (
                ("UINT8_PIXELS", int(uint8)),
                ("SPLIT", 0),
                ("IMAGES", BATCH // 2),
                ("TILE", TILE_IMAGES),
                ("SHARED_BYTES", self.shared_bytes),
                ("MOST_BYTES", SM_90_BLOCK_BYTES),
            ),
        )

    def kernels(self, problem: Features, batch: int) -> tuple[Kernel, ...]:
        """Both kernels, whatever the batch."""
        return self.kernel(uint8=True), self.kernel(uint8=False)

    def launch(self, x: Any, w: Packed, y: Any) -> None:
        """Images x (N, 28, 28, 1) to features y; a block takes batches in strides."""
        uint8 = x.dtype == "uint8"
        batches = blocks_for(len(x), TILE_IMAGES) * TILE_IMAGES // BATCH
        launch(
            self.kernel(uint8),
            (min(multiprocessors(), batches),),
            (self.threads,),
            (x, w.conv1[int(uint8)], w.conv2, y, np.int32(len(x))),
            shared=self.shared_bytes,
            overlap=True,
        )


_BANDS = 3
DESIGN = Design(
    Path(__file__).with_suffix(".cu").resolve(),
    "roles_features",
    threads=(_BANDS + 1) * 128,
    pixel_bytes=_BANDS * 12 * 28 * 2,
    barriers=4,
)
"""Three warpgroups have a band of lines each; the fourth multiplies."""


@variant(
    kind=FEATURES,
    family="wgmma_winograd_roles_fp16",
    also="wgmma_winograd_fp16.features",
    writes="F16",
    needs=hopper(),
    precision="fp16w",
    prepare=pack,
    kernels=DESIGN.kernels,
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one kernel on wgmma whose warpgroups have roles, conv2 by Winograd."""
    DESIGN.launch(x, w, y)
