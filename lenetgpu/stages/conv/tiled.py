"""CPU convolution by register tiles: 8 pixels x 32 channels in vector registers."""

from dataclasses import dataclass
from math import prod
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.jit import addresses, native
from lenetgpu.cpu.memory import require_free
from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.windows import Padded, columns, padding
from lenetgpu.stages.registry import conv_variant


@dataclass
class _Packed:
    """Filters, and image workspaces: padded, and (batch, rows, OW, S, C) of dilated columns."""

    lines: Any
    padded: Padded | None
    columns: Any


def _prepare(w: Any, problem: Conv, batch: int) -> _Packed:
    from lenetgpu.cpu.tile import ROWS_TIMES_MATRIX, Lines, pack_weights

    dilated = None
    if problem.dilation[1] > 1:
        lines = (batch, problem.padded[0], problem.OW, problem.S, problem.C)
        require_free(4 * prod(lines))
        dilated = np.empty(lines, np.float32)
    packed = pack_weights(w.reshape(problem.R, problem.S * problem.C, problem.M))
    return _Packed(Lines(packed, native(ROWS_TIMES_MATRIX)), padding(problem, batch), dilated)


@conv_variant(
    family="tiled",
    options="strides pads dilation",
    prepare=_prepare,
    paper="report 2.1.3 on a CPU: the tile sits in registers",
)
def blocked(x: Any, w: _Packed, y: Any, problem: Conv) -> None:
    """Register tiles of pixels x channels, vector fused multiply-adds, on all cores."""
    n, (down, across) = len(x), problem.step
    x = x if w.padded is None else w.padded.around(x)
    height, pixel = x.shape[1], across * problem.C
    line = x.shape[2] * problem.C
    if w.columns is not None:
        np.copyto(w.columns[:n], columns(x, problem))
        x, pixel = w.columns[:n], problem.S * problem.C
        line = problem.OW * pixel
    geometry = (
        problem.OH, height * line, down * line, pixel, problem.dilation[0] * line, problem.OW,
        problem.M,
    )  # fmt: skip
    x = np.ascontiguousarray(x, np.float32)
    pointers = addresses(x, y)
    parallel_ranges(n * problem.OH, lambda lo, hi: w.lines.run(pointers, geometry, lo, hi))
