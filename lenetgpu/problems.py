"""The problems that stages solve: shapes, operations and bytes.

Shapes are per image and logical, (H, W, C); how an activation lies in memory is its layout
(`lenetgpu.layouts`), named by the `reads` and `writes` fields.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

FLOAT_BYTES = 4
ITEM_BYTES = {"fp32": FLOAT_BYTES, "fp16": 2, "bf16": 2}
_PLAIN = {"strides": None, "pads": None, "dilation": (1, 1), "groups": 1}
_PLAIN |= {"bias": False, "relu": False}
Pair = tuple[int, int]  # of rows, of columns
Sides = tuple[int, int, int, int]  # above, left, below, right


def outputs(size: int, span: int, stride: int, padding: int) -> int:
    """Return the positions of a filter of extent `span`; `padding` is the sum of both sides."""
    return (size + padding - span) // stride + 1 if size + padding >= span else 0


def reach(sides: Pair, dilation: Pair) -> Pair:
    """Return the rows and columns that a dilated filter covers."""
    (rows, columns), (far, wide) = sides, dilation
    return (rows - 1) * far + 1, (columns - 1) * wide + 1


def _trailing(size: int, span: int, stride: int, before: int, count: int) -> int:
    """Return the trailing padding for `count` outputs: the leading one if it fits, or the least."""
    if count == outputs(size, span, stride, 2 * before):
        return before
    return max(0, (count - 1) * stride + span - size - before)


def _has_one_output(size: int, span: int, stride: int, before: int) -> bool:
    """Return True if a side with minimal padding has exactly one output at `stride`."""
    return outputs(size, span, stride, before + max(0, span - size - before)) == 1


class _Problem:
    @property
    def in_shape(self: Any) -> tuple[int, ...]:
        """Logical input shape of one image."""
        return (self.K,)

    def bytes(self: Any, n: int) -> int:
        """Fewest bytes moved for `n` images: input and weights read once, output written once."""
        activations: int = n * (prod(self.in_shape) + prod(self.out_shape))
        return FLOAT_BYTES * (activations + prod(getattr(self, "weight_shape", (0,))))


@dataclass(frozen=True)
class OfMap(_Problem):
    """Base of problems that read an (H, W, C) map and, by default, write one of the same shape."""

    H: int
    W: int
    C: int

    @property
    def in_shape(self) -> tuple[int, int, int]:
        """Logical input shape of one image."""
        return (self.H, self.W, self.C)

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Logical output shape of one image."""
        return (self.H, self.W, self.C)


@dataclass(frozen=True)
class Conv(OfMap):
    """Cross-correlation of (H, W, C) with M filters of (R, S, C / groups), with zero padding.

    `stride` and `pad` apply to rows, columns and all sides. If they differ, `strides` and `pads`
    hold them (otherwise None), and `stride` and `pad` are the first of them. Padding is multiplied
    like any input: infinity times zero is NaN. Groups take consecutive channels to consecutive
    maps. `bias` adds one value per map; `relu` stores negative values as zero and keeps NaN. All
    arrays have type `dtype` (a key of ITEM_BYTES).

    Equivalent convolutions compare equal: dilation is dropped for 1x1 filters, a dimension with a
    single output takes the other's stride where possible, and trailing padding that no output reads
    is removed. `requires` lists what then differs from a plain convolution.
    """

    M: int
    R: int
    S: int
    stride: int = 1
    pad: int = 0
    reads: str = "NHWC"
    writes: str = "NHWC"
    strides: Pair | None = None
    pads: Sides | None = None
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = False
    relu: bool = False
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        rows, columns = self.dilation
        self._settle(dilation=(rows if self.R > 1 else 1, columns if self.S > 1 else 1))
        if self.strides is not None or self.pads is not None:
            self._settle_sides()

    def _settle_sides(self) -> None:
        (above, left, _, _), (high, wide), (down, across) = self.around, self.span, self.step
        if self.OH == self.OW == 1:
            down = across = max(down, across)
        elif self.OH == 1 and _has_one_output(self.H, high, across, above):
            down = across
        elif self.OW == 1 and _has_one_output(self.W, wide, down, left):
            across = down
        below = _trailing(self.H, high, down, above, self.OH)
        right = _trailing(self.W, wide, across, left, self.OW)
        sides = (above, left, below, right)
        self._settle(
            stride=down, strides=None if down == across else (down, across),
            pad=above, pads=None if len({*sides}) == 1 else sides,
        )  # fmt: skip

    def _settle(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def requires(self) -> frozenset[str]:
        """Options that a variant must support: non-default fields, and a dtype other than fp32."""
        options = {name for name, plain in _PLAIN.items() if getattr(self, name) != plain}
        return frozenset(options | {self.dtype} - {"fp32"})

    @property
    def each(self) -> Pair:
        """Channels and maps of a group."""
        return self.C // self.groups, self.M // self.groups

    @property
    def step(self) -> Pair:
        """Rows and columns from an output to the next."""
        return self.strides or (self.stride, self.stride)

    @property
    def around(self) -> Sides:
        """Padding above, left, below and right."""
        return self.pads or (self.pad, self.pad, self.pad, self.pad)

    @property
    def span(self) -> Pair:
        """Rows and columns that a filter reaches over."""
        return reach((self.R, self.S), self.dilation)

    @property
    def padded(self) -> Pair:
        """Rows and columns of the padded map."""
        above, left, below, right = self.around
        return self.H + above + below, self.W + left + right

    @cached_property
    def OH(self) -> int:
        """Output rows."""
        return outputs(self.padded[0], self.span[0], self.step[0], 0)

    @cached_property
    def OW(self) -> int:
        """Output columns."""
        return outputs(self.padded[1], self.span[1], self.step[1], 0)

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Logical output shape of one image."""
        return (self.OH, self.OW, self.M)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Filter shape (R, S, C / groups, M)."""
        return (self.R, self.S, self.each[0], self.M)

    @property
    def gemm_k(self) -> int:
        """K of the implicit GEMM, the products summed per output: R*S*C of a group."""
        return self.R * self.S * self.each[0]

    def flop(self, n: int) -> int:
        """Floating-point operations for `n` images, two per multiply-add; no bias or ReLU."""
        return 2 * n * self.OH * self.OW * self.M * self.gemm_k

    def bytes(self, n: int) -> int:
        """Fewest bytes moved for `n` images: input and filters read once, output written once."""
        bias = ITEM_BYTES[self.dtype] * self.bias * self.M
        return super().bytes(n) // FLOAT_BYTES * ITEM_BYTES[self.dtype] + bias


@dataclass(frozen=True)
class Pool(OfMap):
    """ReLU, then the mean of each 2x2 window, of an (H, W, C) map with even H and W."""

    reads: str = "NHWC"
    writes: str = "NHWC"

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Logical output shape of one image."""
        return (self.H // 2, self.W // 2, self.C)

    def flop(self, n: int) -> int:
        """Floating-point operations: four ReLUs, three adds and a multiply per output."""
        return 2 * n * self.H * self.W * self.C


@dataclass(frozen=True)
class Fc(_Problem):
    """(K) times a (K, M) matrix, then ReLU where `relu` is set."""

    K: int
    M: int
    relu: bool
    reads: str = "NC"
    writes: str = "NC"

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Logical output shape of one image."""
        return (self.M,)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Matrix shape (K, M)."""
        return (self.K, self.M)

    def flop(self, n: int) -> int:
        """Floating-point operations for `n` images, two per multiply-add."""
        return 2 * n * self.K * self.M


@dataclass(frozen=True)
class Argmax(_Problem):
    """Index of the largest of K scores, the first of equals, as int32."""

    K: int
    reads: str = "NC"
    writes: str = "N"
    out_shape: ClassVar[tuple[int, ...]] = ()  # a scalar label

    def flop(self, n: int) -> int:
        """Comparisons for `n` images."""
        return n * (self.K - 1)


@dataclass(frozen=True)
class Scale(OfMap):
    """Conversion of input images (uint8 pixels or float32) to float32 in 0..1."""

    dtype: str
    reads: str = "NHWC"
    writes: str = "NHWC"

    def flop(self, n: int) -> int:
        """One multiply per pixel."""
        return n * self.H * self.W * self.C

    def bytes(self, n: int) -> int:
        """Fewest bytes moved for `n` images."""
        width = 1 if self.dtype == "uint8" else FLOAT_BYTES
        return n * self.H * self.W * self.C * (width + FLOAT_BYTES)


@dataclass(frozen=True)
class Relayout(OfMap):
    """An (H, W, C) activation copied from one memory layout to another."""

    reads: str
    writes: str

    def flop(self, n: int) -> int:
        """A copy computes nothing."""
        return 0


@dataclass(frozen=True)
class ConvPool(_Problem):
    """A convolution followed by ReLU and 2x2 mean: a span of two stages."""

    conv: Conv
    reads: str = "NHWC"
    writes: str = "NHWC"

    @property
    def requires(self) -> frozenset[str]:
        """Features of the convolution that a variant must support."""
        return self.conv.requires

    @property
    def pool(self) -> Pool:
        """The problem of the second stage."""
        return Pool(*self.conv.out_shape)

    @property
    def in_shape(self) -> tuple[int, int, int]:
        """Logical input shape of one image."""
        return self.conv.in_shape

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Logical output shape of one image."""
        return self.pool.out_shape

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Filter shape (R, S, C / groups, M)."""
        return self.conv.weight_shape

    def flop(self, n: int) -> int:
        """Floating-point operations of both stages."""
        return self.conv.flop(n) + self.pool.flop(n)
