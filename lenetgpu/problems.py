"""The problems that stages solve: shapes, operations and bytes.

Shapes are per image and logical, (H, W, C); how an activation lies in memory is its layout
(`lenetgpu.layouts`), named by the `reads` and `writes` fields.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT_BYTES = 4


@dataclass(frozen=True)
class OfMap:
    """What reads an (H, W, C) map, and writes one of the same shape unless it says otherwise."""

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
    """Cross-correlation of (H, W, C) with M filters of (R, S, C), any stride and zero padding."""

    M: int
    R: int
    S: int
    stride: int = 1
    pad: int = 0
    reads: str = "NHWC"
    writes: str = "NHWC"

    @property
    def OH(self) -> int:
        """Output rows."""
        return (self.H + 2 * self.pad - self.R) // self.stride + 1

    @property
    def OW(self) -> int:
        """Output columns."""
        return (self.W + 2 * self.pad - self.S) // self.stride + 1

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """Logical output shape of one image."""
        return (self.OH, self.OW, self.M)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Filter shape (R, S, C, M)."""
        return (self.R, self.S, self.C, self.M)

    @property
    def depth(self) -> int:
        """Products summed per output: R*S*C."""
        return self.R * self.S * self.C

    def flop(self, n: int) -> int:
        """Floating-point operations for `n` images, two per multiply-add."""
        return 2 * n * self.OH * self.OW * self.M * self.depth

    def bytes(self, n: int) -> int:
        """Fewest bytes moved for `n` images: input and filters read once, output written once."""
        per_image = self.H * self.W * self.C + self.OH * self.OW * self.M
        return FLOAT_BYTES * (n * per_image + self.depth * self.M)


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

    def bytes(self, n: int) -> int:
        """Fewest bytes moved for `n` images."""
        return FLOAT_BYTES * n * self.H * self.W * self.C * 5 // 4


@dataclass(frozen=True)
class Fc:
    """(K) times a (K, M) matrix, then ReLU where `relu` is set."""

    K: int
    M: int
    relu: bool
    reads: str = "NC"
    writes: str = "NC"

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Logical input shape of one image."""
        return (self.K,)

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

    def bytes(self, n: int) -> int:
        """Fewest bytes moved for `n` images."""
        return FLOAT_BYTES * (n * (self.K + self.M) + self.K * self.M)


@dataclass(frozen=True)
class Argmax:
    """Index of the largest of K scores, the first of equals, as int32."""

    K: int
    reads: str = "NC"
    writes: str = "N"

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Logical input shape of one image."""
        return (self.K,)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Logical output shape of one image: a scalar label."""
        return ()

    def flop(self, n: int) -> int:
        """Comparisons for `n` images."""
        return n * (self.K - 1)

    def bytes(self, n: int) -> int:
        """Fewest bytes moved for `n` images."""
        return FLOAT_BYTES * n * (self.K + 1)


@dataclass(frozen=True)
class Scale(OfMap):
    """Images as they arrive (uint8 pixels or float32) to float32 in 0..1."""

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

    def bytes(self, n: int) -> int:
        """Fewest bytes moved for `n` images."""
        return 2 * FLOAT_BYTES * n * self.H * self.W * self.C


@dataclass(frozen=True)
class ConvPool:
    """A convolution with the ReLU and 2x2 mean behind it: the span of two stages."""

    conv: Conv
    reads: str = "NHWC"
    writes: str = "NHWC"

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
        """Filter shape (R, S, C, M)."""
        return self.conv.weight_shape

    def flop(self, n: int) -> int:
        """Floating-point operations of both stages."""
        return self.conv.flop(n) + self.pool.flop(n)

    def bytes(self, n: int) -> int:
        """Fewest bytes moved: the map between the stages is not among them."""
        height, width, channels = self.out_shape
        per_image = self.conv.H * self.conv.W * self.conv.C + height * width * channels
        return FLOAT_BYTES * (n * per_image + self.conv.depth * self.conv.M)
