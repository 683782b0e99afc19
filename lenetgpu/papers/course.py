"""The course report's Tables 1 to 13 and Figures 4 to 6: its figures, and what to measure for each.

Times are the report's, in milliseconds, for IMAGES images on its 2016 GPU (serial: its CPU).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.layouts import physical_shape
from lenetgpu.network import STAGES
from lenetgpu.stages import Variant

IMAGES = 10_000
"""How many images every time of the report is of."""
RELU, MEAN, SERIAL_RELU, SERIAL_MEAN, TOTAL = (
    "relu",
    "mean",
    "serial relu",
    "serial mean",
    "plan course",
)
APART, MERGED = "mean, then linear", "mean and linear in one"
HOST, RESIDENT = "plan course, by the host", "plan course, resident"
STREAMS = ((1, 1), (1, 4), (2, 2), (2, 4), (4, 4), (8, 8))
"""How many streams take how many chunks of all images."""


def streamed(streams: int, chunks: int) -> str:
    """What plan course on so many streams with so many chunks is called."""
    return f"{TOTAL}, {streams} stream{'s' * (streams > 1)}, {chunks} chunk{'s' * (chunks > 1)}"


@dataclass(frozen=True)
class Figure:
    """One time of the report: where it stands, and the stage and variant that it is of.

    `variant` is a variant's full name with the report's own blocks and threads, or one of RELU,
    MEAN, SERIAL_RELU, SERIAL_MEAN, TOTAL. `at_least` marks a figure that the report gives as a
    lower bound.
    """

    table: str
    label: str
    stage: str
    variant: str
    milliseconds: float
    at_least: bool = False


def _both(table: str, label: str, variant: str, first: float, second: float) -> list[Figure]:
    return [
        Figure(table, label, "conv1", variant, first),
        Figure(table, label, "conv2", variant, second),
    ]


FIGURES: tuple[Figure, ...] = (
    *_both("1", "basic kernel", "direct.basic", 2800, 17200),
    *_both("2", "fewer threads", "direct.tight", 2000, 5400),
    *_both("3", "shared and constant memory", "direct.shared_constant", 450, 1700),
    Figure("4", "new design of block", "conv1", "direct.whole_warps", 150),
    Figure("4", "new design of block", "conv2", "direct.quadrants", 670),
    Figure("fig 4", "12x12 threads, profiled", "conv2", "direct.shared_constant", 6855),
    Figure("fig 5", "16x12 threads, profiled", "conv2", "direct.two_maps", 3905),
    *_both("5", "unrolled, tiles", "unrolled.image_tiled", 51.9, 260.2),
    Figure("6", "unrolled, layout", "conv1", "unrolled.constant_layout", 34.9),
    Figure("6", "unrolled, layout", "conv2", "unrolled.image_layout", 188.2),
    Figure("7", "normal optimization", "conv1", "unrolled.image_naive", 387.468),
    Figure("7", "tile implementation", "conv1", "unrolled.image_tiled", 305.16),
    Figure("7", "constant memory", "conv1", "unrolled.image_constant", 51.9436),
    Figure("7", "layout transformation", "conv1", "unrolled.constant_layout", 34.8897),
    Figure("8", "best forward path", "conv1", "direct.whole_warps", 150),
    Figure("8", "best forward path", "conv2", "direct.quadrants", 670),
    Figure("8", "best unrolled", "conv1", "unrolled.constant_layout", 34),
    Figure("8", "best unrolled", "conv2", "unrolled.image_layout", 180),
    Figure("9", "relu4, serial", "pool1", SERIAL_RELU, 3013.68),
    Figure("9", "relu4, serial", "pool2", SERIAL_RELU, 665.508),
    Figure("9", "relu4, parallel", "pool1", RELU, 12.4404),
    Figure("9", "relu4, parallel", "pool2", RELU, 2.47833),
    Figure("11", "average pool, serial", "pool1", SERIAL_MEAN, 10690.9),
    Figure("11", "average pool, serial", "pool2", SERIAL_MEAN, 2501.65),
    Figure("11", "normal optimization", "pool1", MEAN, 182),
    Figure("11", "normal optimization", "pool2", MEAN, 27.6193),
    Figure("11", "layout transformation", "pool1", "layout.quad_looped", 14.5701),
    Figure("11", "layout transformation", "pool2", "layout.quad_looped", 10.0552),
    Figure("12", "argmax, serial", "argmax", "serial.loops", 3.15529),
    Figure("12", "argmax, a thread an image", "argmax", "thread.wide_blocks", 0.326171),
    Figure("13", "convolution, serial", "conv1", "serial.loops", 10000, at_least=True),
    Figure("13", "convolution, serial", "conv2", "serial.loops", 10000, at_least=True),
    Figure("13", "relu4", "pool1", RELU, 12.4404),
    Figure("13", "relu4", "pool2", RELU, 2.47833),
    Figure("13", "average pool", "pool1", "layout.quad_looped", 14.5701),
    Figure("13", "average pool", "pool2", "layout.quad_looped", 10.0552),
    Figure("13", "argmax", "argmax", "thread.wide_blocks", 0.326171),
    Figure("13", "convolution", "conv1", "unrolled.constant_layout", 34.8897),
    Figure("13", "convolution", "conv2", "unrolled.image_layout", 188.695),
    Figure("13", "all", "all", TOTAL, 270),
    Figure("figs 4-6", "fully_forward_tile", "fc1", "tiled.relu_apart", 148.77),
    Figure("figs 4-6", "fully_forward_tile", "fc2", "tiled.relu_apart", 11.855),
)

# The order in which the report climbed, with its times; Table 7's for conv1's unrolled ladder. No
# time: the report says which is better and not by how much.
LADDERS: tuple[tuple[str, tuple[tuple[str, float | None], ...]], ...] = (
    (
        "conv1",
        (
            ("direct.basic", 2800),
            ("direct.tight", 2000),
            ("direct.shared_constant", 450),
            ("direct.whole_warps", 150),
        ),
    ),
    ("conv1", (("unrolled.image_untransposed", None), ("unrolled.image_tiled", None))),
    (
        "conv1",
        (
            ("unrolled.image_naive", 387.468),
            ("unrolled.image_tiled", 305.16),
            ("unrolled.image_constant", 51.9436),
            ("unrolled.constant_layout", 34.8897),
        ),
    ),
    ("conv1", (("direct.whole_warps", 150), ("unrolled.constant_layout", 34.8897))),
    (
        "conv2",
        (
            ("direct.basic", 17200),
            ("direct.tight", 5400),
            ("direct.shared_constant", 1700),
            ("direct.quadrants", 670),
            ("unrolled.image_tiled", 260.2),
            ("unrolled.image_layout", 188.2),
        ),
    ),
    ("conv2", (("direct.shared_constant", 6855), ("direct.two_maps", 3905))),
    ("conv2", (("unrolled.image_untransposed", None), ("unrolled.image_tiled", None))),
    ("pool1", ((MEAN, 182), ("layout.quad_looped", 14.5701))),
    ("pool2", ((MEAN, 27.6193), ("layout.quad_looped", 10.0552))),
    ("pool1+conv2", ((APART, None), (MERGED, None))),
    ("pool2+fc1", ((APART, None), (MERGED, None))),
    ("all", ((HOST, None), (RESIDENT, None))),
    ("all", ((streamed(1, 1), None), (streamed(2, 2), None))),
)

# The report's Table 10: activation shapes (batch k left out) before and after its transformation.
LAYOUTS: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("conv1", "in", (28, 28, 1), (28, 28, 1)),
    ("conv1", "out", (24, 24, 32), (32, 48, 12)),
    ("pool1", "in", (24, 24, 32), (32, 48, 12)),
    ("pool1", "out", (12, 12, 32), (32, 12, 12)),
    ("conv2", "in", (12, 12, 32), (32, 12, 12)),
    ("conv2", "out", (8, 8, 64), (64, 16, 4)),
    ("pool2", "in", (8, 8, 64), (64, 16, 4)),
    ("pool2", "out", (4, 4, 64), (4, 4, 64)),
)

# What the report describes without a time, or with its threads in another step's place.
UNTIMED: tuple[tuple[str, str, str, str], ...] = (
    ("2.2.2", "W' not transposed", "conv1", "unrolled.image_untransposed"),
    ("2.2.2", "W' not transposed", "conv2", "unrolled.image_untransposed"),
    ("3.1.1", "relu4, then average pool", "pool1", "basic.in_place"),
    ("3.1.1", "relu4, then average pool", "pool2", "basic.in_place"),
    ("3.2.2", "including relu4", "pool1", "fused.maps_looped"),
    ("3.2.2", "including relu4", "pool2", "fused.maps_looped"),
)
# Sections 3.1 (which leaves it at the thought), 3.4 and 3.5, on all of a plan or two stages of it.
LINEAR: tuple[tuple[str, str, str, str], ...] = (
    ("3.1", "mean, then convolution", "pool1+conv2", APART),
    ("3.1", "the two in one", "pool1+conv2", MERGED),
    ("3.1", "mean, then fully connected", "pool2+fc1", APART),
    ("3.1", "the two in one", "pool2+fc1", MERGED),
)
MOVES: tuple[tuple[str, str, str, str], ...] = (
    ("3.4", "by the host between stages", "all", HOST),
    ("3.4", "left on the device", "all", RESIDENT),
    *(("3.5", "streams, images and labels in page-locked memory", "all", streamed(*shape))
      for shape in STREAMS),
)  # fmt: skip

# Ours of the same ideas: other blocks and threads than the report's.
AFTER: tuple[tuple[str, str, str, str], ...] = (
    ("2.1.4", "four maps a block", "conv1", "direct.four_maps"),
    ("2.1.4", "four maps a block", "conv2", "direct.four_maps"),
    ("2.2.1", "unrolled, a thread an output", "conv1", "unrolled.naive"),
    ("2.2.2", "unrolled, a block a tile", "conv1", "unrolled.tiled"),
    ("2.2.2", "unrolled, a block a tile", "conv2", "unrolled.tiled"),
    ("2.2.3", "constant memory, a block a tile", "conv1", "unrolled.constant"),
    ("2.2.3", "constant memory rolled in parts", "conv2", "unrolled.constant"),
    ("2.2.4", "layout, a block a tile", "conv1", "unrolled.layout"),
    ("2.2.4", "layout, a block a tile", "conv2", "unrolled.layout"),
    ("3.1.1", "relu4, average pool, along the output", "pool1", "basic.two_passes"),
    ("3.1.1", "relu4, average pool, along the output", "pool2", "basic.two_passes"),
    ("3.2.2", "including relu4, along the output", "pool1", "fused.relu_in_mean"),
    ("3.2.2", "including relu4, along the output", "pool2", "fused.relu_in_mean"),
    ("3.2.4", "layout, along the output", "pool1", "layout.quad"),
    ("3.2.4", "layout, along the output", "pool2", "layout.quad"),
    ("3.3.1", "argmax, 128 threads a block", "argmax", "thread.per_image"),
    ("figs 4-6", "fully_forward_tile with its ReLU", "fc1", "tiled.shared"),
    ("figs 4-6", "fully_forward_tile, one column of blocks", "fc2", "tiled.shared"),
)

# What the report tried and could not run, or left unbuilt; measured without a figure beside it.
BEYOND: tuple[tuple[str, str, str, str], ...] = (
    ("2.2.6", "cuBLAS", "conv1", "cublas.im2col"),
    ("2.2.6", "cuBLAS", "conv2", "cublas.im2col"),
    ("2.2.6", "cuBLAS", "fc1", "cublas.sgemm"),
    ("2.4", "FFT", "conv1", "fft.cufft"),
    ("2.4", "FFT", "conv2", "fft.cufft"),
    ("3.2.3", "average pool, tile", "pool1", "tiled.shared"),
    ("3.2.3", "average pool, tile", "pool2", "tiled.shared"),
    ("3.3.2", "argmax, list reduction", "argmax", "reduction.list"),
    ("3.3.2", "argmax, warp shuffle", "argmax", "reduction.shuffle"),
    ("3.4.1", "block-level fusion", "conv1+pool1", "block.unrolled"),
    ("3.4.1", "block-level fusion", "conv2+pool2", "block.unrolled"),
    ("3.6", "half precision", "conv1", "cublas.half"),
    ("3.6", "half precision", "conv2", "cublas.half"),
    ("3.6", "half precision", "fc1", "cublas.half"),
)

# The same stages by the CPU's own variants, measured where there is no GPU.
ON_CPU: tuple[tuple[str, str, str, str], ...] = (
    ("2.1.3", "register tiles", "conv1", "tiled.blocked"),
    ("2.1.3", "register tiles", "conv2", "tiled.blocked"),
    ("2.2", "unrolled, BLAS", "conv1", "unrolled.blas"),
    ("2.2", "unrolled, BLAS", "conv2", "unrolled.blas"),
    ("2.4", "FFT", "conv1", "fft.pocketfft"),
    ("2.4", "FFT", "conv2", "fft.pocketfft"),
    ("3.2.2", "relu4 inside the mean", "pool1", "fused.rows"),
    ("3.2.2", "relu4 inside the mean", "pool2", "fused.rows"),
    ("3.3", "argmax, NumPy", "argmax", "numpy.argmax"),
    ("figs 4-6", "register tiles", "fc1", "tiled.blocked"),
    ("2.2.6", "BLAS", "fc1", "blas.numpy"),
)

TABLE_10 = {
    "conv1": ("NCHW", "QUAD"),
    "pool1": ("QUAD", "NCHW"),
    "conv2": ("NCHW", "QUAD"),
    "pool2": ("QUAD", "NHWC"),
}
_OWN = {figure.variant for figure in FIGURES} | {name for *_, name in UNTIMED}


def layouts_of(stage: str, variant: Variant) -> tuple[str, str] | None:
    """(reads, writes) of a row; None: the variant's first ones.

    Table 10's after the transformation for what reads or writes QUAD; NHWC for the course's other
    kernels of maps, as before it.
    """
    if "QUAD" in (*variant.reads, *variant.writes):
        return TABLE_10[stage]
    own = variant.full_name in _OWN and variant.kind in ("conv", "pool")
    return ("NHWC", "NHWC") if own else None


def layout_rows() -> list[dict[str, Any]]:
    """Table 10: the report's shapes and the ones this package gives its layouts."""
    by_name = {stage.name: stage.problem for stage in STAGES}
    rows = []
    for stage, end, before, after in LAYOUTS:
        problem = by_name[stage]
        shape = problem.in_shape if end == "in" else problem.out_shape
        layout = TABLE_10[stage][0 if end == "in" else 1]
        rows.append(
            {
                "table": "10",
                "stage": stage,
                "end": end,
                "report_before": list(before),
                "report_after": list(after),
                "layout": layout,
                "before": list(shape),
                "after": list(physical_shape(layout, 1, shape)[1:]),
            }
        )
    return rows
