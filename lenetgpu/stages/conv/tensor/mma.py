"""Products by mma.sync: every GPU from sm_80 on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lenetgpu.gpu.machines import WARP
from lenetgpu.stages.conv.tensor.product import Tiling

_SOURCE = Path(__file__).with_suffix(".cu").resolve()


@dataclass(frozen=True)
class MmaTiling(Tiling):
    """Warps of a block along rows and columns, each with tiles of 16 rows x 8 columns."""

    warps_m: int
    warps_n: int

    source = _SOURCE
    entry = "tensor_mma"
    share = 0.62

    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and threads of a block."""
        rows, columns = 16 * self.tiles_m * self.warps_m, 8 * self.tiles_n * self.warps_n
        return rows, columns, WARP * self.warps_m * self.warps_n

    def own_defines(self) -> dict[str, int | str]:
        """Its warps."""
        return {"WARPS_M": self.warps_m, "WARPS_N": self.warps_n}


# every GPU from sm_80 on gives a block the shared memory of each
TILINGS = (
    MmaTiling(4, 4, stages=3, resident=1, warps_m=2, warps_n=4),  # 128 x 128
    MmaTiling(4, 4, stages=2, resident=1, warps_m=4, warps_n=2),  # 256 x 64
    MmaTiling(4, 4, stages=3, resident=2, warps_m=2, warps_n=2),  # 128 x 64
    MmaTiling(2, 4, stages=3, resident=3, warps_m=4, warps_n=1),  # 128 x 32
    MmaTiling(2, 4, stages=3, resident=2, warps_m=2, warps_n=2),  # 64 x 64
    MmaTiling(1, 2, stages=3, resident=2, warps_m=4, warps_n=1),  # 64 x 16
)
