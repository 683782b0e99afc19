"""Products on Hopper whose taps all read one patch of split images in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.machines import Machine
from lenetgpu.stages.conv.tensor.packed import CELL, FILTERS, PAIR, ROW, Layout
from lenetgpu.stages.conv.tensor.product import FIT, HOPPER, Block

_SOURCE = Path(__file__).with_suffix(".cu").resolve()
_MULTIPLIERS = 2  # warpgroups
_WARPS = 4  # of a warpgroup
_THREADS = 384
_CELL_BYTES = 2 * CELL
_BARRIER_BYTES = 16  # two a patch or tap: it is there, it is free
_LINES_BYTES = 4 * 8 * 40  # of a warp, by which 32 positions of 8 filters change hands
_RINGS = ((4, 8), (3, 8), (3, 6), (2, 8), (2, 6), (2, 4))  # patches and taps of filters
_MOST = 1 << 29  # positions, of which one launch has as many again at most
_SHARE = 0.9  # of the dense rate
_CHUNK = 150.0  # clocks: the wait for a patch
_TILE = 5000.0  # its outputs stored
_TWICE = 170.0  # a tap of pairs, whose sums go to two outputs
_ASIDE = 1000.0  # predicted: sums to the cache and back, while the other warpgroup multiplies
_ROUNDINGS = 24  # of taps' sums that may follow one another
_LEAST_CHANNELS = 32  # that Winograd's points are taken for: a chunk's


@dataclass(frozen=True)
class TapsTiling(Block):
    """Two warpgroups of a block, each with FILTERS filters x `wide` positions.

    `pairs`: a position is a pair of outputs, of three filter columns at a stride of 1.
    """

    wide: int
    pairs: bool = False

    source = _SOURCE
    entry = "tensor_taps"
    planes = True
    only = HOPPER

    def sizes(self) -> tuple[int, int, int]:
        """Positions, filters and threads of a block."""
        return _MULTIPLIERS * self.wide, FILTERS, _THREADS

    def takes(self, layout: Layout) -> bool:
        """Maps and filters of which two patches fit into shared memory.

        In pairs where Winograd's F(2, 3) along rows computes it; of fewer channels fp32 errs less.
        """
        problem = layout.problem
        in_pairs = problem.S == 3 and problem.stride == 1 and problem.C >= _LEAST_CHANNELS
        if self.pairs and not in_pairs:
            return False
        return layout.plane(1) < _MOST and self._rings(layout) is not None

    @property
    def _each(self) -> int:
        return PAIR if self.pairs else 1

    def rows(self, layout: Layout, images: int) -> int:
        """All positions, of which some are no outputs."""
        return images * layout.slot

    def chunks(self, layout: Layout) -> int:
        """Those of a tap, in each phase."""
        return layout.channels * layout.parts // (ROW * CELL) * layout.phases

    def _patch_bytes(self, layout: Layout) -> int:
        return ROW * _CELL_BYTES * (self.bm + layout.reach)

    def _bytes(self, layout: Layout, patches: int, taps: int) -> int:
        taps_bytes = taps * ROW * _CELL_BYTES * FILTERS
        rings = taps_bytes + patches * self._patch_bytes(layout) + _BARRIER_BYTES * (patches + taps)
        lines = _LINES_BYTES * _MULTIPLIERS * _WARPS
        return rings + (lines if layout.problem.writes == "NCHW" else 0)

    def _rings(self, layout: Layout) -> tuple[int, int] | None:
        """The most patches and taps that shared memory holds; None where not even the fewest."""
        room = machines.SM_90_BLOCK_BYTES
        return next((ring for ring in _RINGS if self._bytes(layout, *ring) <= room), None)

    def _held(self, layout: Layout) -> tuple[int, int]:
        found = self._rings(layout)
        assert found is not None, "taken where shared memory holds two patches"
        return found

    def shared_bytes(self, layout: Layout) -> int:
        """Both rings and their barriers, and outputs on their way."""
        return self._bytes(layout, *self._held(layout))

    def _turns(self, layout: Layout, chunks: int) -> tuple[int, int]:
        """How often sums of so many chunks start anew, and the taps between."""
        taps = chunks * prod(
            blocks_for(way.taps, way.phases) for way in (layout.down, layout.along)
        )
        turns = blocks_for(taps, _ROUNDINGS)
        return turns, blocks_for(taps, turns)

    def kept(self, layout: Layout, split: int, blocks: int) -> int:
        """Floats in which blocks set sums aside."""
        turns, _ = self._turns(layout, blocks_for(self.chunks(layout), split))
        return self.grid(blocks) * self._each * self.bm * FILTERS if turns > 1 else 0

    def defines(self, layout: Layout, split: int) -> dict[str, int | str]:
        """The tiling as `-D` definitions."""
        patches, taps = self._held(layout)
        turns, at_once = self._turns(layout, blocks_for(self.chunks(layout), split))
        return {
            "WIDE": self.wide,
            "KEEPS": int(turns > 1),
            "AT_ONCE": at_once,
            "PATCHES": patches,
            "STAGES": taps,
            "SHARED_BYTES": self.shared_bytes(layout),
        }

    def numbers(self, layout: Layout, count: int, room: int) -> tuple[int, ...]:
        """Images, and positions from one plane to the next."""
        return count, layout.plane(room)

    def grid(self, blocks: int) -> int:
        """A block a multiprocessor, which takes its share in turn."""
        return min(blocks, machines.current().multiprocessors)

    def clocks(self, layout: Layout, chunks: int, blocks: int, machine: Machine) -> float:
        """Products or bytes from the cache, whichever takes longer."""
        busiest = blocks_for(blocks, machine.multiprocessors)
        taps = layout.down.taps * layout.along.taps / layout.phases
        multiply = taps * self.products(layout) / (FIT.products * _SHARE)
        moved = self._patch_bytes(layout) + taps * ROW * _CELL_BYTES * FILTERS
        chunk = max(multiply, moved / FIT.cache_rate) + _CHUNK + taps * _TWICE * self.pairs
        aside = _ASIDE * self._each * (self._turns(layout, chunks)[0] - 1)
        return busiest * (chunks * chunk + _TILE + aside) + FIT.block


TILINGS = (TapsTiling(128), TapsTiling(136), TapsTiling(112), TapsTiling(96))
PAIRS = (TapsTiling(104, True), TapsTiling(96, True), TapsTiling(80, True))
