"""Products by mma.sync, on every GPU from sm_80 on."""

from dataclasses import dataclass
from typing import Any

from lenetgpu.gpu.machines import WARP
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor.implicit import Kind, State, run, tensor
from lenetgpu.stages.conv.tensor.product import GemmTiling
from lenetgpu.stages.registry import cuda


@dataclass(frozen=True)
class MmaTiling(GemmTiling):
    """A block's warps along M and N, each with tiles of 16 x 8."""

    warps_m: int
    warps_n: int

    module = __file__
    entry = "tensor_mma"
    share = 0.62

    def sizes(self) -> tuple[int, int, int]:
        """Return M, N and the threads of a block."""
        rows, columns = 16 * self.tiles_m * self.warps_m, 8 * self.tiles_n * self.warps_n
        return rows, columns, WARP * self.warps_m * self.warps_n


# each fits a block's shared memory on every GPU from sm_80 on
TILINGS = (
    MmaTiling(4, 4, stages=3, min_blocks=1, warps_m=2, warps_n=4),  # 128 x 128
    MmaTiling(4, 4, stages=2, min_blocks=1, warps_m=4, warps_n=2),  # 256 x 64
    MmaTiling(4, 4, stages=3, min_blocks=2, warps_m=2, warps_n=2),  # 128 x 64
    MmaTiling(2, 4, stages=3, min_blocks=3, warps_m=4, warps_n=1),  # 128 x 32
    MmaTiling(2, 4, stages=3, min_blocks=2, warps_m=2, warps_n=2),  # 64 x 64
    MmaTiling(1, 2, stages=3, min_blocks=2, warps_m=4, warps_n=1),  # 64 x 16
)

FP16X3 = Kind(2, TILINGS)


@tensor(FP16X3, needs=cuda(80), default=True, paper="after Ootomo and Yokota")
def fp16x3(x: Any, w: State, y: Any, problem: Conv) -> None:
    """Implicit product on mma.sync, operands as fp16 high and low with scales."""
    run(x, w, y)


@tensor(Kind(1, TILINGS), needs=cuda(80))
def fp16(x: Any, w: State, y: Any, problem: Conv) -> None:
    """Implicit product on mma.sync, operands as scaled fp16, fp32 sums."""
    run(x, w, y)
