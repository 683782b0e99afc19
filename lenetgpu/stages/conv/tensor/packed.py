"""Memory layout of the tensor cores' operands, and filters as split fp16.

A channel's inputs are multiplied by 2**in_scale and its filters divided by it, so that inputs
compare by their effect. Filters are scaled to stay below 2**15, their sums by 2**out_scale.
"""

from dataclasses import dataclass, replace

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.nvrtc import ARCHITECTURES
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import conv_defines

# Architectures whose tensor cores support these operands
ABLE = tuple(arch for arch in ARCHITECTURES if int(arch[3:].rstrip("a")) >= 80)
VEC = 8  # channels, 16 bytes of fp16
ROW = 8  # vectors of a chunk's row: all high, or high and low in turn
FILTERS = 64  # per block that reads planes
POINTS = 4  # of Winograd's F(2, 3)
PAIR = 2  # outputs per position of F(2, 3)
_BLOCK = 512  # positions, more than any block computes
_FP16_EXPONENT = 15
_NONE = -(1 << 12)  # the exponent of zeros
_NO_FILTER = -300  # the in_scale of a channel that no filter reads


@dataclass(frozen=True)
class Way:
    """One direction, rows or columns: inputs, padding, filter elements, stride, outputs."""

    size: int
    pad: int
    elements: int
    stride: int
    outputs: int

    @property
    def phases(self) -> int:
        """Number of remainders modulo the stride among the filter elements."""
        return min(self.stride, self.elements)

    @property
    def reach(self) -> int:
        """Positions from an output's first input to its last within a phase."""
        return (self.elements - 1) // self.stride

    @property
    def positions(self) -> int:
        """Positions of a phase: outputs and inputs they read; at stride 1 zeros are shared."""
        if self.stride == 1:
            return max(self.size + self.pad, self.outputs)
        return self.outputs + self.reach


@dataclass(frozen=True)
class Layout:
    """Split images of `problem` in `parts` parts: [H][width][part][channels / 8][8] fp16.

    `folded`: the S x C inputs of a filter row are the channels of an output column.

    `planes`: [part][phase][channels / 8][position][8] instead, in whole chunks of channels.
    Positions are the padded rows of all images; a row's and an image's padding is shared with the
    next, and written at allocation. With a stride, each remainder of rows and columns is a phase.
    """

    problem: Conv
    parts: int
    planes: bool = False
    winograd: bool = False  # a position is two output columns of F(2, 3), whose points are phases
    sampled: bool = False  # an image's scale is derived from some of its inputs

    @property
    def folded(self) -> bool:
        """True if a filter row's inputs together need fewer 16-byte vectors than one by one."""
        return self.problem.C < VEC and self.problem.S > 1

    @property
    def held(self) -> int:
        """Inputs per column."""
        return self.problem.C * (self.problem.S if self.folded else 1)

    @property
    def channels(self) -> int:
        """Channels per column, in whole 16-byte vectors or chunks."""
        multiple = VEC * (ROW // self.parts if self.planes else 1)
        return multiple * blocks_for(self.held, multiple)

    @property
    def width(self) -> int:
        """Columns per image."""
        if self.winograd:
            return int(blocks_for(self.problem.OW, PAIR))
        return self.problem.OW if self.folded else self.problem.W

    @property
    def down(self) -> Way:
        """The vertical direction, from an image's rows to output rows."""
        p = self.problem
        return Way(p.H, p.pad, p.R, p.stride, p.OH)

    @property
    def along(self) -> Way:
        """The horizontal direction, from an image's columns to output columns."""
        problem = self.problem
        if self.folded:
            return Way(problem.OW, 0, 1, 1, problem.OW)
        if self.winograd:
            return Way(problem.W, 0, POINTS, POINTS, self.width)
        return Way(problem.W, problem.pad, problem.S, problem.stride, problem.OW)

    @property
    def phases(self) -> int:
        """Planes per 8 channels."""
        return self.down.phases * self.along.phases

    @property
    def pitch(self) -> int:
        """Positions per row."""
        return self.along.positions if self.planes else self.width

    @property
    def slot(self) -> int:
        """Positions per image."""
        return (self.down.positions if self.planes else self.problem.H) * self.pitch

    @property
    def reach(self) -> int:
        """Positions from an output's first input to its last, in planes."""
        return self.down.reach * self.pitch + self.along.reach

    def plane(self, images: int) -> int:
        """Return the positions of a plane of `images` images that blocks read; 0 without planes."""
        return VEC * blocks_for(images * self.slot + _BLOCK + self.reach, VEC) if self.planes else 0

    @property
    def image_bytes(self) -> int:
        """Bytes per image."""
        return self._position_bytes * self.slot

    @property
    def written_bytes(self) -> int:
        """Bytes per image that are not permanent zeros."""
        vecs = blocks_for(self.held, VEC) * self.problem.H * self.width
        read = self.phases / (self.down.stride * self.along.stride) if self.planes else 1
        return int(2 * VEC * self.parts * vecs * read * (POINTS if self.winograd else 1))

    @property
    def _position_bytes(self) -> int:
        return 2 * self.parts * self.channels * (self.phases if self.planes else 1)

    def bytes(self, images: int) -> int:
        """Return the bytes of `images` images."""
        return self._position_bytes * (self.plane(images) or images * self.slot)

    @property
    def k_vecs(self) -> int:
        """16-byte vectors over which one output is summed."""
        return self.problem.R * self.along.elements * self.channels // VEC

    @property
    def chunks(self) -> int:
        """Rows of ROW 16-byte vectors that contain an output's K."""
        return blocks_for(self.k_vecs, ROW // self.parts)

    def defines(self) -> dict[str, int | str]:
        """Return the problem and its layout as `-D` definitions."""
        problem = self.problem
        return conv_defines(replace(problem, bias=False, relu=False, dtype="fp32")) | {
            "DTYPE": problem.dtype.upper(),
            "BIAS": int(problem.bias),
            "RELU": int(problem.relu),
            "PARTS": self.parts,
            "FOLD": int(self.folded),
            "CP": self.channels,
            "WP": self.width,
            "PLANES": int(self.planes),
            "POINTS": POINTS if self.winograd else 1,
            "PITCH": self.pitch,
            "SLOT": self.slot,
        }


@dataclass(frozen=True)
class Packed:
    """Filters in the order that blocks copy them, and the exponents of the scales (int32).

    The shape is [chunk][filter][vec][8] fp16 with swizzled vectors; for planes it is [filters /
    FILTERS][phase][chunk][element][vec][FILTERS][8]. High parts of a chunk precede the low ones.
    """

    filters: Array
    in_scales: Array
    out_scales: Array
    worst: int  # largest out_scale of a filter that is not all zeros


def _exponents(sizes: Array) -> Array:
    """Return the least e with size < 2**e; _NONE for zeros."""
    return np.where(sizes > 0, np.frexp(sizes)[1], _NONE).astype(np.int32)


def _vecs(w: Array, layout: Layout, padded: int) -> Array:
    """Return (R, S, C, M) as (chunks, vectors per chunk, 8, padded), zero-padded."""
    rows, columns, channels, maps = w.shape
    if layout.folded:
        w = w.reshape(rows, 1, columns * channels, maps)
    spare = (0, layout.channels - w.shape[2]), (0, padded - maps)
    vecs = np.pad(w, ((0, 0), (0, 0), *spare)).reshape(layout.k_vecs, VEC, padded)
    per_chunk = ROW // layout.parts
    missing = layout.chunks * per_chunk - layout.k_vecs
    return np.pad(vecs, ((0, missing), (0, 0), (0, 0))).reshape(-1, per_chunk, VEC, padded)


def _split(scaled: Array, parts: int) -> Array:
    """Return float64 numbers as fp16 along a new first axis: high, and low if `parts` is 2."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        high = scaled.astype(np.float16)
        return np.stack([high, (scaled - high).astype(np.float16)][:parts])


def _in_rows(parts: Array) -> Array:
    """Return (part, chunk, vec, channel, filter) as (chunk, filter, swizzled vecs, channel)."""
    _, chunks, _, _, padded = parts.shape
    vecs = parts.transpose(1, 4, 0, 2, 3).reshape(chunks, padded, ROW, VEC)
    swizzle = np.arange(ROW) ^ np.arange(padded)[:, None] % ROW
    return np.take_along_axis(vecs, swizzle[None, :, :, None], axis=2)


def _by_elements(parts: Array, layout: Layout) -> Array:
    """Return parts as (filters / 64, phase x chunk x element, part x vec, 64 filters, channel)."""
    down, along, padded = layout.down, layout.along, parts.shape[-1]
    each = layout.chunks // (down.elements * along.elements)
    order = [
        (r * along.elements + s) * each + chunk
        for row in range(down.phases)
        for column in range(along.phases)
        for chunk in range(each)
        for r in range(row, down.elements, down.stride)
        for s in range(column, along.elements, along.stride)
    ]
    apart = (layout.parts, -1, ROW // layout.parts, VEC, padded // FILTERS, FILTERS)
    vecs = parts[:, order].reshape(apart).transpose(4, 1, 0, 2, 5, 3)
    return vecs.reshape(padded // FILTERS, len(order), ROW, FILTERS, VEC)


def _at_points(w: Array) -> Array:
    """Transform filters (R, 3, C, M) to transform points 0, 1, -1 and infinity: (R, 4, C, M)."""
    first, middle, last = (w[:, s] for s in range(3))
    with np.errstate(invalid="ignore"):
        one, other = (first + middle + last) / 2, (first - middle + last) / 2
    return np.stack([first, one, other, last], 1)


def pack(w: Array, layout: Layout, padded: int) -> Packed:
    """Pack float32 filters (R, S, C, M), zero-padded to `padded`; scales ignore NaN, infinity."""
    exact = _at_points(w.astype(np.float64)) if layout.winograd else w.astype(np.float64)
    sizes = np.where(np.isfinite(exact), np.abs(exact), 0)
    channels = _exponents(sizes.max((0, 1, 3)))
    used = channels > _NONE
    in_scales = np.where(used, channels - channels.max(), _NO_FILTER).astype(np.int32)
    level = np.ldexp(exact, np.where(used, -in_scales, 0)[:, None])
    exponents = _exponents(np.where(np.isfinite(level), np.abs(level), 0).max((0, 1, 2)))
    filled = exponents > _NONE
    shifts = np.where(filled, _FP16_EXPONENT - exponents, 0)
    parts = _split(_vecs(np.ldexp(level, shifts), layout, padded), layout.parts)
    ordered = _by_elements(parts, layout) if layout.planes else _in_rows(parts)
    out_scales = np.pad(-shifts, (0, padded - len(shifts))).astype(np.int32)
    worst = int(-shifts[filled].min()) if filled.any() else _NONE
    return Packed(np.ascontiguousarray(ordered), in_scales, out_scales, worst)
