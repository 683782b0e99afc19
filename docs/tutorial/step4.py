"""Step 4, registers: what is loaded once serves several sums before it is let go."""

from pathlib import Path
from typing import Any

from lenetgpu.cpu.jit import lazy_njit
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.registry import cpu, cuda, variant

CHANNELS = 8  # whose filters lie in shared memory together


def in_fours(problem: Conv) -> str | None:
    """Why the CPU's loops do not take `problem`."""
    if problem.stride != 1 or problem.pad != 0:
        return "supports stride 1 without padding"
    if problem.OW % 4 or problem.C % 4:
        return "supports columns and channels that are multiples of 4"
    return None


def image_in_a_block(problem: Conv) -> str | None:
    """Why the kernel does not take `problem`."""
    if problem.stride != 1 or problem.pad != 0:
        return "supports stride 1 without padding"
    if problem.C % CHANNELS:
        return f"supports channels that are a multiple of {CHANNELS}"
    if problem.OH * problem.M > 1024 or problem.W > 32:
        return "supports at most 1,024 maps x rows, of at most 32 columns"
    floats = problem.H * problem.W * problem.C + problem.S * CHANNELS * problem.M
    if 4 * floats > 48 * 1024:
        return "supports images that fit into shared memory beside a part of the filters"
    return None


# Four columns times four channels: 16 products for 4 filter values and 4 sums.
@lazy_njit
def _sums(x: Any, w: Any, y: Any) -> None:
    images, rows, columns, maps = y.shape
    for n in range(images):
        y[n] = 0
        for r in range(w.shape[0]):
            for s in range(w.shape[1]):
                for row in range(rows):
                    for at in range(0, columns, 4):
                        for c in range(0, w.shape[2], 4):
                            here = x[n, row + r, at + s : at + s + 4, c : c + 4]
                            a0, a1, a2, a3 = here[0, 0], here[0, 1], here[0, 2], here[0, 3]
                            b0, b1, b2, b3 = here[1, 0], here[1, 1], here[1, 2], here[1, 3]
                            d0, d1, d2, d3 = here[2, 0], here[2, 1], here[2, 2], here[2, 3]
                            e0, e1, e2, e3 = here[3, 0], here[3, 1], here[3, 2], here[3, 3]
                            for m in range(maps):
                                w0, w1 = w[r, s, c, m], w[r, s, c + 1, m]
                                w2, w3 = w[r, s, c + 2, m], w[r, s, c + 3, m]
                                y[n, row, at, m] += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
                                y[n, row, at + 1, m] += b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3
                                y[n, row, at + 2, m] += d0 * w0 + d1 * w1 + d2 * w2 + d3 * w3
                                y[n, row, at + 3, m] += e0 * w0 + e1 * w1 + e2 * w2 + e3 * w3


@variant(kind="conv", family="step4", reads="NHWC", writes="NHWC", needs=cpu(), supports=in_fours)
def four_by_four(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """Four columns times four channels at once: each filter value loaded serves four sums."""
    _sums(x, w, y)


def _kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    shape = (
        ("H", problem.H),
        ("W", problem.W),
        ("CH", problem.C),
        ("M", problem.M),
        ("R", problem.R),
        ("S", problem.S),
        ("CHANNELS", CHANNELS),
    )
    return (Kernel(Path(__file__).with_suffix(".cu"), "row_a_thread", shape),)


@variant(
    kind="conv",
    family="step4",
    reads="NHWC",
    writes="NHWC",
    needs=cuda(),
    supports=image_in_a_block,
    kernels=_kernels,
)
def row_a_thread(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """A block takes an image, a thread a row of a map, whose sums it holds in registers."""
    (kernel,) = _kernels(problem, len(x))
    launch(kernel, (len(x),), (problem.M, problem.OH), (x, w, y))
