"""A convolution as other tools describe it, and as a line of benchdnn."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lenetgpu.errors import LenetError
from lenetgpu.files.models.layouts import by
from lenetgpu.problems import Conv, Pair, outputs, reach

_MOST_VALUES = 1 << 31


@dataclass(frozen=True)
class Described:
    """A convolution as other tools describe it, in numbers that may be none of one: see `require`.

    Pairs are of rows and columns. `pad` lies before the first row and column; what lies behind the
    last follows from `out`, the sizes of the output. A `dilation` of 1 is none. `bias`, `relu` and
    `dtype` are those of `Conv`.
    """

    images: int
    H: int
    W: int
    C: int
    M: int
    R: int
    S: int
    out: Pair
    stride: Pair = (1, 1)
    pad: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = False
    relu: bool = False
    dtype: str = "fp32"

    @property
    def span(self) -> Pair:
        """Rows and columns that a filter reaches over."""
        return reach((self.R, self.S), self.dilation)

    @property
    def conv(self) -> Conv:
        """The problem, of numbers that `require` lets by."""
        sides = zip((self.H, self.W), self.span, self.stride, self.pad, self.out, strict=True)
        behind = (
            max(0, (out - 1) * stride + span - size - pad) for size, span, stride, pad, out in sides
        )
        above, left, below, right = (*self.pad, *behind)
        return Conv(
            self.H, self.W, self.C, self.M, self.R, self.S, strides=self.stride,
            pads=(above, left, below, right), dilation=self.dilation, groups=self.groups,
            bias=self.bias, relu=self.relu, dtype=self.dtype,
        )  # fmt: skip

    def require(self, where: str) -> None:
        """LenetError, a sentence that begins with `where`, unless it is a convolution."""
        least = {
            "images": self.images, "C": self.C, "H": self.H, "W": self.W, "M": self.M,
            "K": min(self.R, self.S), "stride": min(self.stride), "dilation": min(self.dilation),
            "groups": self.groups,
        }  # fmt: skip
        for name, value in least.items():
            if value < 1:
                raise LenetError(f"{where}: expected {name} of at least 1, found {value}")
        if min(self.pad) < 0:
            raise LenetError(f"{where}: expected pad of at least 0, found {min(self.pad)}")
        for name, value in (("C", self.C), ("M", self.M)):
            if value % self.groups:
                raise LenetError(
                    f"{where}: expected groups that divide {name}, found {self.groups} of {value}"
                )
        sides = zip("HW", (self.H, self.W), self.span, self.stride, self.pad, strict=True)
        for (side, size, span, stride, pad), out in zip(sides, self.out, strict=True):
            if out < 1:
                both = self.H + 2 * self.pad[0], self.W + 2 * self.pad[1]
                raise LenetError(
                    f"{where}: expected filters within the padded map of {by(both)}, "
                    f"found {by(self.span)}"
                )
            fewest = outputs(size, span, stride, pad)
            if out < fewest:
                raise LenetError(f"{where}: expected O{side} of at least {fewest}, found {out}")


def require_countable(problem: Conv, images: int, where: str) -> None:
    """LenetError, a sentence that begins with `where`, where an offset would need 64 bits."""
    held = {
        "input": images * prod(problem.padded) * problem.C,
        "filters": prod(problem.weight_shape),
        "output": images * prod(problem.out_shape),
    }
    for name, values in held.items():
        if values >= _MOST_VALUES:
            raise LenetError(
                f"{where}: expected fewer than 2^31 values in the {name}, found {values:,}"
            )


def as_line(problem: Conv) -> str:
    """A convolution's sizes as benchdnn's line, which has a place for all; images are not said.

    Where columns are as rows, rows alone are said.
    """
    p = problem
    sizes = {"i": (p.H, p.W), "o": (p.OH, p.OW), "k": (p.R, p.S), "s": p.step}
    sizes |= {"d": (p.dilation[0] - 1, p.dilation[1] - 1), "p": p.around[:2]}
    left_out = {"s": (1, 1), "d": (0, 0)}
    said = {what: of for what, of in sizes.items() if left_out.get(what) != of}
    sides = "h" if all(rows == columns for rows, columns in said.values()) else "hw"
    groups = f"g{p.groups}" if p.groups > 1 else ""
    return "_".join((
        f"{groups}ic{p.C}oc{p.M}",
        *("".join(f"{what}{side}{of[at]}" for what, of in said.items())
          for at, side in enumerate(sides)),
    ))  # fmt: skip


@dataclass(frozen=True)
class Given:
    """A convolution of a line or a model; `asked` is None where its sizes are not known.

    `name` is what it is called there; `others` are what else we do not take of it, in words.
    """

    asked: Described | None
    name: str = ""
    others: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Why it is not taken, in words; empty where it is."""
        return ", ".join(self.others)
