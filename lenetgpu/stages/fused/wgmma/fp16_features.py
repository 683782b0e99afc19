"""Images to pool2's features in one kernel: fp16 operands on wgmma, fp32 sums (sm_90a)."""

from dataclasses import dataclass
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Features
from lenetgpu.stages.fused.split import Filters, hopper_features, in_fp16, of_pixels
from lenetgpu.stages.fused.wgmma.fp16_pack import pack_conv1, pack_conv2

IMAGES = 2  # images per warpgroup
TILE_IMAGES = 80


def shared_bytes(groups: int, filter2_bytes: int, map_bytes: int, barriers: int) -> int:
    """Return a block's dynamic shared memory: filters, maps and pixels of its groups, barriers."""
    filter1_bytes, pixel_bytes = 32 * 64 * 2, 28 * 28 * 2
    images = groups * IMAGES * (map_bytes + pixel_bytes)
    return filter1_bytes + filter2_bytes + images + 8 * barriers


@dataclass(frozen=True)
class Tiling:
    """Warpgroups per block, conv2 steps before one yields its turn, dynamic shared memory."""

    groups: int
    pass_step: int
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 128 * self.groups

    def kernel(self, module: str, entry: str, uint8: bool) -> Kernel:
        """Return a kernel of conv2.cuh, of the `.cu` file next to `module`, for uint8 or floats."""
        sizes = {"GROUPS": self.groups, "IMAGES": IMAGES, "PASS_STEP": self.pass_step}
        sizes |= {"TILE": TILE_IMAGES, "SHARED_BYTES": self.shared_bytes}
        return Kernel.beside(module, entry, UINT8_PIXELS=int(uint8), SPLIT=0, **sizes)

    def launch(self, kernel: Kernel, args: tuple[Any, ...]) -> None:
        """Launch `kernel`; its first argument is the images, the last tile padded with zeros."""
        blocks = blocks_for(len(args[0]), TILE_IMAGES) * TILE_IMAGES // IMAGES
        grid, shared = (min(multiprocessors(), blocks),), self.shared_bytes
        launch(kernel, grid, (self.threads,), args, shared=shared, overlap=True)


TILING = Tiling(3, 50, shared_bytes(3, 5 * 5 * 32 * 64 * 2, 12 * 12 * 32 * 2, 5))


def kernel(uint8: bool) -> Kernel:
    """Return the kernel for uint8 or for float pixels."""
    return TILING.kernel(__file__, "features", uint8)


@hopper_features(
    family="wgmma_fp16",
    also="fused.features",
    writes="F16",
    precision="fp16",
    prepare=in_fp16(pack_conv1, pack_conv2),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: Filters, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, fp16 operands, fp32 sums."""
    TILING.launch(kernel(x.dtype == "uint8"), w.args(x, y))
