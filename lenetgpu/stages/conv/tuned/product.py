"""Tiled products of `direct.tuned` and `winograd`: tiles, plans and launches.

The cost model counts cycles of the busiest multiprocessor, in rounds of as many blocks as fit. A
round takes its instructions at these warps' issue rate, or its chain of copies, and a reduction.
The launch takes its rounds, its bytes from the L2 cache or from memory. The constants were fitted
to one H200 and scale with a machine's multiprocessors and memory.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product as pairs
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import H200, Machine, multiprocessors
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import conv_defines

_SOURCE = Path(__file__).with_name("direct.cu").resolve()

_OTHER_REGISTERS = 56  # per thread, without its sums
_SHARED_STEP = 128
_RAGGED_ROWS = 16  # most rows of a warp's chunk if each computes its own element and channel
SPLITS = (1, 2, 3, 4, 6, 8)  # eight is the portable limit of blocks per cluster


@dataclass(frozen=True)
class Tile:
    """A block's work, by warps along the maps, the columns and K."""

    warps_m: int
    warps_n: int
    warps_k: int
    bk: int  # rows of a chunk
    stages: int  # chunks in the pipeline
    blocks: int  # minimum per SM
    tm: int  # a thread has tm x tn sums
    tn: int
    lanes_m: int  # lanes of a warp along the maps

    @property
    def bm(self) -> int:
        """Maps per block."""
        return self.tm * self.lanes_m * self.warps_m

    @property
    def bn(self) -> int:
        """Columns per block."""
        return self.tn * (32 // self.lanes_m) * self.warps_n

    @property
    def sums(self) -> int:
        """Sums per thread."""
        return self.tm * self.tn

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps_m * self.warps_n * self.warps_k

    def instructions(self) -> float:
        """Return a warp's instructions per chunk: multiply-adds, reads of shared memory."""
        return self.bk / self.warps_k * (self.sums + (self.tm + self.tn) / 4)

    def shared(self, split: int) -> int:
        """Return the dynamic shared memory in bytes: the pipeline, or the sums reduced after it."""
        pipeline = 4 * self.stages * self.bk * (self.bm + self.bn)
        reduction = 4 * self.warps_k * self.bm * self.bn if self.warps_k > 1 or split > 1 else 0
        return max(pipeline, reduction)

    def defines(self) -> dict[str, int | str]:
        """Return the tile as `-D` definitions; multiply-adds snake along the longer operand."""
        named = {name.upper(): value for name, value in vars(self).items() if name != "blocks"}
        return named | {"ORDER": int(self.tn >= self.tm)}


TILES = (
    Tile(4, 2, 1, 32, stages=2, blocks=2, tm=8, tn=8, lanes_m=4),  # 128 x 128
    Tile(2, 2, 1, 16, stages=3, blocks=3, tm=8, tn=8, lanes_m=4),  # 64 x 128
    Tile(2, 2, 1, 16, stages=3, blocks=3, tm=8, tn=8, lanes_m=8),  # 128 x 64
    Tile(2, 1, 2, 32, stages=3, blocks=3, tm=8, tn=8, lanes_m=4),  # 64 x 64
    Tile(2, 1, 4, 32, stages=2, blocks=2, tm=8, tn=8, lanes_m=4),  # 64 x 64
    Tile(1, 1, 4, 32, stages=3, blocks=3, tm=8, tn=8, lanes_m=8),  # 64 x 32
    Tile(1, 1, 4, 32, stages=3, blocks=4, tm=4, tn=8, lanes_m=8),  # 32 x 32
    Tile(1, 1, 8, 64, stages=2, blocks=2, tm=4, tn=8, lanes_m=8),  # 32 x 32
    Tile(1, 1, 4, 32, stages=6, blocks=3, tm=8, tn=4, lanes_m=8),  # 64 x 16
    Tile(1, 1, 8, 64, stages=3, blocks=2, tm=8, tn=4, lanes_m=8),  # 64 x 16
)


@dataclass(frozen=True)
class Product:
    """A tile, the number of blocks that divide its K, and the longest sum (0: any)."""

    tile: Tile
    split: int
    sum_rows: int = 0

    def __str__(self) -> str:
        parts = self.split * self.tile.warps_k
        words = f"{self.tile.bm} maps x {self.tile.bn} columns"
        words += f" a block of {self.tile.threads} threads"
        words += f", K in {parts} parts" if parts > 1 else ""
        return words + (f", sums of {self.sum_rows}" if self.sum_rows else "")

    def blocks_per_sm(self, machine: Machine) -> int:
        """Return the blocks per multiprocessor; fewer if a thread holds its sums twice."""
        if self.sum_rows == 0:
            return self.tile.blocks
        registers = 2 * self.tile.sums + _OTHER_REGISTERS
        return min(self.tile.blocks, machine.blocks_per_sm(self.tile.threads, registers, 0))

    def kernel(self, problem: Conv) -> Kernel:
        """Return the kernel for `problem`."""
        ragged = bool(problem.C % self.tile.bk)
        defines: dict[str, int | str] = conv_defines(problem) | self.tile.defines()
        defines |= {"SPLIT": self.split, "SUM_ROWS": self.sum_rows}
        defines["BLOCKS_PER_SM"] = max(1, self.blocks_per_sm(machines.current()) - ragged)
        return Kernel(_SOURCE, "conv_tuned", tuple(defines.items()))

    def tiles(self, problem: Conv, images: int) -> int:
        """Return the number of tiles that cover the outputs of `images` images."""
        return -(-problem.M // self.tile.bm) * -(-images * problem.OH * problem.OW // self.tile.bn)

    def run(
        self,
        problem: Conv,
        x: Any,
        w: Any,
        y: Any,
        space: "Workspace",
        images: int,
        groups: int = 1,
    ) -> None:
        """Launch on the current stream; the operands of `groups` products are consecutive."""
        blocks = groups * self.tiles(problem, images) * self.split
        resident = self.blocks_per_sm(machines.current())
        if self.sum_rows > 0 and self.split == self.tile.warps_k == 1:  # the kernel is persistent
            blocks = min(blocks, resident * multiprocessors())
        shared = self.tile.shared(self.split)
        each = -(-blocks // usable_multiprocessors(multiprocessors(), self.split))
        if 1 < each < resident:
            shared = max(shared, _keeps_out(each + 1))
        args = (x, w, y, space.parts, space.counters, np.int32(images), np.int32(groups))
        launch(self.kernel(problem), (blocks,), (self.tile.threads,), args, shared, overlap=True)


_CLUSTER = 16  # multiprocessors whose blocks can share a cluster; about 5% stay idle


def usable_multiprocessors(count: int, split: int) -> int:
    """Return how many of `count` multiprocessors blocks in clusters of `split` can fill."""
    return count if split == 1 else int(0.95 * count * (_CLUSTER // split * split) / _CLUSTER)


def _keeps_out(blocks: int) -> int:
    """Return the bytes at which `blocks` blocks do not fit an SM, to spread early ones evenly."""
    machine = machines.current()
    available = machine.shared_bytes // blocks - machine.limits.reserved_bytes
    return min(machine.block_bytes, available + _SHARED_STEP)


@dataclass(frozen=True)
class Workspace:
    """Partial sums and counters of blocks that divide a tile's K, before sm_90 (no clusters)."""

    parts: Any
    counters: Any

    @staticmethod
    def of(product: Product, problem: Conv, images: int, groups: int = 1) -> "Workspace":
        """Return a workspace for `images` images."""
        tiles = groups * product.tiles(problem, images)
        used = product.split > 1 and int(cupy.cuda.Device().compute_capability) < 90
        tile = product.tile.bm * product.tile.bn
        parts = cupy.empty(tiles * product.split * tile if used else 1, cupy.float32)
        return Workspace(parts, cupy.zeros(tiles if used else 1, cupy.int32))


def options(problem: Conv, longest: int = 0) -> tuple[Product, ...]:
    """Return every product for `problem` with sums of at most `longest` products (0: any)."""
    products = []
    for tile, split in pairs(TILES, SPLITS):
        chunks, step = -(-problem.gemm_k // tile.bk), tile.bk // tile.warps_k
        if split > chunks or (problem.C % tile.bk and step > _RAGGED_ROWS):
            continue
        short = longest == 0 or -(-chunks // split) * step <= longest
        product = Product(tile, split, 0 if short else longest)
        aligned = short or longest % step == 0  # sums end at chunk boundaries
        if aligned and product.blocks_per_sm(machines.current()):
            products.append(product)
    return tuple(products)


@dataclass(frozen=True)
class Fit:
    """Constants of the cost model: cycles, instructions, and fractions of a machine's resources."""

    cached: float = 40e6 / H200.cache_bytes  # fraction of the L2 cache for inputs and outputs
    issued: float = 3.34  # instructions per clock, out of four
    full_warps: float = 5.52  # warps that reach this rate
    copy: float = 1.07  # instructions per copy
    chunk: float = 6.99  # instructions per chunk, without copies and multiply-adds
    latency: float = 2090.0  # cycles
    launch: float = 2730.0  # cycles
    block: float = 212.0  # cycles: a round's first bytes and last stores
    each: float = 929.0  # cycles per block of a round
    reduce: float = 3.66  # cycles per sum and part, over 128 lanes
    cluster: float = 1680.0  # cycles
    cache_rate: float = 5170.0 / H200.multiprocessors  # bytes per clock and multiprocessor
    memory_rate: float = 1630.0 / H200.bytes_per_clock  # fraction of the memory's
    transform: float = 2270.0  # cycles
    transform_rate: float = 1740.0 / H200.multiprocessors  # bytes per clock and SM


FIT = Fit()


def _memory_cycles(moved: float, machine: Machine, cache_rate: float) -> float:
    """Return the cycles to move bytes that all fit the cache at `cache_rate` per SM, or memory."""
    if moved <= FIT.cached * machine.cache_bytes:
        return moved / (cache_rate * machine.multiprocessors)
    return moved / (FIT.memory_rate * machine.bytes_per_clock)


def product_cycles(
    product: Product, problem: Conv, images: int, groups: int, machine: Machine
) -> float:
    """Estimate the cycles of one launch of `groups` products."""
    tile, split = product.tile, product.split
    chunks = -(-problem.gemm_k // tile.bk)
    chunks = -(-chunks // split)
    blocks = groups * product.tiles(problem, images) * split
    busiest = -(-blocks // usable_multiprocessors(machine.multiprocessors, split))
    resident, warps = product.blocks_per_sm(machine), tile.threads // 32
    plain = problem.R == problem.S == problem.stride == 1 and problem.pad == 0
    columns_at_once = 4 if plain and problem.H * problem.W % 4 == 0 else 1
    copies = tile.bk * (tile.bm / 4 + tile.bn / columns_at_once) / tile.threads
    instructions = tile.instructions() + FIT.copy * copies + FIT.chunk
    epilogue = FIT.block
    if tile.warps_k > 1 or split > 1:
        epilogue += FIT.reduce * tile.bm * tile.bn * (tile.warps_k + 2 * (split > 1)) / 128
    if split > 1:
        epilogue += FIT.cluster

    def one_round(blocks: int) -> float:
        rate = FIT.issued * min(1.0, blocks * warps / FIT.full_warps)
        busy = blocks * warps * instructions / rate
        return chunks * max(busy, FIT.latency / (tile.stages - 1)) + epilogue + blocks * FIT.each

    rounds, rest = divmod(busiest, resident)
    multiply = rounds * one_round(resident) + (one_round(rest) if rest else 0.0)
    cached = 4 * blocks * chunks * tile.bk * (tile.bm + tile.bn)
    cache = cached / (FIT.cache_rate * machine.multiprocessors)
    memory = _memory_cycles(groups * problem.bytes(images), machine, float("inf"))
    return max(multiply, cache, memory) + FIT.launch


def transform_cycles(moved: int, machine: Machine) -> float:
    """Estimate the cycles of the two launches that transform `moved` bytes for Winograd."""
    return 2 * FIT.transform + _memory_cycles(moved, machine, FIT.transform_rate)


def single_cycles(problem: Conv, images: int, machine: Machine) -> float:
    """Estimate the cycles of `direct.tuned_single`: a launch, and bytes or multiply-adds."""
    memory = _memory_cycles(problem.bytes(images), machine, FIT.cache_rate)
    multiply = problem.flop(images) / 2 / (machine.multiprocessors * 32 * FIT.issued)
    return FIT.launch + max(memory, multiply)


@cache
def cheapest(
    problem: Conv, images: int, machine: Machine, groups: int = 1, longest: int = 0
) -> Product:
    """Return the product with the fewest estimated cycles; `longest` is that of `options`."""
    return min(
        options(problem, longest),
        key=lambda option: product_cycles(option, problem, images, groups, machine),
    )
