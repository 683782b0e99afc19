"""CPU convolution by register tiles: 8 pixels x 32 channels held in vector registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.problems import Conv
from lenetgpu.stages.emitted import addresses, native
from lenetgpu.stages.registry import cpu, variant


@dataclass
class _Packed:
    lines: Any
    padded: Any


def _prepare(w: Any, problem: Conv, batch: int) -> _Packed:
    import numpy as np

    from lenetgpu.cpu.tile import ROWS_TIMES_MATRIX, Lines, pack_weights

    padded = None
    if problem.pad:
        h, wide = problem.H + 2 * problem.pad, problem.W + 2 * problem.pad
        padded = np.zeros((batch, h, wide, problem.C), np.float32)
    packed = pack_weights(w.reshape(problem.R, problem.S * problem.C, problem.M))
    return _Packed(Lines(packed, native(ROWS_TIMES_MATRIX)), padded)


@variant(
    kind="conv",
    family="tiled",
    reads="NHWC",
    writes="NHWC",
    needs=cpu(),
    prepare=_prepare,
    paper="report 2.1.3 on a CPU: the tile sits in registers",
)
def blocked(x: Any, w: _Packed, y: Any, problem: Conv) -> None:
    """Register tiles of pixels x channels, vector fused multiply-adds, every core."""
    import numpy as np

    n, pad, stride = len(x), problem.pad, problem.stride
    if pad:
        w.padded[:n, pad:-pad, pad:-pad] = x
        x = w.padded[:n]
    _, height, width, channels = x.shape
    line = width * channels
    geometry = (
        problem.OH, height * line, stride * line, stride * channels, line, problem.OW, problem.M,
    )  # fmt: skip
    x = np.ascontiguousarray(x, np.float32)
    ends = addresses(x, y)
    parallel_ranges(n * problem.OH, lambda lo, hi: w.lines.run(ends, geometry, lo, hi))
