"""What a product costs: a small model in clocks of one multiprocessor, for choosing a plan.

The busiest multiprocessor works in rounds of as many blocks as it holds. A round takes its
instructions over the rate at which that many warps issue, or the latency of its chain of copies,
whichever is longer, and the sums that meet at its end. The launch takes its rounds, the bytes from
the L2 cache or those from memory, whichever is longest. The constants were fitted to times
measured on one H200; the model asks no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lenetgpu.problems import Conv
    from lenetgpu.stages.conv.tuned.product import Product


@dataclass(frozen=True)
class Machine:
    """The device in the model's eyes: clocks, instructions, and bytes a clock of all of it."""

    sms: int = 132
    cache_bytes: float = 40e6
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
    cache_rate: float = 5170.0
    memory_rate: float = 1630.0
    transform: float = 2270.0
    transform_rate: float = 1740.0


H200 = Machine()
_CLUSTER_SMS = 16  # whose blocks can share a cluster; a few more stay empty


def usable_sms(sms: int, split: int) -> int:
    """Multiprocessors that blocks in clusters of `split` can fill."""
    return sms if split == 1 else int(0.95 * sms * (_CLUSTER_SMS // split * split) / _CLUSTER_SMS)


def product_clocks(
    product: Product, problem: Conv, images: int, groups: int = 1, machine: Machine = H200
) -> float:
    """Estimated clocks of one launch."""
    tile, split = product.tile, product.split
    chunks = -(-problem.depth // tile.bk)
    chunks = -(-chunks // split)
    blocks = groups * product.tiles(problem, images) * split
    busiest = -(-blocks // usable_sms(machine.sms, split))
    resident = product.resident
    warps = tile.threads // 32
    wide = 4 if product.dense(problem) else 1
    copies = tile.bk * (tile.bm / 4 + tile.bn / wide) / tile.threads
    instructions = tile.instructions() + machine.copy * copies + machine.chunk
    ends = machine.block
    if tile.warps_k > 1 or split > 1:
        ends += machine.meet * tile.bm * tile.bn * (tile.warps_k + 2 * (split > 1)) / 128
    if split > 1:
        ends += machine.cluster

    def one_round(held: int) -> float:
        rate = machine.issued * min(1.0, held * warps / machine.full_warps)
        busy = held * warps * instructions / rate
        return chunks * max(busy, machine.latency / (tile.stages - 1)) + ends + held * machine.each

    rounds, rest = divmod(busiest, resident)
    multiply = rounds * one_round(resident) + (one_round(rest) if rest else 0.0)
    cache = 4 * blocks * chunks * tile.bk * (tile.bm + tile.bn) / machine.cache_rate
    columns = images * (problem.C * problem.H * problem.W + problem.M * problem.OH * problem.OW)
    unique = 4 * groups * (columns + problem.depth * problem.M)
    memory = unique / machine.memory_rate if unique > machine.cache_bytes else 0.0
    return max(multiply, cache, memory) + machine.launch


def transform_clocks(moved: int, machine: Machine = H200) -> float:
    """Estimated clocks of the two launches around Winograd's products, which move `moved` bytes."""
    rate = machine.transform_rate if moved < machine.cache_bytes else machine.memory_rate
    return 2 * machine.transform + moved / rate


def single_clocks(problem: Conv, images: int, machine: Machine = H200) -> float:
    """Estimated clocks of `direct.tuned_single`: a launch, and its bytes or its multiply-adds."""
    moved = problem.bytes(images)
    memory = moved / (machine.cache_rate if moved < machine.cache_bytes else machine.memory_rate)
    multiply = problem.flop(images) / 2 / (machine.sms * 32 * machine.issued)
    return machine.launch + max(memory, multiply)
