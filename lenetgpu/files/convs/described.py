"""A convolution as other tools describe it, and as a line of benchdnn."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lenetgpu.errors import LenetError
from lenetgpu.files.models.layouts import by
from lenetgpu.problems import Conv, Pair, outputs, reach

_MOST_VALUES = 1 << 31


@dataclass(frozen=True)
class Given:
    """A convolution of a line or a model; `problem` is None where its sizes are not known.

    `name` is what it is called there; `others` are what else we do not take of it, in words.
    """

    problem: Conv | None
    images: int = 1
    name: str = ""
    others: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Why it is not taken, in words; empty where it is."""
        return ", ".join(self.others)


def convolution(
    where: str,
    sizes: tuple[int, int, int, int, int],
    taps: Pair,
    out: Pair | None = None,
    stride: Pair = (1, 1),
    pad: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Conv:
    """Return the convolution of sizes N, H, W, C, M and pairs for rows and columns.

    `pad` lies before the first row and column; what lies behind the last follows from `out`, and
    is as much where that is None. A `dilation` of 1 is none. LenetError, a sentence that begins
    with `where`, unless it is a convolution.
    """
    images, H, W, C, M = sizes
    least = {
        "images": images, "C": C, "H": H, "W": W, "M": M, "K": min(taps), "stride": min(stride),
        "dilation": min(dilation), "groups": groups,
    }  # fmt: skip
    for name, value in least.items():
        if value < 1:
            raise LenetError(f"{where}: expected {name} of at least 1, found {value}")
    if min(pad) < 0:
        raise LenetError(f"{where}: expected pad of at least 0, found {min(pad)}")
    for name, value in (("C", C), ("M", M)):
        if value % groups:
            words = f"expected groups that divide {name}, found {groups} of {value}"
            raise LenetError(f"{where}: {words}")
    span = reach(taps, dilation)
    behind = []
    for at, (side, size) in enumerate((("H", H), ("W", W))):
        reached, step, before = span[at], stride[at], pad[at]
        count = outputs(size, reached, step, 2 * before) if out is None else out[at]
        if count < 1:
            words = f"filters within the padded map of {by((H + 2 * pad[0], W + 2 * pad[1]))}"
            raise LenetError(f"{where}: expected {words}, found {by(span)}")
        fewest = outputs(size, reached, step, before)
        if count < fewest:
            raise LenetError(f"{where}: expected O{side} of at least {fewest}, found {count}")
        behind.append(max(0, (count - 1) * step + reached - size - before))
    pads = (*pad, behind[0], behind[1])
    return Conv(H, W, C, M, *taps, strides=stride, pads=pads, dilation=dilation, groups=groups)


def require_countable(problem: Conv, images: int, where: str) -> None:
    """LenetError, a sentence that begins with `where`, where an offset would need 64 bits."""
    held = {
        "input": images * prod(problem.padded) * problem.C,
        "filters": prod(problem.weight_shape),
        "output": images * prod(problem.out_shape),
    }
    for name, values in held.items():
        if values >= _MOST_VALUES:
            words = f"expected fewer than 2^31 values in the {name}, found {values:,}"
            raise LenetError(f"{where}: {words}")


def as_line(problem: Conv) -> str:
    """A convolution's sizes as benchdnn's line, which has a place for all; images are not said.

    Where columns are as rows, rows alone are said.
    """
    p = problem
    sizes = {"i": (p.H, p.W), "o": (p.OH, p.OW), "k": (p.R, p.S)}
    if p.step != (1, 1):
        sizes["s"] = p.step
    if p.dilation != (1, 1):
        sizes["d"] = (p.dilation[0] - 1, p.dilation[1] - 1)
    sizes["p"] = p.around[:2]
    sides = "h" if all(rows == columns for rows, columns in sizes.values()) else "hw"
    groups = f"g{p.groups}" if p.groups > 1 else ""
    entries = ("".join(f"{w}{side}{of[at]}" for w, of in sizes.items())
               for at, side in enumerate(sides))  # fmt: skip
    return "_".join((f"{groups}ic{p.C}oc{p.M}", *entries))
