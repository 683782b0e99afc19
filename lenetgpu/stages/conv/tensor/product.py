"""Products of split operands on the tensor cores: tilings, cost model, launches."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Union

from lenetgpu.arrays import np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP, Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import FLOAT_BYTES, ITEM_BYTES
from lenetgpu.stages.conv.tensor import epilogue
from lenetgpu.stages.conv.tensor.packed import ABLE, ROW, VEC, Layout
from lenetgpu.stages.conv.tensor.split_fp16 import sample

if TYPE_CHECKING:
    from lenetgpu.stages.conv.tensor.halo import HaloTiling

_ROW_BYTES = ROW * 2 * VEC
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
HOPPER = ("sm_90a",)


@dataclass(frozen=True)
class Fit:
    """Constants of the cost model per multiprocessor of an H200 (docs/convolutions.md)."""

    products: float = 2048.0  # fp16 products per clock, the dense rate
    full_warps: float = 8.0  # warps that reach this rate
    cache_rate: float = 39.0  # bytes per clock from the L2 cache
    memory_share: float = 0.8  # fraction of the memory's bytes per clock
    clock: float = 0.85  # fraction of the highest clock sustained with tensor cores
    row: float = 6.0  # cycles of eight warps to copy a chunk's row by vectors
    stored: float = 1.1  # cycles per output stored as NCHW, by gemm.cuh
    block: float = 2500.0  # cycles: first copies and last stores
    launch: float = 2700.0  # cycles
    parts: float = 1.05  # predicted speedup that a split requires
    line: float = 1.5  # cost of a sampled line, as a multiple of its bytes


FIT = Fit()


class Block(ABC):
    """The part of a product that a block computes, and its launch."""

    planes: bool = False  # reads split images as planes
    winograd: bool = False  # positions are two outputs, by Winograd's F(2, 3)
    only = ABLE  # architectures of its kernel
    module: ClassVar[str]  # beside its source
    entry: ClassVar[str]

    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Return the outputs per filter, filters and threads of a block."""

    def saved(self, layout: Layout, split: int, blocks: int) -> int:
        """Return the workspace floats that `blocks` blocks need in front of their split-K parts."""
        return 0

    def grid(self, blocks: int) -> int:
        """Return the number of blocks to launch, given the number of blocks' worth of work."""
        return blocks

    @property
    def word(self) -> str:
        """Name of its kernel."""
        return "winograd" if self.winograd else self.entry.removeprefix("tensor_")

    @property
    def bm(self) -> int:
        """Outputs per filter, or output pairs of F(2, 3), of a block."""
        return self.sizes()[0]

    @property
    def bn(self) -> int:
        """Filters per block."""
        return self.sizes()[1]

    @property
    def threads(self) -> int:
        """Threads per block, including producers."""
        return self.sizes()[2]

    def products(self, layout: Layout) -> int:
        """Return the fp16 products per chunk of a block, or per filter element for `halo`."""
        k = ROW // layout.parts * VEC
        return self.bm * self.bn * k * (3 if layout.parts == 2 else 1)


@dataclass(frozen=True)
class GemmTiling(Block):
    """M are outputs, gathered pixel by pixel in a pipeline; `min_blocks` is the minimum per SM."""

    tiles_m: int
    tiles_n: int
    stages: int
    min_blocks: int

    @property
    @abstractmethod
    def share(self) -> float:
        """Fraction of the dense rate that its instruction should reach."""

    @property
    def _stage_bytes(self) -> int:
        return (self.bm + self.bn) * _ROW_BYTES

    def supports(self, layout: Layout) -> bool:
        """Return True if the tiling supports this product."""
        return True

    def rows(self, layout: Layout, images: int) -> int:
        """Return the outputs per filter, which are divided among blocks."""
        return images * layout.problem.OH * layout.problem.OW

    def numbers(self, layout: Layout, count: int, capacity: int) -> tuple[int, ...]:
        """Return the kernel's last arguments for `count` images in a workspace for `capacity`."""
        return (self.rows(layout, count),)

    def chunks(self, layout: Layout) -> int:
        """Return the number of parts into which K can be split."""
        return layout.chunks

    def shared_bytes(self, layout: Layout) -> int:
        """Return the dynamic shared memory per block in bytes: its pipeline."""
        return self.stages * self._stage_bytes

    def defines(self, layout: Layout, split: int) -> dict[str, int | str]:
        """Return the tiling as `-D` definitions."""
        own: dict[str, int | str] = {name.upper(): value for name, value in vars(self).items()}
        return own | {"SHARED_BYTES": self.shared_bytes(layout)}

    def cycles(self, layout: Layout, chunks: int, blocks: int, machine: Machine) -> float:
        """Estimate the cycles: products and row copies, or the bytes from the cache."""
        busiest = blocks_for(blocks, machine.multiprocessors)
        capacity = max(1, machine.blocks_per_sm(self.threads, 0, self.shared_bytes(layout)))
        together = min(busiest, self.min_blocks, capacity)
        full = min(1.0, together * self.threads / WARP / FIT.full_warps)
        rate = FIT.products * self.share * full
        issued = self.products(layout) / rate + FIT.row * self.bm / full
        chunk = max(issued, self._stage_bytes / FIT.cache_rate)
        stored = FIT.stored * self.bm * self.bn if layout.problem.writes == "NCHW" else 0.0
        return busiest * (chunks * chunk + FIT.block / together + stored)


Tiling = Union[GemmTiling, "HaloTiling"]


@dataclass(frozen=True)
class Product:
    """A layout's product by a tiling, with its K in `split` parts."""

    layout: Layout
    tiling: Tiling
    split: int

    @property
    def word(self) -> str:
        """Name among a variant's products: `halo-272x64`, with `/4` for four split-K parts."""
        parts = f"/{self.split}" if self.split > 1 else ""
        return f"{self.tiling.word}-{self.tiling.bm}x{self.tiling.bn}{parts}"

    def __str__(self) -> str:
        two = "pairs of " if self.tiling.winograd else ""
        words = f"{self.tiling.bm} {two}outputs x {self.tiling.bn} filters"
        words += f" a block of {self.tiling.threads} threads"
        words += ", Winograd's F(2, 3) along rows" if self.tiling.winograd else ""
        words += ", all filter elements from one input tile" if self.layout.planes else ""
        return words + (f", K in {self.split} parts" if self.split > 1 else "")

    @property
    def padded(self) -> int:
        """Filters, rounded up to whole blocks."""
        return self.tiling.bn * blocks_for(self.layout.problem.M, self.tiling.bn)

    def outputs(self, images: int) -> int:
        """Return the number of outputs for `images` images."""
        problem = self.layout.problem
        return int(images * problem.OH * problem.OW * problem.M)

    def blocks(self, images: int) -> int:
        """Return the blocks' worth of work in a launch for `images` images."""
        high = blocks_for(self.tiling.rows(self.layout, images), self.tiling.bm)
        return high * (self.padded // self.tiling.bn) * self.split

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the tiling's kernel, and `tensor_reduce` for split-K parts."""
        defines = self.layout.defines() | {"MP": self.padded, "SPLIT": self.split}
        defines |= self.tiling.defines(self.layout, self.split)
        kernel = Kernel.beside(self.tiling.module, self.tiling.entry, self.tiling.only, **defines)
        return (kernel, *([epilogue.reduction(self.layout, self.split)] if self.split > 1 else []))

    def cycles(self, images: int, machine: Machine) -> float:
        """Estimate the cycles of its launches for `images` images."""
        chunks = blocks_for(self.tiling.chunks(self.layout), self.split)
        multiply = self.tiling.cycles(self.layout, chunks, self.blocks(images), machine) / FIT.clock
        outputs, rate = self.outputs(images), memory_rate(machine)
        moved = images * self.layout.image_bytes + ITEM_BYTES[self.layout.problem.dtype] * outputs
        cycles = max(multiply, moved / rate) + FIT.launch
        if self.split > 1:
            cycles += FIT.launch + 2 * self.split * FLOAT_BYTES * outputs / rate
            cycles *= FIT.parts
        return cycles

    def splitting_cycles(self, images: int, machine: Machine) -> float:
        """Estimate the cycles of the launches that split `images` images."""
        problem, lines = self.layout.problem, sample(self.layout)
        inputs = images * problem.H * problem.W * problem.C
        read = (1 + FIT.line / lines if lines > 1 else 2) * ITEM_BYTES[problem.dtype] * inputs
        moved = read + images * self.layout.written_bytes
        return moved / memory_rate(machine) + (2 + (lines > 1)) * FIT.launch

    def run(
        self, images: Any, filters: Any, scales_and_bias: Any, y: Any, parts: Any, count: int
    ) -> None:
        """Launch for `count` of `images`; scales (exponents) and bias are of padded filters."""
        tiling, (out_scales, bias) = self.tiling, scales_and_bias
        outputs = images.exponents, out_scales, y
        numbers = map(np.int32, tiling.numbers(self.layout, count, images.capacity))
        args = (images.packed, filters, *outputs, parts, images.reached, *numbers, bias)
        grid, shared = tiling.grid(self.blocks(count)), tiling.shared_bytes(self.layout)
        launch(self.kernels()[0], (grid,), (tiling.threads,), args, shared, overlap=True)
        if self.split > 1:
            own = parts[tiling.saved(self.layout, self.split, self.blocks(count)) :]
            epilogue.reduce(self.layout, self.split, count, (own, *outputs, images.reached, bias))

    def parts_elements(self, images: int) -> int:
        """Return the workspace floats of intermediate sums and split-K parts, at least 1."""
        saved = self.tiling.saved(self.layout, self.split, self.blocks(images))
        return max(1, saved + (self.split * self.outputs(images) if self.split > 1 else 0))


def memory_rate(machine: Machine) -> float:
    """Return the bytes per clock of the whole machine that streaming kernels reach."""
    return FIT.memory_share * machine.bytes_per_clock


def options(layout: Layout, tilings: Iterable[Tiling]) -> tuple[Product, ...]:
    """Return every product for `layout` by `tilings`, for splits that leave no part empty."""
    products = []
    for tiling in tilings:
        own = replace(layout, planes=tiling.planes, winograd=tiling.winograd)
        chunks = tiling.chunks(own)
        splits = [n for n in SPLITS if blocks_for(chunks, blocks_for(chunks, n)) == n]
        products += [Product(own, tiling, split) for split in splits if tiling.supports(own)]
    return tuple(products)


@cache
def ranked(
    layout: Layout, images: int, machine: Machine, tilings: tuple[Tiling, ...]
) -> tuple[Product, ...]:
    """Return every product for `images` images, fewest estimated cycles first."""
    return tuple(
        sorted(
            options(layout, tilings),
            key=lambda p: p.cycles(images, machine) + p.splitting_cycles(images, machine),
        )
    )
