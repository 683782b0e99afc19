"""Products on Hopper in which all filter elements read one input tile in shared memory."""

from dataclasses import dataclass
from math import prod

from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.machines import Machine
from lenetgpu.stages.conv.tensor.packed import FILTERS, PAIR, ROW, VEC, Layout
from lenetgpu.stages.conv.tensor.product import FIT, HOPPER, Block

_CONSUMERS = 2  # warpgroups
_WARPS = 4  # of a warpgroup
_THREADS = 384
_VEC_BYTES = 2 * VEC
_BARRIER_BYTES = 16  # two barriers per input tile or filter element: full and empty
_LINES_BYTES = 4 * 8 * 40  # per warp, to transpose 32 positions of 8 filters
_STAGES = ((4, 8), (3, 8), (3, 6), (2, 8), (2, 6), (2, 4))  # input tiles, filter elements
_MOST = 1 << 29  # positions of an image; a launch has at most twice as many
_SHARE = 0.9  # fraction of the dense rate
_CHUNK = 150.0  # cycles: the wait for an input tile
_TILE = 5000.0  # cycles: storing a tile's outputs
_TWICE = 170.0  # cycles per filter element of F(2, 3), whose sums go to two outputs
_ASIDE = 1000.0  # cycles, estimated: sums to the cache and back while the other group multiplies
_ROUNDINGS = 24  # most consecutive additions of filter elements' sums
_LEAST_CHANNELS = 32  # for F(2, 3), those of a chunk; fewer have larger errors than fp32


@dataclass(frozen=True)
class HaloTiling(Block):
    """Two warpgroups per block, each with FILTERS filters x `wide` positions."""

    wide: int
    winograd: bool = False

    module = __file__
    entry = "tensor_halo"
    planes = True
    only = HOPPER

    def sizes(self) -> tuple[int, int, int]:
        """Return the positions, filters and threads of a block."""
        return _CONSUMERS * self.wide, FILTERS, _THREADS

    def supports(self, layout: Layout) -> bool:
        """Return True if two input tiles fit shared memory, and F(2, 3), if used, is accurate."""
        problem = layout.problem
        suited = problem.S == 3 and problem.stride == 1 and problem.C >= _LEAST_CHANNELS
        if self.winograd and not suited:
            return False
        return layout.plane(1) < _MOST and self._stages(layout) > (0, 0)

    @property
    def _each(self) -> int:
        return PAIR if self.winograd else 1

    def rows(self, layout: Layout, images: int) -> int:
        """Return the number of all positions, including those that are not outputs."""
        return images * layout.slot

    def chunks(self, layout: Layout) -> int:
        """Return the chunks of a filter element, summed over phases."""
        return layout.channels * layout.parts // (ROW * VEC) * layout.phases

    def _tile_bytes(self, layout: Layout) -> int:
        return ROW * _VEC_BYTES * (self.bm + layout.reach)

    def _bytes(self, layout: Layout, tiles: int, elements: int) -> int:
        weights = elements * ROW * _VEC_BYTES * FILTERS
        pipes = weights + tiles * self._tile_bytes(layout) + _BARRIER_BYTES * (tiles + elements)
        lines = _LINES_BYTES * _CONSUMERS * _WARPS
        return pipes + (lines if layout.problem.writes == "NCHW" else 0)

    def _stages(self, layout: Layout) -> tuple[int, int]:
        """Return the most input tiles and filter elements that fit shared memory; 0 if none do."""
        capacity = machines.SM_90_BLOCK_BYTES
        return next((n for n in _STAGES if self._bytes(layout, *n) <= capacity), (0, 0))

    def shared_bytes(self, layout: Layout) -> int:
        """Return the shared memory in bytes: both pipelines, barriers, outputs in transit."""
        return self._bytes(layout, *self._stages(layout))

    def _turns(self, layout: Layout, chunks: int) -> tuple[int, int]:
        """Return how often sums of `chunks` chunks restart, and the filter elements between."""
        elements = chunks * prod(
            blocks_for(way.elements, way.phases) for way in (layout.down, layout.along)
        )
        turns = blocks_for(elements, _ROUNDINGS)
        return turns, blocks_for(elements, turns)

    def saved(self, layout: Layout, split: int, blocks: int) -> int:
        """Return the workspace floats in which blocks save intermediate sums."""
        turns, _ = self._turns(layout, blocks_for(self.chunks(layout), split))
        return self.grid(blocks) * self._each * self.bm * FILTERS if turns > 1 else 0

    def defines(self, layout: Layout, split: int) -> dict[str, int | str]:
        """Return the tiling as `-D` definitions."""
        tiles, elements = self._stages(layout)
        turns, at_once = self._turns(layout, blocks_for(self.chunks(layout), split))
        return {
            "WIDE": self.wide,
            "SAVES": int(turns > 1),
            "AT_ONCE": at_once,
            "INPUT_TILES": tiles,
            "STAGES": elements,
            "SHARED_BYTES": self.shared_bytes(layout),
        }

    def numbers(self, layout: Layout, count: int, capacity: int) -> tuple[int, ...]:
        """Return the number of images, and the positions from one plane to the next."""
        return count, layout.plane(capacity)

    def grid(self, blocks: int) -> int:
        """Return at most one block per multiprocessor: the kernel is persistent."""
        return min(blocks, machines.current().multiprocessors)

    def cycles(self, layout: Layout, chunks: int, blocks: int, machine: Machine) -> float:
        """Estimate the cycles: products or bytes from the cache, whichever takes longer."""
        busiest = blocks_for(blocks, machine.multiprocessors)
        elements = layout.down.elements * layout.along.elements / layout.phases
        multiply = elements * self.products(layout) / (FIT.products * _SHARE)
        moved = self._tile_bytes(layout) + elements * ROW * _VEC_BYTES * FILTERS
        chunk = max(multiply, moved / FIT.cache_rate) + _CHUNK + elements * _TWICE * self.winograd
        aside = _ASIDE * self._each * (self._turns(layout, chunks)[0] - 1)
        return busiest * (chunks * chunk + _TILE + aside) + FIT.block


TILINGS = (HaloTiling(128), HaloTiling(136), HaloTiling(112), HaloTiling(96))
WINOGRAD = (HaloTiling(104, True), HaloTiling(96, True), HaloTiling(80, True))
