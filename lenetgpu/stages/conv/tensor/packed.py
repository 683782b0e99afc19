"""How the tensor cores' operands lie in memory, and filters split into fp16 high and low.

Scales are powers of two, named by their exponents. A channel's inputs are multiplied by 2**lift,
its filters divided by it, so that inputs compare by what they can make of an output; each filter is
then scaled to stay below 2**15 and its sums multiplied by 2**drop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.nvrtc import ARCHITECTURES
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import conv_defines

ABLE = tuple(arch for arch in ARCHITECTURES if int(arch[3:].rstrip("a")) >= 80)
"""Architectures of tensor cores that take these operands, which the kernels are meant for."""
CELL = 8  # channels, 16 bytes of halves
ROW = 8  # cells of a chunk's row: of high halves, or of high and low in turn
FILTERS = 64  # of a block that reads planes
POINTS = 4  # of Winograd's F(2, 3)
PAIR = 2  # outputs that they make
_BLOCK = 512  # positions: no block computes as many
_HALF_TOP = 15
_NONE = -(1 << 12)  # the exponent of zeros
_NO_FILTER = -300  # the lift of a channel that no filter reads


@dataclass(frozen=True)
class Way:
    """Rows or columns: inputs with padding, the taps of a filter, a stride, outputs."""

    size: int
    pad: int
    taps: int
    stride: int
    outputs: int

    @property
    def phases(self) -> int:
        """Remainders of a stride that a tap reads from."""
        return min(self.stride, self.taps)

    @property
    def reach(self) -> int:
        """Positions from an output's first input to its last, of a phase."""
        return (self.taps - 1) // self.stride

    @property
    def positions(self) -> int:
        """Of a phase: room for outputs and what they read; zeros are shared at a stride of 1."""
        if self.stride == 1:
            return max(self.size + self.pad, self.outputs)
        return self.outputs + self.reach


@dataclass(frozen=True)
class Layout:
    """Split images of `problem` with `parts` parts: [H][width][part][channels / 8][8] halves.

    `folded`: a filter row's S x C inputs are the channels of an output column, where C alone would
    leave most of a cell empty. `planes`: [part][phase][channels / 8][position][8] instead, whole
    chunks of channels; positions are padded rows of all images one after another, whose zeros
    beside a row and below an image are those before the next one. They are written once, when room
    is made. A stride takes every so many-th row and column, which are a phase each. `pairs`: a
    position is two output columns, of Winograd's F(2, 3) along rows, whose points are phases.
    `sampled`: some of an image's inputs say how large all are.
    """

    problem: Conv
    parts: int
    planes: bool = False
    pairs: bool = False
    sampled: bool = False

    @property
    def folded(self) -> bool:
        """Whether fewer cells hold a filter row's inputs together than tap by tap."""
        return self.problem.C < CELL and self.problem.S > 1

    @property
    def held(self) -> int:
        """Inputs of a column."""
        return self.problem.C * (self.problem.S if self.folded else 1)

    @property
    def channels(self) -> int:
        """Channels of a column, in whole cells or chunks."""
        whole = CELL * (ROW // self.parts if self.planes else 1)
        return whole * blocks_for(self.held, whole)

    @property
    def width(self) -> int:
        """Columns of an image."""
        if self.pairs:
            return int(blocks_for(self.problem.OW, PAIR))
        return self.problem.OW if self.folded else self.problem.W

    @property
    def down(self) -> Way:
        """What an image's rows are to its outputs."""
        problem = self.problem
        return Way(problem.H, problem.pad, problem.R, problem.stride, problem.OH)

    @property
    def along(self) -> Way:
        """What its columns are."""
        problem = self.problem
        if self.folded:
            return Way(problem.OW, 0, 1, 1, problem.OW)
        if self.pairs:
            return Way(problem.W, 0, POINTS, POINTS, self.width)
        return Way(problem.W, problem.pad, problem.S, problem.stride, problem.OW)

    @property
    def phases(self) -> int:
        """Planes that 8 channels have."""
        return self.down.phases * self.along.phases

    @property
    def pitch(self) -> int:
        """Positions of a row."""
        return self.along.positions if self.planes else self.width

    @property
    def slot(self) -> int:
        """Positions of an image."""
        return (self.down.positions if self.planes else self.problem.H) * self.pitch

    @property
    def reach(self) -> int:
        """Positions from an output's first input to its last, in planes."""
        return self.down.reach * self.pitch + self.along.reach

    def plane(self, images: int) -> int:
        """Positions of a plane of `images` images, as far as blocks read; 0 where there is none."""
        read = images * self.slot + _BLOCK + self.reach
        return CELL * blocks_for(read, CELL) if self.planes else 0

    @property
    def image_bytes(self) -> int:
        """Bytes of one image."""
        return 2 * self.parts * self._all_channels * self.slot

    @property
    def written_bytes(self) -> int:
        """Bytes of one image that are no zeros for good."""
        cells = blocks_for(self.held, CELL) * self.problem.H * self.width
        read = self.phases / (self.down.stride * self.along.stride) if self.planes else 1
        return int(2 * CELL * self.parts * cells * read * (POINTS if self.pairs else 1))

    @property
    def _all_channels(self) -> int:
        return self.channels * (self.phases if self.planes else 1)

    def bytes(self, images: int) -> int:
        """Bytes of `images` images."""
        positions = self.plane(images) if self.planes else images * self.slot
        return 2 * self.parts * self._all_channels * positions

    @property
    def depth_cells(self) -> int:
        """Cells that one output is summed over."""
        return self.problem.R * self.along.taps * self.channels // CELL

    @property
    def chunks(self) -> int:
        """Rows of ROW cells that hold an output's depth."""
        return blocks_for(self.depth_cells, ROW // self.parts)

    def defines(self) -> dict[str, int | str]:
        """The problem and its layout as `-D` definitions."""
        problem = self.problem
        plain = replace(problem, bias=False, relu=False, dtype="fp32")
        return conv_defines(plain) | {
            "DTYPE": problem.dtype.upper(),
            "BIAS": int(problem.bias),
            "RELU": int(problem.relu),
            "PARTS": self.parts,
            "FOLD": int(self.folded),
            "CP": self.channels,
            "WP": self.width,
            "PLANES": int(self.planes),
            "POINTS": POINTS if self.pairs else 1,
            "PITCH": self.pitch,
            "SLOT": self.slot,
        }


@dataclass(frozen=True)
class Packed:
    """Filters as blocks copy them, and the scales' exponents.

    They are [chunk][filter][cell][8] halves, cells swizzled; for planes [filters / FILTERS][phase]
    [chunk][tap][cell][FILTERS][8]. A chunk's cells are the high halves of its depth, then the low
    ones.

    `lifts` (C,) and `drops` (a filter each, padded with zeros) are int32; `worst` is the largest
    drop of a filter that is not all zeros.
    """

    filters: Array
    lifts: Array
    drops: Array
    worst: int


def _tops(sizes: Array) -> Array:
    """The least e with size < 2**e; _NONE of zeros."""
    return np.where(sizes > 0, np.frexp(sizes)[1], _NONE).astype(np.int32)


def _cells(w: Array, layout: Layout, padded: int) -> Array:
    """(R, S, C, M) as (chunks, cells of a chunk, 8, padded), zeros where there is no filter."""
    rows, taps, channels, maps = w.shape
    if layout.folded:
        w = w.reshape(rows, 1, taps * channels, maps)
    held = np.zeros((*w.shape[:2], layout.channels, padded))
    held[:, :, : w.shape[2], :maps] = w
    cut = ROW // layout.parts
    found = np.zeros((layout.chunks * cut, CELL, padded))
    found[: layout.depth_cells] = held.reshape(layout.depth_cells, CELL, padded)
    return found.reshape(layout.chunks, cut, CELL, padded)


def _in_halves(scaled: Array, parts: int) -> Array:
    """Float64 numbers as fp16: high, and low where there are two parts, along a new first axis."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        high = scaled.astype(np.float16)
        return np.stack([high, (scaled - high).astype(np.float16)][:parts])


def _in_rows(halves: Array) -> Array:
    """(part, chunk, cell, channel, filter) as (chunk, filter, part and cell, channel), swizzled."""
    _, chunks, _, _, padded = halves.shape
    cells = halves.transpose(1, 4, 0, 2, 3).reshape(chunks, padded, ROW, CELL)
    places = np.arange(ROW) ^ np.arange(padded)[:, None] % ROW
    return np.take_along_axis(cells, places[None, :, :, None], axis=2)


def _by_taps(halves: Array, layout: Layout) -> Array:
    """The same as (filters / 64, phase and chunk and tap, part and cell, filter of 64, channel)."""
    down, along, padded = layout.down, layout.along, halves.shape[-1]
    each = layout.chunks // (down.taps * along.taps)
    order = [
        (r * along.taps + s) * each + chunk
        for row in range(down.phases)
        for column in range(along.phases)
        for chunk in range(each)
        for r in range(row, down.taps, down.stride)
        for s in range(column, along.taps, along.stride)
    ]
    apart = (layout.parts, -1, ROW // layout.parts, CELL, padded // FILTERS, FILTERS)
    cells = halves[:, order].reshape(apart).transpose(4, 1, 0, 2, 5, 3)
    return cells.reshape(padded // FILTERS, len(order), ROW, FILTERS, CELL)


def _at_points(w: Array) -> Array:
    """Filters (R, 3, C, M) at the points 0, 1, -1 and infinity: (R, 4, C, M)."""
    first, middle, last = (w[:, s] for s in range(3))
    with np.errstate(invalid="ignore"):
        one, other = (first + middle + last) / 2, (first - middle + last) / 2
    return np.stack([first, one, other, last], 1)


def pack(w: Array, layout: Layout, padded: int) -> Packed:
    """Filters (R, S, C, M) float32 for blocks that take `padded` filters in all.

    NaN and infinity count for no scale, and stay what they are or become NaN.
    """
    exact = w.astype(np.float64)
    if layout.pairs:
        exact = _at_points(exact)
    sizes = np.where(np.isfinite(exact), np.abs(exact), 0)
    channels = _tops(sizes.max((0, 1, 3)))
    used = channels > _NONE
    lifts = np.where(used, channels - channels.max(), _NO_FILTER).astype(np.int32)
    level = np.ldexp(exact, np.where(used, -lifts, 0)[:, None])
    found = _tops(np.where(np.isfinite(level), np.abs(level), 0).max((0, 1, 2)))
    filled = found > _NONE
    shifts = np.where(filled, _HALF_TOP - found, 0)
    halves = _in_halves(_cells(np.ldexp(level, shifts), layout, padded), layout.parts)
    ordered = _by_taps(halves, layout) if layout.planes else _in_rows(halves)
    drops = np.zeros(padded, np.int32)
    drops[: len(shifts)] = -shifts
    worst = int(-shifts[filled].min()) if filled.any() else _NONE
    return Packed(np.ascontiguousarray(ordered), lifts, drops, worst)
