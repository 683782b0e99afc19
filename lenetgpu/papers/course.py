"""The course report's Tables 1 to 13 and Figures 4 to 6: its figures, and what to measure for each.

Times are the report's, in milliseconds, for IMAGES images on its 2016 GPU (serial: its CPU).
"""

from __future__ import annotations

from dataclasses import dataclass

IMAGES = 10_000
"""How many images every time of the report is of."""
RELU, SERIAL_RELU, SERIAL_MEAN, TOTAL = (
    "relu",
    "serial relu",
    "serial mean",
    "plan course",
)


@dataclass(frozen=True)
class Figure:
    """One time of the report: where it stands, and the stage and variant that it is of.

    `variant` is a variant's full name, or one of RELU, SERIAL_RELU, SERIAL_MEAN, TOTAL. `at_least`
    marks a figure that the report gives as a lower bound.
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
    *_both("4", "four maps a block", "direct.four_maps", 150, 670),
    *_both("5", "unrolled, tiles", "unrolled.tiled", 51.9, 260.2),
    *_both("6", "unrolled, layout", "unrolled.layout", 34.9, 188.2),
    Figure("7", "normal optimization", "conv1", "unrolled.naive", 387.468),
    Figure("7", "tile implementation", "conv1", "unrolled.tiled", 305.16),
    Figure("7", "constant memory", "conv1", "unrolled.constant", 51.9436),
    Figure("7", "layout transformation", "conv1", "unrolled.layout", 34.8897),
    *_both("8", "best forward path", "direct.four_maps", 150, 670),
    *_both("8", "best unrolled", "unrolled.layout", 34, 180),
    Figure("9", "relu4, serial", "pool1", SERIAL_RELU, 3013.68),
    Figure("9", "relu4, serial", "pool2", SERIAL_RELU, 665.508),
    Figure("9", "relu4, parallel", "pool1", RELU, 12.4404),
    Figure("9", "relu4, parallel", "pool2", RELU, 2.47833),
    Figure("11", "average pool, serial", "pool1", SERIAL_MEAN, 10690.9),
    Figure("11", "average pool, serial", "pool2", SERIAL_MEAN, 2501.65),
    Figure("11", "normal optimization", "pool1", "fused.relu_in_mean", 182),
    Figure("11", "normal optimization", "pool2", "fused.relu_in_mean", 27.6193),
    Figure("11", "layout transformation", "pool1", "layout.quad", 14.5701),
    Figure("11", "layout transformation", "pool2", "layout.quad", 10.0552),
    Figure("12", "argmax, serial", "argmax", "serial.loops", 3.15529),
    Figure("12", "argmax, a thread an image", "argmax", "thread.per_image", 0.326171),
    Figure("13", "convolution, serial", "conv1", "serial.loops", 10000, at_least=True),
    Figure("13", "convolution, serial", "conv2", "serial.loops", 10000, at_least=True),
    Figure("13", "relu4", "pool1", RELU, 12.4404),
    Figure("13", "relu4", "pool2", RELU, 2.47833),
    Figure("13", "average pool", "pool1", "layout.quad", 14.5701),
    Figure("13", "average pool", "pool2", "layout.quad", 10.0552),
    Figure("13", "argmax", "argmax", "thread.per_image", 0.326171),
    Figure("13", "convolution", "conv1", "unrolled.layout", 34.8897),
    Figure("13", "convolution", "conv2", "unrolled.layout", 188.695),
    Figure("13", "all", "all", TOTAL, 270),
    Figure("figs 4-6", "fully_forward_tile", "fc1", "tiled.shared", 148.77),
    Figure("figs 4-6", "fully_forward_tile", "fc2", "tiled.shared", 11.855),
)

# The order in which the report climbed, with its times; Table 7's for conv1's unrolled ladder.
LADDERS: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = (
    (
        "conv1",
        (
            ("direct.basic", 2800),
            ("direct.tight", 2000),
            ("direct.shared_constant", 450),
            ("direct.four_maps", 150),
        ),
    ),
    (
        "conv1",
        (
            ("unrolled.naive", 387.468),
            ("unrolled.tiled", 305.16),
            ("unrolled.constant", 51.9436),
            ("unrolled.layout", 34.8897),
        ),
    ),
    ("conv1", (("direct.four_maps", 150), ("unrolled.layout", 34.8897))),
    (
        "conv2",
        (
            ("direct.basic", 17200),
            ("direct.tight", 5400),
            ("direct.shared_constant", 1700),
            ("direct.four_maps", 670),
            ("unrolled.tiled", 260.2),
            ("unrolled.layout", 188.2),
        ),
    ),
    ("pool1", (("fused.relu_in_mean", 182), ("layout.quad", 14.5701))),
    ("pool2", (("fused.relu_in_mean", 27.6193), ("layout.quad", 10.0552))),
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

# What the report tried and could not run, or left unbuilt; measured without a figure beside it.
BEYOND: tuple[tuple[str, str, str, str], ...] = (
    ("2.2.3", "constant memory rolled in parts", "conv2", "unrolled.constant"),
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
    ("tables 5-8", "register tiles", "fc1", "tiled.blocked"),
    ("2.2.6", "BLAS", "fc1", "blas.numpy"),
)
