"""What CPU convolutions share: images amid zeros, what filters see of them as views, both ends."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.memory import require_free
from lenetgpu.layouts import narrowed, widened
from lenetgpu.problems import Conv


@dataclass(frozen=True)
class Ends:
    """What a convolution's sums in float32 have before and behind them: its dtype, bias, ReLU.

    `filters` are float32, `bias` (M,) or None; `images` and `sums` are room for some images' in
    float32, None where they are held so.
    """

    problem: Conv
    filters: Any
    bias: Any
    images: Any
    sums: Any

    def read(self, x: Any) -> Any:
        """Images x (n, H, W, C) in float32, until the next call."""
        if self.images is None:
            return x
        room = self.images[: len(x)]
        if self.problem.dtype == "bf16":
            bits = room.view("uint32")
            bits[...] = x
            bits <<= 16
        else:
            room[...] = x
        return room

    def room(self, y: Any) -> Any:
        """Where the sums of outputs y (n, OH, OW, M) are to be made; `write` has to follow."""
        return y if self.sums is None else self.sums[: len(y)]

    def write(self, sums: Any, y: Any) -> None:
        """Outputs y of the `sums` that lie in their room, which this changes; NaN stays."""
        if self.bias is not None:
            sums += self.bias
        if self.problem.relu:
            np.maximum(sums, 0, out=sums)
        if sums is not y:
            y[...] = narrowed(sums, self.problem.dtype)


def ends(w: Any, problem: Conv, batch: int) -> Ends:
    """Both ends for up to `batch` images; `w` are filters, with a bias (filters, bias)."""
    filters, bias = map(widened, w) if problem.bias else (widened(w), None)
    filters = np.asarray(filters, np.float32)
    bias = None if bias is None else np.asarray(bias, np.float32)
    if problem.dtype == "fp32":
        return Ends(problem, filters, bias, None, None)
    images, sums = (batch, *problem.in_shape), (batch, *problem.out_shape)
    require_free(4 * (prod(images) + prod(sums)))
    rooms = np.empty(images, np.float32), np.empty(sums, np.float32)
    return Ends(problem, filters, bias, *rooms)


@dataclass(frozen=True)
class Padded:
    """Zeros for some images, (batch, padded rows, padded columns, C), and where these lie in it."""

    zeros: Any
    rows: slice
    columns: slice

    def around(self, x: Any) -> Any:
        """Images x (n, H, W, C) amid the zeros, until the next call."""
        self.zeros[: len(x), self.rows, self.columns] = x
        return self.zeros[: len(x)]


def padding(problem: Conv, batch: int) -> Padded | None:
    """Room for `batch` images with their padding; None where there is none."""
    above, left, _, _ = problem.around
    if not any(problem.around):
        return None
    zeros = np.zeros((batch, *problem.padded, problem.C), np.float32)
    return Padded(zeros, slice(above, above + problem.H), slice(left, left + problem.W))


def columns(x: Any, problem: Conv) -> Any:
    """Padded images (n, rows, columns, C) as (n, rows, OW, S, C), a view."""
    from numpy.lib.stride_tricks import sliding_window_view

    seen = sliding_window_view(x, problem.span[1], axis=2)
    return seen[:, :, :: problem.step[1], :, :: problem.dilation[1]].swapaxes(3, 4)


def windows(x: Any, problem: Conv) -> Any:
    """Padded images (n, rows, columns, C) as (n, OH, OW, R, S, C), a view."""
    from numpy.lib.stride_tricks import sliding_window_view

    seen = sliding_window_view(x, problem.span, axis=(1, 2))
    (down, across), (far, wide) = problem.step, problem.dilation
    return seen[:, ::down, ::across, :, ::far, ::wide].transpose(0, 1, 2, 4, 5, 3)
