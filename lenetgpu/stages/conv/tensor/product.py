"""Products of split operands on the tensor cores: tilings, their cost, their launches.

The constants of `Fit` were set before a GPU ran them (docs/convolutions.md says from what).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP, Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.conv.tensor import meet
from lenetgpu.stages.conv.tensor.packed import CELL, ROW, Layout

_ROW_BYTES = ROW * 2 * CELL
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Fit:
    """The model's constants, for one multiprocessor: rates a clock, and clocks."""

    products: float = 2048.0  # of fp16 operands, the dense rate
    full_warps: float = 8.0  # that reach this rate
    cache_rate: float = 39.0  # bytes, from the L2 cache
    memory_share: float = 0.8  # of the memory's bytes a clock
    chunk: float = 60.0  # a barrier
    block: float = 2500.0  # first copies and last stores
    launch: float = 2700.0
    parts: float = 1.05  # what a split must promise to be taken


FIT = Fit()


@dataclass(frozen=True)
class Tiling(ABC):
    """What a block computes, and the stages of its ring.

    `resident` blocks are meant to share a multiprocessor.
    """

    tiles_m: int
    tiles_n: int
    stages: int
    resident: int

    @property
    @abstractmethod
    def source(self) -> Path:
        """The kernel's file."""

    @property
    @abstractmethod
    def entry(self) -> str:
        """The kernel's name."""

    @property
    @abstractmethod
    def share(self) -> float:
        """What of the tensor cores' dense rate its instruction should reach."""

    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and threads of a block."""

    @abstractmethod
    def own_defines(self) -> dict[str, int | str]:
        """What sets this kind of tiling apart, as `-D` definitions."""

    @property
    def bm(self) -> int:
        """Outputs of a filter that a block computes."""
        return self.sizes()[0]

    @property
    def bn(self) -> int:
        """Filters of a block."""
        return self.sizes()[1]

    @property
    def threads(self) -> int:
        """All that work on a block."""
        return self.sizes()[2]

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a chunk."""
        return (self.bm + self.bn) * _ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * self.stage_bytes

    def defines(self) -> dict[str, int | str]:
        """The tiling as `-D` definitions."""
        return self.own_defines() | {
            "TILES_M": self.tiles_m,
            "TILES_N": self.tiles_n,
            "STAGES": self.stages,
            "RESIDENT": self.resident,
            "SHARED_BYTES": self.shared_bytes,
        }


@dataclass(frozen=True)
class Product:
    """A layout's product by a tiling, its depth in `split` parts."""

    layout: Layout
    tiling: Tiling
    split: int

    def __str__(self) -> str:
        words = f"{self.tiling.bm} outputs x {self.tiling.bn} filters"
        words += f" a block of {self.tiling.threads} threads"
        return words + (f", depth in {self.split} parts" if self.split > 1 else "")

    @property
    def padded(self) -> int:
        """Filters in whole blocks."""
        return self.tiling.bn * blocks_for(self.layout.problem.M, self.tiling.bn)

    def rows(self, images: int) -> int:
        """Outputs of one filter."""
        return images * self.layout.problem.OH * self.layout.problem.OW

    def blocks(self, images: int) -> int:
        """Blocks of a launch."""
        across = self.padded // self.tiling.bn
        return blocks_for(self.rows(images), self.tiling.bm) * across * self.split

    def kernels(self) -> tuple[Kernel, ...]:
        """The tiling's kernel, and `tensor_meet` where parts are added."""
        defines = self.layout.defines() | {"MP": self.padded, "SPLIT": self.split}
        product = tuple((defines | self.tiling.defines()).items())
        found = Kernel(self.tiling.source, self.tiling.entry, product)
        return (found,) if self.split == 1 else (found, meet.kernel(self.layout, self.split))

    def clocks(self, images: int, machine: Machine) -> float:
        """Estimated clocks of its launches for `images` images."""
        tiling, problem = self.tiling, self.layout.problem
        depth = ROW // self.layout.parts * CELL
        products = tiling.bm * tiling.bn * depth * (3 if self.layout.parts == 2 else 1)
        busiest = blocks_for(self.blocks(images), machine.multiprocessors)
        room = max(1, machine.resident(tiling.threads, 0, tiling.shared_bytes))
        together = min(busiest, tiling.resident, room)
        rate = (
            FIT.products
            * tiling.share
            * min(1.0, together * tiling.threads / WARP / FIT.full_warps)
        )
        chunk = max(products / rate, tiling.stage_bytes / FIT.cache_rate) + FIT.chunk / together
        chunks = blocks_for(self.layout.chunks, self.split)
        multiply = busiest * (chunks * chunk + FIT.block / together)
        outputs = 4 * self.rows(images) * problem.M
        moved = images * self.layout.image_bytes + outputs
        found = max(multiply, moved / memory_rate(machine)) + FIT.launch
        if self.split > 1:
            found += FIT.launch + 2 * self.split * outputs / memory_rate(machine)
            found *= FIT.parts
        return found

    def run(self, images: Any, filters: Any, drops: Any, y: Any, parts: Any, count: int) -> None:
        """Launch on the current stream for `count` of `images` (halves.Images)."""
        import numpy as np

        rows = self.rows(count)
        outputs = images.tops, drops, y
        launch(
            self.kernels()[0],
            (self.blocks(count),),
            (self.tiling.threads,),
            (images.packed, filters, *outputs, parts, images.reached, np.int32(rows)),
            self.tiling.shared_bytes,
        )
        if self.split > 1:
            meet.meet(self.layout, self.split, count, (parts, *outputs, images.reached))

    def parts_elements(self, images: int) -> int:
        """Floats that parts of the depth need to meet; one where there is one part."""
        return 1 if self.split == 1 else self.split * self.rows(images) * self.layout.problem.M


def memory_rate(machine: Machine) -> float:
    """Bytes a clock that kernels of streams reach, of the whole machine."""
    return FIT.memory_share * machine.bytes_per_clock


def options(layout: Layout, tilings: Iterable[Tiling]) -> tuple[Product, ...]:
    """Every product for `layout` by `tilings`: each part of a split depth has chunks."""
    return tuple(
        Product(layout, tiling, split)
        for tiling in tilings
        for split in SPLITS
        if blocks_for(layout.chunks, blocks_for(layout.chunks, split)) == split
    )


@cache
def cheapest(layout: Layout, images: int, machine: Machine, tilings: tuple[Tiling, ...]) -> Product:
    """The product with the fewest estimated clocks for `images` images, the first of equals."""
    return min(options(layout, tilings), key=lambda option: option.clocks(images, machine))
