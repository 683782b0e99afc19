"""Three TF32 products by mma.sync, with inputs split in registers."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.machines import WARP, Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor.mma import MmaTiling
from lenetgpu.stages.conv.tensor.product import FIT, memory_rate
from lenetgpu.stages.conv.tf32 import one_launch
from lenetgpu.stages.conv.tf32.one_launch import CHUNK, FLOAT, TF32_FIT, OneLaunch, State, chunks
from lenetgpu.stages.registry import cuda

_RATE = FIT.products / 2 * MmaTiling.share  # TF32 products per clock
# each fits a block's shared memory on every GPU from sm_80 on
TILINGS = (
    MmaTiling(2, 8, stages=2, min_blocks=1, warps_m=4, warps_n=2),  # 128 x 128
    MmaTiling(2, 8, stages=2, min_blocks=2, warps_m=4, warps_n=1),  # 128 x 64
    MmaTiling(2, 4, stages=2, min_blocks=3, warps_m=2, warps_n=2),  # 64 x 64
    MmaTiling(2, 4, stages=2, min_blocks=3, warps_m=4, warps_n=1),  # 128 x 32
)


@dataclass(frozen=True)
class Product(OneLaunch):
    """A convolution divided by `tiling`."""

    tiling: MmaTiling

    @property
    def _stage_bytes(self) -> int:
        return FLOAT * CHUNK * self.rows + self.filter_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory per block in bytes: its pipeline of chunks."""
        return self.tiling.stages * self._stage_bytes

    def kernel(self) -> Kernel:
        """Return the kernel `tf32_mma`."""
        own = {name.upper(): value for name, value in vars(self.tiling).items()}
        return self.built(__file__, (), **own)

    def _together(self, machine: Machine) -> int:
        capacity = machine.blocks_per_sm(self.threads, 0, self.shared_bytes)
        return max(1, min(self.tiling.min_blocks, capacity))

    def grid(self, images: int) -> int:
        """Return at most the blocks that fit the GPU at once: the kernel is persistent."""
        machine = machines.current()
        return min(self.tiles(images), machine.multiprocessors * self._together(machine))

    def cycles(self, images: int, machine: Machine) -> float:
        """Estimate the cycles of a run of `images` images: products with copies, or memory."""
        busiest = blocks_for(self.tiles(images), machine.multiprocessors)
        together = min(busiest, self._together(machine))
        full = min(1.0, together * self.threads / WARP / FIT.full_warps)
        multiply = 3 * self.rows * self.width * CHUNK / (_RATE * full)
        copy = TF32_FIT.wide_copies / 4 if self.wide else TF32_FIT.copies
        copies = CHUNK * self.rows / WARP * copy
        chunk = max(multiply + copies, self._stage_bytes / FIT.cache_rate)
        tile = chunks(self.problem) * chunk + FIT.block / together
        moved = images * self.image_bytes() / memory_rate(machine)
        return max(busiest * tile / FIT.clock, moved) + FIT.launch


def divided(problem: Conv, tiling: MmaTiling) -> Product:
    """Return the product of `problem` by `tiling`."""
    return Product(problem, tiling.bn, tiling.bm, tiling.threads, tiling)


@cache
def plan(problem: Conv, batch: int, machine: Machine | None = None) -> Product:
    """Return the fastest product for up to `batch` images by the cost model of `machine`."""
    used = machine or machines.current()
    products = [divided(problem, tiling) for tiling in TILINGS]
    return min(products, key=lambda product: product.cycles(batch, used))


@one_launch.by_tf32(plan, needs=cuda(80))
def tf32x3(x: Any, w: State, y: Any, problem: Conv) -> None:
    """Implicit product on mma.sync, operands as TF32 high and low, split in registers."""
    one_launch.run(x, w, y)
