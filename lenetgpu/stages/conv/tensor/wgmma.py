"""Products by wgmma, on Hopper only."""

from dataclasses import dataclass
from typing import Any

from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import halo
from lenetgpu.stages.conv.tensor.implicit import Kind, State, run, tensor
from lenetgpu.stages.conv.tensor.product import HOPPER, GemmTiling
from lenetgpu.stages.registry import hopper

_WARPGROUP = 128
_WIDE = 16  # tiles of 8 columns


@dataclass(frozen=True)
class WgmmaTiling(GemmTiling):
    """A block's warpgroups, stacked along M, each with tiles of 64 x all of N."""

    groups_m: int

    module = __file__
    entry = "tensor_wgmma"
    only = HOPPER

    @property
    def share(self) -> float:
        """Fraction of the dense rate; less for 64 columns: shared memory supplies 128 B/clock."""
        return 0.8 if self.tiles_n >= _WIDE else 0.65

    def sizes(self) -> tuple[int, int, int]:
        """Return M, N and the threads of a block."""
        return 64 * self.tiles_m * self.groups_m, 8 * self.tiles_n, _WARPGROUP * self.groups_m


TILINGS = (
    WgmmaTiling(1, 16, stages=6, min_blocks=1, groups_m=2),  # 128 x 128
    WgmmaTiling(2, 8, stages=4, min_blocks=1, groups_m=2),  # 256 x 64
    WgmmaTiling(2, 8, stages=4, min_blocks=2, groups_m=1),  # 128 x 64
)

FP16X3 = Kind(2, halo.WINOGRAD + halo.TILINGS + TILINGS)


@tensor(FP16X3, needs=hopper())
def wgmma_fp16x3(x: Any, w: State, y: Any, problem: Conv) -> None:
    """The product of tensor.fp16x3 on Hopper's wgmma."""
    run(x, w, y)


@tensor(Kind(1, halo.TILINGS + TILINGS), needs=hopper())
def wgmma_fp16(x: Any, w: State, y: Any, problem: Conv) -> None:
    """The product of tensor.fp16 on Hopper's wgmma."""
    run(x, w, y)
