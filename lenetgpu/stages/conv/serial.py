"""Serial convolution in scalar loops (the report's baseline; the book's Figure 16.4)."""

from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.windows import Epilogue, epilogue
from lenetgpu.stages.registry import conv_variant


@lazy_njit
def _loops(x, w, y, step, pad, far):  # type: ignore[no-untyped-def]
    channels, maps = w.shape[2], y.shape[3] // (x.shape[3] // w.shape[2])  # per group
    zero = y.dtype.type(0)
    for n in range(y.shape[0]):
        for m in range(y.shape[3]):
            first = m // maps * channels
            for oy in range(y.shape[1]):
                for ox in range(y.shape[2]):
                    total = zero
                    for c in range(channels):
                        for r in range(w.shape[0]):
                            iy = oy * step[0] + r * far[0] - pad[0]
                            inside = 0 <= iy < x.shape[1]
                            for s in range(w.shape[1]):
                                ix = ox * step[1] + s * far[1] - pad[1]
                                if inside and 0 <= ix < x.shape[2]:
                                    total += x[n, iy, ix, first + c] * w[r, s, c, m]
                                else:
                                    total += zero * w[r, s, c, m]  # NaN for an infinite filter
                    y[n, oy, ox, m] = total


@conv_variant(
    family="serial",
    options="strides pads dilation groups bias relu fp16 bf16",
    prepare=epilogue,
    paper="report 2.1, table 13: the serial code",
)
def loops(x: Any, w: Epilogue, y: Any, problem: Conv) -> None:
    """Seven nested scalar loops on one CPU thread."""
    sums = w.accumulator(y)
    _loops(w.read(x), w.filters, sums, problem.step, problem.around[:2], problem.dilation)
    w.write(sums, y)
