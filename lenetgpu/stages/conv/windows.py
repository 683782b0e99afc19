"""Common code of CPU convolutions: padding, views of the inputs per filter element, epilogue."""

from dataclasses import dataclass
from math import prod
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.memory import require_free
from lenetgpu.layouts import narrowed, widened
from lenetgpu.problems import Conv


@dataclass(frozen=True)
class Epilogue:
    """Dtype conversions around a convolution's float32 sums, with bias (M,) and ReLU."""

    problem: Conv
    filters: Any
    bias: Any
    images: Any  # float32 workspace for some images; None if the data is float32
    sums: Any  # likewise

    def read(self, x: Any) -> Any:
        """Return images x (n, H, W, C) in float32, valid until the next call."""
        if self.images is None:
            return x
        wide = self.images[: len(x)]
        if self.problem.dtype == "bf16":
            bits = wide.view("uint32")
            bits[...] = x
            bits <<= 16
        else:
            wide[...] = x
        return wide

    def accumulator(self, y: Any) -> Any:
        """Return the array for the sums of outputs y (n, OH, OW, M), to pass to `write`."""
        return y if self.sums is None else self.sums[: len(y)]

    def write(self, sums: Any, y: Any) -> None:
        """Write `sums` to y after bias and ReLU; modifies `sums`, and NaN stays NaN."""
        if self.bias is not None:
            sums += self.bias
        if self.problem.relu:
            np.maximum(sums, 0, out=sums)
        if sums is not y:
            y[...] = narrowed(sums, self.problem.dtype)


def epilogue(w: Any, problem: Conv, batch: int) -> Epilogue:
    """Return the conversions for up to `batch` images; `w` are filters, or (filters, bias)."""
    filters, bias = map(widened, w) if problem.bias else (widened(w), None)
    filters = np.asarray(filters, np.float32)
    bias = None if bias is None else np.asarray(bias, np.float32)
    if problem.dtype == "fp32":
        return Epilogue(problem, filters, bias, None, None)
    images, sums = (batch, *problem.in_shape), (batch, *problem.out_shape)
    require_free(4 * (prod(images) + prod(sums)))
    workspaces = np.empty(images, np.float32), np.empty(sums, np.float32)
    return Epilogue(problem, filters, bias, *workspaces)


@dataclass(frozen=True)
class Padded:
    """Zeros for some images, (batch, padded rows, padded columns, C), and slices of the images."""

    zeros: Any
    rows: slice
    columns: slice

    def around(self, x: Any) -> Any:
        """Return images x (n, H, W, C) with padding, valid until the next call."""
        self.zeros[: len(x), self.rows, self.columns] = x
        return self.zeros[: len(x)]


def padding(problem: Conv, batch: int) -> Padded | None:
    """Return a workspace for `batch` images with their padding, or None without padding."""
    above, left, _, _ = problem.around
    if not any(problem.around):
        return None
    zeros = np.zeros((batch, *problem.padded, problem.C), np.float32)
    return Padded(zeros, slice(above, above + problem.H), slice(left, left + problem.W))


def columns(x: Any, problem: Conv) -> Any:
    """Return padded images (n, rows, columns, C) as a view (n, rows, OW, S, C)."""
    seen = np.lib.stride_tricks.sliding_window_view(x, problem.span[1], axis=2)
    return seen[:, :, :: problem.step[1], :, :: problem.dilation[1]].swapaxes(3, 4)


def windows(x: Any, problem: Conv) -> Any:
    """Return padded images (n, rows, columns, C) as a view (n, OH, OW, R, S, C)."""
    seen = np.lib.stride_tricks.sliding_window_view(x, problem.span, axis=(1, 2))
    (down, across), (far, wide) = problem.step, problem.dilation
    return seen[:, ::down, ::across, :, ::far, ::wide].transpose(0, 1, 2, 4, 5, 3)
