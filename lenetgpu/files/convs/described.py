"""Convolutions as other tools describe them, and as a benchdnn descriptor."""

from dataclasses import dataclass
from math import prod

from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.models.layouts import by
from lenetgpu.problems import Conv, Pair, outputs, reach

_MOST_VALUES = 1 << 31


@dataclass(frozen=True)
class Given:
    """A convolution, if its sizes are known, its name in the source, and unsupported properties."""

    problem: Conv | None
    images: int = 1
    name: str = ""
    others: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Unsupported properties in words; empty if the convolution is supported."""
        return ", ".join(self.others)


def convolution(
    where: str,
    sizes: tuple[int, int, int, int, int],
    sides: Pair,
    out: Pair | None = None,
    stride: Pair = (1, 1),
    pad: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Conv:
    """Return the convolution of `sizes` (images, H, W, C, M) and pairs for rows and columns.

    `pad` is the padding before the first row and column; that after the last follows from `out`,
    or is the same. Raises LenetError, beginning with `where`, for impossible values.
    """
    images, H, W, C, M = sizes
    least = {
        "images": images, "C": C, "H": H, "W": W, "M": M, "K": min(sides), "stride": min(stride),
        "dilation": min(dilation), "groups": groups,
    }  # fmt: skip
    for name, value in least.items():
        if value < 1:
            raise LenetError(f"{where}: expected {name} of at least 1, found {value}")
    if min(pad) < 0:
        raise LenetError(f"{where}: expected pad of at least 0, found {min(pad)}")
    for name, value in (("C", C), ("M", M)):
        if value % groups:
            raise unexpected(where, f"groups that divide {name}", f"{groups} of {value}")
    span = reach(sides, dilation)
    after = []
    for at, (side, size) in enumerate((("H", H), ("W", W))):
        reached, step, before = span[at], stride[at], pad[at]
        count = outputs(size, reached, step, 2 * before) if out is None else out[at]
        if count < 1:
            padded = by((H + 2 * pad[0], W + 2 * pad[1]))
            raise unexpected(where, f"filters within the padded map of {padded}", by(span))
        fewest = outputs(size, reached, step, before)
        if count < fewest:
            raise LenetError(f"{where}: expected O{side} of at least {fewest}, found {count}")
        after.append(max(0, (count - 1) * step + reached - size - before))
    pads = (*pad, after[0], after[1])
    return Conv(H, W, C, M, *sides, strides=stride, pads=pads, dilation=dilation, groups=groups)


def require_countable(problem: Conv, images: int, where: str) -> None:
    """Raise LenetError, beginning with `where`, if an offset would need 64 bits."""
    counts = {
        "input": images * prod(problem.padded) * problem.C,
        "filters": prod(problem.weight_shape),
        "output": images * prod(problem.out_shape),
    }
    for name, values in counts.items():
        if values >= _MOST_VALUES:
            raise unexpected(where, f"fewer than 2^31 values in the {name}", f"{values:,}")


def as_line(problem: Conv) -> str:
    """Return a benchdnn descriptor without the images; columns are written if unlike the rows."""
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
