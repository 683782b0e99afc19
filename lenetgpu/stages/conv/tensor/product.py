"""Products of split operands on the tensor cores: tilings, their cost, their launches.

The constants of `Fit` come from runs on an H200 (docs/convolutions.md says which).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Union

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP, Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import FLOAT_BYTES, ITEM_BYTES
from lenetgpu.stages.conv.tensor import after
from lenetgpu.stages.conv.tensor.halves import sample
from lenetgpu.stages.conv.tensor.packed import ABLE, CELL, ROW, Layout

if TYPE_CHECKING:
    from lenetgpu.stages.conv.tensor.taps import TapsTiling

_ROW_BYTES = ROW * 2 * CELL
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
HOPPER = ("sm_90a",)


@dataclass(frozen=True)
class Fit:
    """The model's constants, for one multiprocessor: rates a clock, and clocks."""

    products: float = 2048.0  # of fp16 operands, the dense rate
    full_warps: float = 8.0  # that reach this rate
    cache_rate: float = 39.0  # bytes, from the L2 cache
    memory_share: float = 0.8  # of the memory's bytes a clock
    held: float = 0.85  # of the highest clock, under tensor cores
    row: float = 6.0  # of eight warps: to copy a chunk's row cell by cell, beside its products
    stored: float = 1.1  # an output at NCHW, where rows are outputs
    block: float = 2500.0  # first copies and last stores
    launch: float = 2700.0
    parts: float = 1.05  # what a split must promise to be taken
    line: float = 1.5  # bytes that a sampled line costs, over its own


FIT = Fit()


class Block(ABC):
    """What a block computes of a product, and how it is launched.

    `planes` says whether it reads split images as planes, `pairs` whether its positions are two
    outputs, by Winograd's F(2, 3); `only` are the architectures that its kernel is meant for.
    """

    planes: bool = False
    pairs: bool = False
    only = ABLE
    source: ClassVar[Path]
    entry: ClassVar[str]

    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Outputs of a filter, filters and threads of a block."""

    def kept(self, layout: Layout, split: int, blocks: int) -> int:
        """Floats that `blocks` blocks' work needs beside its parts, in a workspace before them."""
        return 0

    def grid(self, blocks: int) -> int:
        """Blocks launched for so many blocks' work."""
        return blocks

    @property
    def word(self) -> str:
        """What names its kernel."""
        return "pairs" if self.pairs else self.entry.removeprefix("tensor_")

    @property
    def bm(self) -> int:
        """Outputs of a filter that a block computes, or pairs of them."""
        return self.sizes()[0]

    @property
    def bn(self) -> int:
        """Filters of a block."""
        return self.sizes()[1]

    @property
    def threads(self) -> int:
        """All that work on a block."""
        return self.sizes()[2]

    def products(self, layout: Layout) -> int:
        """Products of fp16 operands in a chunk of a block, a tap's where it has taps."""
        depth = ROW // layout.parts * CELL
        return self.bm * self.bn * depth * (3 if layout.parts == 2 else 1)


@dataclass(frozen=True)
class RowsTiling(Block):
    """Rows are outputs, gathered from split images pixel by pixel through a ring of stages.

    `resident` blocks are meant to share a multiprocessor.
    """

    tiles_m: int
    tiles_n: int
    stages: int
    resident: int

    @property
    @abstractmethod
    def share(self) -> float:
        """What of the tensor cores' dense rate its instruction should reach."""

    @property
    def _stage_bytes(self) -> int:
        return (self.bm + self.bn) * _ROW_BYTES

    def takes(self, layout: Layout) -> bool:
        """Whether it computes this product."""
        return True

    def rows(self, layout: Layout, images: int) -> int:
        """Outputs of one filter, which blocks share out."""
        return images * layout.problem.OH * layout.problem.OW

    def numbers(self, layout: Layout, count: int, room: int) -> tuple[int, ...]:
        """The kernel's last arguments for `count` images in workspace for `room`."""
        return (self.rows(layout, count),)

    def chunks(self, layout: Layout) -> int:
        """Parts that a depth can be split into."""
        return layout.chunks

    def shared_bytes(self, layout: Layout) -> int:
        """Dynamic shared memory of a block: its ring."""
        return self.stages * self._stage_bytes

    def defines(self, layout: Layout, split: int) -> dict[str, int | str]:
        """The tiling as `-D` definitions."""
        own: dict[str, int | str] = {name.upper(): value for name, value in vars(self).items()}
        return own | {"SHARED_BYTES": self.shared_bytes(layout)}

    def clocks(self, layout: Layout, chunks: int, blocks: int, machine: Machine) -> float:
        """Products with the instructions that copy rows, or bytes from the cache."""
        busiest = blocks_for(blocks, machine.multiprocessors)
        room = max(1, machine.resident(self.threads, 0, self.shared_bytes(layout)))
        together = min(busiest, self.resident, room)
        full = min(1.0, together * self.threads / WARP / FIT.full_warps)
        rate = FIT.products * self.share * full
        issued = self.products(layout) / rate + FIT.row * self.bm / full
        chunk = max(issued, self._stage_bytes / FIT.cache_rate)
        stored = FIT.stored * self.bm * self.bn if layout.problem.writes == "NCHW" else 0.0
        return busiest * (chunks * chunk + FIT.block / together + stored)


Tiling = Union[RowsTiling, "TapsTiling"]


@dataclass(frozen=True)
class Product:
    """A layout's product by a tiling, its depth in `split` parts."""

    layout: Layout
    tiling: Tiling
    split: int

    @property
    def word(self) -> str:
        """What names it among a variant's products: `taps-272x64`, `/4` where parts are added."""
        parts = f"/{self.split}" if self.split > 1 else ""
        return f"{self.tiling.word}-{self.tiling.bm}x{self.tiling.bn}{parts}"

    def __str__(self) -> str:
        two = "pairs of " if self.tiling.pairs else ""
        words = f"{self.tiling.bm} {two}outputs x {self.tiling.bn} filters"
        words += f" a block of {self.tiling.threads} threads"
        words += ", Winograd's F(2, 3) along rows" if self.tiling.pairs else ""
        words += ", all taps from one patch" if self.layout.planes else ""
        return words + (f", depth in {self.split} parts" if self.split > 1 else "")

    @property
    def padded(self) -> int:
        """Filters in whole blocks."""
        return self.tiling.bn * blocks_for(self.layout.problem.M, self.tiling.bn)

    def outputs(self, images: int) -> int:
        """Floats that it comes to."""
        problem = self.layout.problem
        return int(images * problem.OH * problem.OW * problem.M)

    def blocks(self, images: int) -> int:
        """Blocks' work of a launch."""
        high = blocks_for(self.tiling.rows(self.layout, images), self.tiling.bm)
        return high * (self.padded // self.tiling.bn) * self.split

    def kernels(self) -> tuple[Kernel, ...]:
        """The tiling's kernel, and `tensor_meet` where parts are added."""
        defines = self.layout.defines() | {"MP": self.padded, "SPLIT": self.split}
        product = tuple((defines | self.tiling.defines(self.layout, self.split)).items())
        found = Kernel(self.tiling.source, self.tiling.entry, product, self.tiling.only)
        return (found,) if self.split == 1 else (found, after.meeting(self.layout, self.split))

    def clocks(self, images: int, machine: Machine) -> float:
        """Estimated clocks of its launches for `images` images."""
        chunks = blocks_for(self.tiling.chunks(self.layout), self.split)
        multiply = self.tiling.clocks(self.layout, chunks, self.blocks(images), machine) / FIT.held
        outputs = self.outputs(images)
        held = ITEM_BYTES[self.layout.problem.dtype]
        moved = images * self.layout.image_bytes + held * outputs
        found = max(multiply, moved / memory_rate(machine)) + FIT.launch
        if self.split > 1:
            found += FIT.launch + 2 * self.split * FLOAT_BYTES * outputs / memory_rate(machine)
            found *= FIT.parts
        return found

    def splitting_clocks(self, images: int, machine: Machine) -> float:
        """Estimated clocks of the launches that split `images` images for it."""
        problem, lines = self.layout.problem, sample(self.layout)
        inputs = images * problem.H * problem.W * problem.C
        read = (1 + FIT.line / lines if lines > 1 else 2) * ITEM_BYTES[problem.dtype] * inputs
        moved = read + images * self.layout.written_bytes
        return moved / memory_rate(machine) + (2 + (lines > 1)) * FIT.launch

    def run(
        self, images: Any, filters: Any, ends: tuple[Any, Any], y: Any, parts: Any, count: int
    ) -> None:
        """Launch on the current stream for `count` of `images` (halves.Images).

        `ends` are what each padded filter's sums end with: its drop and its bias.
        """
        tiling, (drops, bias) = self.tiling, ends
        outputs = images.tops, drops, y
        numbers = map(np.int32, tiling.numbers(self.layout, count, images.room))
        args = (images.packed, filters, *outputs, parts, images.reached, *numbers, bias)
        grid, shared = tiling.grid(self.blocks(count)), tiling.shared_bytes(self.layout)
        launch(self.kernels()[0], (grid,), (tiling.threads,), args, shared, overlap=True)
        if self.split > 1:
            own = parts[tiling.kept(self.layout, self.split, self.blocks(count)) :]
            after.meet(self.layout, self.split, count, (own, *outputs, images.reached, bias))

    def parts_elements(self, images: int) -> int:
        """Floats of what a run sets aside and of parts that meet; one where there are none."""
        kept = self.tiling.kept(self.layout, self.split, self.blocks(images))
        return max(1, kept + (self.split * self.outputs(images) if self.split > 1 else 0))


def memory_rate(machine: Machine) -> float:
    """Bytes a clock that kernels of streams reach, of the whole machine."""
    return FIT.memory_share * machine.bytes_per_clock


def options(layout: Layout, tilings: Iterable[Tiling]) -> tuple[Product, ...]:
    """Every product for `layout` by `tilings`: each part of a split depth has chunks."""
    found = []
    for tiling in tilings:
        own = replace(layout, planes=tiling.planes, pairs=tiling.pairs)
        chunks = tiling.chunks(own)
        splits = [n for n in SPLITS if blocks_for(chunks, blocks_for(chunks, n)) == n]
        found += [Product(own, tiling, split) for split in splits if tiling.takes(own)]
    return tuple(found)


@cache
def ranked(
    layout: Layout, images: int, machine: Machine, tilings: tuple[Tiling, ...]
) -> tuple[Product, ...]:
    """Every product for `images` images, that with the fewest estimated clocks first."""

    def clocks(made: Product) -> float:
        return made.clocks(images, machine) + made.splitting_clocks(images, machine)

    return tuple(sorted(options(layout, tilings), key=clocks))
