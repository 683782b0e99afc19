"""What CPU convolutions share: images amid zeros, and what filters see of them as views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.problems import Conv


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
    import numpy as np

    above, left, _, _ = problem.around
    if not any(problem.around):
        return None
    zeros = np.zeros((batch, *problem.padded, problem.C), np.float32)
    return Padded(zeros, slice(above, above + problem.H), slice(left, left + problem.W))


def columns(x: Any, problem: Conv) -> Any:
    """Padded images (n, rows, columns, C) as (n, rows, OW, S, C), a view."""
    from numpy.lib.stride_tricks import as_strided

    image, row, column, channel = x.strides
    shape = (*x.shape[:2], problem.OW, problem.S, problem.C)
    steps = (problem.step[1] * column, problem.dilation[1] * column)
    return as_strided(x, shape, (image, row, *steps, channel), writeable=False)


def windows(x: Any, problem: Conv) -> Any:
    """Padded images (n, rows, columns, C) as (n, OH, OW, R, S, C), a view."""
    from numpy.lib.stride_tricks import as_strided

    seen = columns(x, problem)
    image, row, across, tap, channel = seen.strides
    shape = (len(x), problem.OH, problem.OW, problem.R, problem.S, problem.C)
    by, far = problem.step[0] * row, problem.dilation[0] * row
    return as_strided(seen, shape, (image, by, across, far, tap, channel), writeable=False)
