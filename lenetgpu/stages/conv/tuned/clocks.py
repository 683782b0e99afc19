"""What a product costs: a small model in clocks of one multiprocessor, for choosing a plan.

The busiest multiprocessor works in rounds of as many blocks as it holds. A round takes its
instructions over the rate at which that many warps issue, or the latency of its chain of copies,
whichever is longer, and the sums that meet at its end. The launch takes its rounds, the bytes from
the L2 cache or those from memory, whichever is longest. The constants were fitted to times
measured on one H200, and scale with a machine's multiprocessors and memory; the model asks no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from lenetgpu.gpu.machines import H200, Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tuned.product import Product, options, usable_multiprocessors


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
