"""Tiled products: the work of `direct.tuned` and `winograd`, its tiles, plans and launches.

A product is a tile and a split: how many blocks share a tile's depth, each summing a part.

Which should be the fastest says a small model in clocks of one multiprocessor. The busiest one
works in rounds of as many blocks as it holds. A round takes its instructions over the rate at which
that many warps issue, or the latency of its chain of copies, whichever is longer, and the sums that
meet at its end. The launch takes its rounds, the bytes from the L2 cache or those from memory,
whichever is longest. The constants were fitted to times measured on one H200, and scale with a
machine's multiprocessors and memory; the model asks no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
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

_OTHER_REGISTERS = 56  # of a thread, beside its sums
_SHARED_STEP = 128
_RAGGED_ROWS = 16  # of a warp's chunk, where each row must find its own tap and channel
SPLITS = (1, 2, 3, 4, 6, 8)  # a cluster has at most eight blocks everywhere


@dataclass(frozen=True)
class Tile:
    """What a block computes, by warps along the maps, the columns and the depth.

    A chunk has `bk` rows, the ring `stages` of them; `blocks` are meant to share a multiprocessor.
    A thread has tm x tn sums on CUDA cores, `lanes_m` lanes of a warp lie along the maps.
    """

    warps_m: int
    warps_n: int
    warps_k: int
    bk: int
    stages: int
    blocks: int
    tm: int
    tn: int
    lanes_m: int

    @property
    def bm(self) -> int:
        """Maps of a block."""
        return self.tm * self.lanes_m * self.warps_m

    @property
    def bn(self) -> int:
        """Columns of a block."""
        return self.tn * (32 // self.lanes_m) * self.warps_n

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.tm * self.tn

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n * self.warps_k

    def instructions(self) -> float:
        """Instructions of a warp for its rows of a chunk: multiply-adds, reads of shared memory."""
        return self.bk / self.warps_k * (self.sums + (self.tm + self.tn) / 4)

    def shared(self, split: int) -> int:
        """Dynamic shared memory in bytes: the ring, or the sums that meet after it."""
        ring = 4 * self.stages * self.bk * (self.bm + self.bn)
        meet = 4 * self.warps_k * self.bm * self.bn if self.warps_k > 1 or split > 1 else 0
        return max(ring, meet)

    def defines(self) -> dict[str, int | str]:
        """The tile as `-D` definitions; multiply-adds snake along the operand as long at least."""
        named = {name.upper(): value for name, value in vars(self).items() if name != "blocks"}
        return named | {"ORDER": int(self.tn >= self.tm)}


def _fma(
    sums: tuple[int, int], lanes_m: int, warps: tuple[int, int, int], bk: int, **ring: int
) -> Tile:
    return Tile(*warps, bk, tm=sums[0], tn=sums[1], lanes_m=lanes_m, **ring)


TILES = (
    _fma((8, 8), 4, (4, 2, 1), bk=32, stages=2, blocks=2),  # 128 x 128
    _fma((8, 8), 4, (2, 2, 1), bk=16, stages=3, blocks=3),  # 64 x 128
    _fma((8, 8), 8, (2, 2, 1), bk=16, stages=3, blocks=3),  # 128 x 64
    _fma((8, 8), 4, (2, 1, 2), bk=32, stages=3, blocks=3),  # 64 x 64
    _fma((8, 8), 4, (2, 1, 4), bk=32, stages=2, blocks=2),  # 64 x 64
    _fma((8, 8), 8, (1, 1, 4), bk=32, stages=3, blocks=3),  # 64 x 32
    _fma((4, 8), 8, (1, 1, 4), bk=32, stages=3, blocks=4),  # 32 x 32
    _fma((4, 8), 8, (1, 1, 8), bk=64, stages=2, blocks=2),  # 32 x 32
    _fma((8, 4), 8, (1, 1, 4), bk=32, stages=6, blocks=3),  # 64 x 16
    _fma((8, 4), 8, (1, 1, 8), bk=64, stages=3, blocks=2),  # 64 x 16
)


@dataclass(frozen=True)
class Product:
    """A tile, how many blocks share one tile's depth, and the longest sum (0: any)."""

    tile: Tile
    split: int
    sum_rows: int = 0

    def __str__(self) -> str:
        parts = self.split * self.tile.warps_k
        words = f"{self.tile.bm} maps x {self.tile.bn} columns"
        words += f" a block of {self.tile.threads} threads"
        words += f", depth in {parts} parts" if parts > 1 else ""
        return words + (f", sums of {self.sum_rows}" if self.sum_rows else "")

    def resident(self, machine: Machine) -> int:
        """Blocks of a multiprocessor of `machine`; fewer where a thread holds its sums twice."""
        if self.sum_rows == 0:
            return self.tile.blocks
        wanted = 2 * self.tile.sums + _OTHER_REGISTERS
        return min(self.tile.blocks, machine.resident(self.tile.threads, wanted, 0))

    @property
    def walks(self) -> bool:
        """Whether a block takes tile after tile: few are resident, and no sums meet."""
        return self.sum_rows > 0 and self.split == self.tile.warps_k == 1

    @staticmethod
    def dense(problem: Conv) -> bool:
        """Whether columns are copied four at a time: a 1x1 filter on maps of whole quads."""
        plain = problem.R == problem.S == problem.stride == 1 and problem.pad == 0
        return plain and problem.H * problem.W % 4 == 0

    def kernel(self, problem: Conv) -> Kernel:
        """The kernel for `problem`."""
        ragged = bool(problem.C % self.tile.bk)
        defines: dict[str, int | str] = conv_defines(problem) | self.tile.defines()
        defines |= {"SPLIT": self.split, "SUM_ROWS": self.sum_rows}
        defines["BLOCKS_PER_SM"] = max(1, self.resident(machines.current()) - ragged)
        return Kernel(_SOURCE, "conv_tuned", tuple(defines.items()))

    def tiles(self, problem: Conv, images: int) -> int:
        """Tiles that cover the outputs of `images` images."""
        columns = images * problem.OH * problem.OW
        return -(-problem.M // self.tile.bm) * -(-columns // self.tile.bn)

    def run(
        self, problem: Conv, x: Any, w: Any, y: Any, space: Workspace, images: int, groups: int = 1
    ) -> None:
        """Launch on the current stream; `groups` products, whose operands follow one another."""
        blocks = groups * self.tiles(problem, images) * self.split
        resident = self.resident(machines.current())
        if self.walks:
            blocks = min(blocks, resident * multiprocessors())
        shared = self.tile.shared(self.split)
        each = -(-blocks // usable_multiprocessors(multiprocessors(), self.split))
        if 1 < each < resident:
            shared = max(shared, _keeps_out(each + 1))
        args = (x, w, y, space.parts, space.counters, np.int32(images), np.int32(groups))
        launch(self.kernel(problem), (blocks,), (self.tile.threads,), args, shared, overlap=True)


_CLUSTER = 16  # multiprocessors whose blocks can share a cluster; a few more stay empty


def usable_multiprocessors(count: int, split: int) -> int:
    """Of `count` multiprocessors, those that blocks in clusters of `split` can fill."""
    return count if split == 1 else int(0.95 * count * (_CLUSTER // split * split) / _CLUSTER)


def _keeps_out(blocks: int) -> int:
    """Shared memory of a block, in bytes, with which no multiprocessor holds `blocks` of them.

    Blocks that start early crowd where there is room; this spreads them evenly.
    """
    machine = machines.current()
    room = machine.shared_bytes // blocks - machine.limits.reserved_bytes
    return min(machine.block_bytes, room + _SHARED_STEP)


@dataclass(frozen=True)
class Workspace:
    """Where blocks that share a tile's depth meet before sm_90; clusters need none."""

    parts: Any
    counters: Any

    @staticmethod
    def of(product: Product, problem: Conv, images: int, groups: int = 1) -> Workspace:
        """Enough for `images` images."""
        tiles = groups * product.tiles(problem, images)
        used = product.split > 1 and int(cupy.cuda.Device().compute_capability) < 90
        tile = product.tile.bm * product.tile.bn
        parts = cupy.empty(tiles * product.split * tile if used else 1, cupy.float32)
        return Workspace(parts, cupy.zeros(tiles if used else 1, cupy.int32))


def options(problem: Conv, longest: int = 0) -> tuple[Product, ...]:
    """Every product for `problem` with sums of at most `longest` products (0: any length)."""
    found = (_bounded(tile, split, problem, longest) for tile in TILES for split in SPLITS)
    return tuple(product for product in found if product is not None)


def _bounded(tile: Tile, split: int, problem: Conv, longest: int) -> Product | None:
    """Tile and split with sums of at most `longest` products, or None where they do not fit."""
    chunks = -(-problem.depth // tile.bk)
    if split > chunks or (problem.C % tile.bk and tile.bk // tile.warps_k > _RAGGED_ROWS):
        return None
    step = tile.bk // tile.warps_k
    if longest == 0 or -(-chunks // split) * step <= longest:
        return Product(tile, split)
    if longest % step:
        return None  # sums end where chunks end
    product = Product(tile, split, longest)
    return product if product.resident(machines.current()) else None


@dataclass(frozen=True)
class Fit:
    """The model's constants: clocks, instructions, and shares of what a machine has."""

    cached: float = 40e6 / H200.cache_bytes  # of the L2 cache, that inputs and outputs may take
    issued: float = 3.34  # instructions a clock, of four
    full_warps: float = 5.52  # that reach this rate
    copy: float = 1.07  # instructions of one copy
    chunk: float = 6.99  # instructions around one chunk
    latency: float = 2090.0
    launch: float = 2730.0
    block: float = 212.0  # a round's first bytes and last stores
    each: float = 929.0  # more for each of its blocks
    meet: float = 3.66  # per sum and part, over 128 lanes
    cluster: float = 1680.0
    cache_rate: float = 5170.0 / H200.multiprocessors  # bytes a clock of one multiprocessor
    memory_rate: float = 1630.0 / H200.bytes_per_clock  # of the memory's
    transform: float = 2270.0
    transform_rate: float = 1740.0 / H200.multiprocessors


FIT = Fit()


def _cache_rate(machine: Machine) -> float:
    return FIT.cache_rate * machine.multiprocessors


def _memory_rate(machine: Machine) -> float:
    return FIT.memory_rate * machine.bytes_per_clock


def _cached(moved: float, machine: Machine) -> bool:
    return moved <= FIT.cached * machine.cache_bytes


def product_clocks(
    product: Product, problem: Conv, images: int, groups: int, machine: Machine
) -> float:
    """Estimated clocks of one launch of `groups` products."""
    tile, split = product.tile, product.split
    chunks = -(-problem.depth // tile.bk)
    chunks = -(-chunks // split)
    blocks = groups * product.tiles(problem, images) * split
    busiest = -(-blocks // usable_multiprocessors(machine.multiprocessors, split))
    resident = product.resident(machine)
    warps = tile.threads // 32
    wide = 4 if product.dense(problem) else 1
    copies = tile.bk * (tile.bm / 4 + tile.bn / wide) / tile.threads
    instructions = tile.instructions() + FIT.copy * copies + FIT.chunk
    ends = FIT.block
    if tile.warps_k > 1 or split > 1:
        ends += FIT.meet * tile.bm * tile.bn * (tile.warps_k + 2 * (split > 1)) / 128
    if split > 1:
        ends += FIT.cluster

    def one_round(held: int) -> float:
        rate = FIT.issued * min(1.0, held * warps / FIT.full_warps)
        busy = held * warps * instructions / rate
        return chunks * max(busy, FIT.latency / (tile.stages - 1)) + ends + held * FIT.each

    rounds, rest = divmod(busiest, resident)
    multiply = rounds * one_round(resident) + (one_round(rest) if rest else 0.0)
    cache = 4 * blocks * chunks * tile.bk * (tile.bm + tile.bn) / _cache_rate(machine)
    columns = images * (problem.C * problem.H * problem.W + problem.M * problem.OH * problem.OW)
    unique = 4 * groups * (columns + problem.depth * problem.M)
    memory = 0.0 if _cached(unique, machine) else unique / _memory_rate(machine)
    return max(multiply, cache, memory) + FIT.launch


def transform_clocks(moved: int, machine: Machine) -> float:
    """Estimated clocks of the two launches around Winograd's products, which move `moved` bytes."""
    near = FIT.transform_rate * machine.multiprocessors
    rate = near if _cached(moved, machine) else _memory_rate(machine)
    return 2 * FIT.transform + moved / rate


def single_clocks(problem: Conv, images: int, machine: Machine) -> float:
    """Estimated clocks of `direct.tuned_single`: a launch, and its bytes or its multiply-adds."""
    moved = problem.bytes(images)
    memory = moved / (_cache_rate(machine) if _cached(moved, machine) else _memory_rate(machine))
    multiply = problem.flop(images) / 2 / (machine.multiprocessors * 32 * FIT.issued)
    return FIT.launch + max(memory, multiply)


@cache
def cheapest(
    problem: Conv, images: int, machine: Machine, groups: int = 1, longest: int = 0
) -> Product:
    """The product with the fewest estimated clocks on `machine`, the first of equals.

    `longest` bounds how many products one fp32 sum may take; 0 does not.
    """
    return min(
        options(problem, longest),
        key=lambda option: product_clocks(option, problem, images, groups, machine),
    )
