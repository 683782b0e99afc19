"""A convolution as other tools describe it, and what of it `Conv` has no place for yet."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lenetgpu.errors import LenetError
from lenetgpu.files.models.layouts import by
from lenetgpu.problems import Conv

_MOST_VALUES = 1 << 31
Pair = tuple[int, int]


@dataclass(frozen=True)
class Described:
    """A convolution as other tools describe it: what `Conv` holds, and what it has no place for.

    Pairs are of rows and columns. `pad` lies before the first row and column; what lies behind the
    last follows from `out`, the sizes of the output. A `dilation` of 1 is none.
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

    @classmethod
    def of(cls, problem: Conv, images: int) -> Described:
        """What `Conv` holds of `images`."""
        p, out = problem, (problem.OH, problem.OW)
        both = (p.stride, p.stride), (p.pad, p.pad)
        return cls(images, p.H, p.W, p.C, p.M, p.R, p.S, out, *both)

    @property
    def span(self) -> Pair:
        """Rows and columns that a filter reaches over."""
        rows, columns = self.dilation
        return (self.R - 1) * rows + 1, (self.S - 1) * columns + 1

    @property
    def behind(self) -> Pair:
        """Padding behind the last row and column, as before the first where it changes nothing."""
        sides = zip((self.H, self.W), self.span, self.stride, self.pad, self.out, strict=True)
        rows, columns = (
            pad if outputs(size, span, stride, 2 * pad) == out
            else max(0, (out - 1) * stride + span - size - pad)
            for size, span, stride, pad, out in sides
        )  # fmt: skip
        return rows, columns

    @property
    def conv(self) -> Conv | None:
        """The same as `Conv` has it, None where `not_taken` says why not."""
        if self.not_taken:
            return None
        return Conv(self.H, self.W, self.C, self.M, self.R, self.S, self.stride[0], self.pad[0])

    @property
    def not_taken(self) -> str:
        """What `Conv` has no place for, in words; empty where it holds all of it."""
        found = []
        if self.groups > 1:
            found.append(f"{self.groups} groups")
        reached = zip((self.R, self.S), self.dilation, strict=True)
        if any(taps > 1 and dilation > 1 for taps, dilation in reached):
            found.append(f"dilation {by(self.dilation)}")
        if self.stride[0] != self.stride[1]:
            found.append(f"stride {by(self.stride)}")
        if len({*self.pad, *self.behind}) > 1:
            sides = ",".join(map(str, (*self.pad, *self.behind)))
            found.append(f"padding {sides} above, left, below, right")
        return ", ".join(found)

    @property
    def text(self) -> str:
        """It as a line of benchdnn, which has a place for all of it."""
        (OH, OW), (sh, sw), (ph, pw), (dh, dw) = self.out, self.stride, self.pad, self.dilation
        groups = f"g{self.groups}" if self.groups > 1 else ""
        far = f"_dh{dh - 1}dw{dw - 1}" if self.dilation != (1, 1) else ""
        return (
            f"{groups}mb{self.images}_ic{self.C}ih{self.H}iw{self.W}_oc{self.M}oh{OH}ow{OW}"
            f"_kh{self.R}kw{self.S}_sh{sh}sw{sw}_ph{ph}pw{pw}{far}"
        )

    @property
    def short(self) -> str:
        """Its sizes as our own command writes them; what that cannot say, `not_taken` does."""
        pairs = ((self.R, self.S), self.stride, self.pad)
        taps, stride, pad = (by(pair[: len({*pair})]) for pair in pairs)
        return f"{self.C},{self.H},{self.W},{self.M},{taps},{stride},{pad}"

    @property
    def flop(self) -> int:
        """Floating-point operations, two per multiply-add."""
        OH, OW = self.out
        return 2 * self.images * OH * OW * self.M * self.R * self.S * self.C // self.groups

    @property
    def held(self) -> dict[str, int]:
        """Values in the padded input, the filters and the output."""
        padded = zip((self.H, self.W), self.pad, self.behind, strict=True)
        return {
            "input": self.images * prod(map(sum, padded)) * self.C,
            "filters": self.R * self.S * self.C * self.M // self.groups,
            "output": self.images * prod(self.out) * self.M,
        }

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

    def require_countable(self, where: str) -> None:
        """LenetError, a sentence that begins with `where`, where an offset would need 64 bits."""
        for name, values in self.held.items():
            if values >= _MOST_VALUES:
                raise LenetError(
                    f"{where}: expected fewer than 2^31 values in the {name}, found {values:,}"
                )


def outputs(size: int, span: int, stride: int, padding: int) -> int:
    """How often a filter that reaches over `span` fits; 0 where it never does.

    `padding` is that before and behind together.
    """
    return (size + padding - span) // stride + 1 if size + padding >= span else 0


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
        held = self.asked.not_taken if self.asked else ""
        return ", ".join(filter(None, (*self.others, held)))
