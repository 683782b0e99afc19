"""Tables 1 to 13 and Figures 4 to 6 of the course report, with the variants to measure for them.

Times are the report's, in milliseconds, for IMAGES images on its 2016 GPU (serial: on its CPU).
"""

from dataclasses import dataclass
from typing import Any

from lenetgpu.layouts import physical_shape
from lenetgpu.network import stage
from lenetgpu.stages import Variant

IMAGES = 10_000  # Images that every time of the report covers.
RELU, MEAN, SERIAL_RELU, SERIAL_MEAN = "relu", "mean", "serial relu", "serial mean"
TOTAL = "plan course"
APART, MERGED = "mean, then linear", "mean and linear in one"
HOST, RESIDENT = "plan course, by the host", "plan course, resident"
STREAMS = ((1, 1), (1, 4), (2, 2), (2, 4), (4, 4), (8, 8))  # (streams, chunks of all images).


def streamed(streams: int, chunks: int) -> str:
    """Return the name of plan course with this number of streams and chunks."""
    return f"{TOTAL}, {streams} stream{'s' * (streams > 1)}, {chunks} chunk{'s' * (chunks > 1)}"


@dataclass(frozen=True)
class Figure:
    """One time of the report, a lower bound if `at_least`."""

    table: str
    label: str
    stage: str
    variant: str  # with the report's blocks and threads; or RELU, MEAN, SERIAL_*, TOTAL
    milliseconds: float
    at_least: bool = False


def _figures(table: str, label: str, variant: str, **times: float) -> list[Figure]:
    """Return one figure per stage, by the stage's name."""
    return [Figure(table, label, stage, variant, time) for stage, time in times.items()]


FIGURES: tuple[Figure, ...] = (
    *_figures("1", "basic kernel", "direct.basic", conv1=2800, conv2=17200),
    *_figures("2", "fewer threads", "direct.tight", conv1=2000, conv2=5400),
    *_figures("3", "shared and constant memory", "direct.shared_constant", conv1=450, conv2=1700),
    Figure("4", "new design of block", "conv1", "direct.whole_warps", 150),
    Figure("4", "new design of block", "conv2", "direct.quadrants", 670),
    Figure("fig 4", "12x12 threads, profiled", "conv2", "direct.shared_constant", 6855),
    Figure("fig 5", "16x12 threads, profiled", "conv2", "direct.two_maps", 3905),
    *_figures("5", "unrolled, tiles", "unrolled.image_tiled", conv1=51.9, conv2=260.2),
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
    *_figures("9", "relu4, serial", SERIAL_RELU, pool1=3013.68, pool2=665.508),
    *_figures("9", "relu4, parallel", RELU, pool1=12.4404, pool2=2.47833),
    *_figures("11", "average pool, serial", SERIAL_MEAN, pool1=10690.9, pool2=2501.65),
    *_figures("11", "normal optimization", MEAN, pool1=182, pool2=27.6193),
    *_figures("11", "layout transformation", "layout.quad_looped", pool1=14.5701, pool2=10.0552),
    Figure("12", "argmax, serial", "argmax", "serial.loops", 3.15529),
    Figure("12", "argmax, a thread an image", "argmax", "thread.wide_blocks", 0.326171),
    Figure("13", "convolution, serial", "conv1", "serial.loops", 10000, at_least=True),
    Figure("13", "convolution, serial", "conv2", "serial.loops", 10000, at_least=True),
    *_figures("13", "relu4", RELU, pool1=12.4404, pool2=2.47833),
    *_figures("13", "average pool", "layout.quad_looped", pool1=14.5701, pool2=10.0552),
    Figure("13", "argmax", "argmax", "thread.wide_blocks", 0.326171),
    Figure("13", "convolution", "conv1", "unrolled.constant_layout", 34.8897),
    Figure("13", "convolution", "conv2", "unrolled.image_layout", 188.695),
    Figure("13", "all", "all", TOTAL, 270),
    *_figures("figs 4-6", "fully_forward_tile", "tiled.relu_apart", fc1=148.77, fc2=11.855),
)
Ladder = tuple[str, tuple[tuple[str, float | None], ...]]


def _ladder(stage: str, *names: str, tables: tuple[str, ...] = ()) -> Ladder:
    """Return variants of `stage` with their times in `tables`, or in the first table with one."""
    values = {
        figure.variant: figure.milliseconds
        for figure in reversed(FIGURES)
        if figure.stage == stage and (not tables or figure.table in tables)
    }
    return stage, tuple((name, values.get(name)) for name in names)


# The report's optimization steps in order, with its times (Table 7's for conv1's unrolled ladder).
# None: the report says which is better but gives no time.
LADDERS: tuple[Ladder, ...] = (
    _ladder(
        "conv1", "direct.basic", "direct.tight", "direct.shared_constant", "direct.whole_warps"
    ),
    _ladder("conv1", "unrolled.image_untransposed", "unrolled.image_tiled"),
    _ladder(
        "conv1", "unrolled.image_naive", "unrolled.image_tiled", "unrolled.image_constant",
        "unrolled.constant_layout", tables=("7",),
    ),
    _ladder("conv1", "direct.whole_warps", "unrolled.constant_layout", tables=("4", "7")),
    _ladder(
        "conv2", "direct.basic", "direct.tight", "direct.shared_constant", "direct.quadrants",
        "unrolled.image_tiled", "unrolled.image_layout",
    ),
    _ladder("conv2", "direct.shared_constant", "direct.two_maps", tables=("fig 4", "fig 5")),
    _ladder("conv2", "unrolled.image_untransposed", "unrolled.image_tiled"),
    _ladder("pool1", MEAN, "layout.quad_looped"),
    _ladder("pool2", MEAN, "layout.quad_looped"),
    _ladder("pool1+conv2", APART, MERGED),
    _ladder("pool2+fc1", APART, MERGED),
    _ladder("all", HOST, RESIDENT),
    _ladder("all", streamed(1, 1), streamed(2, 2)),
)  # fmt: skip

# The report's Table 10: activation shapes (without batch k) before and after its transformation,
# of the input of conv1 and of the outputs of conv1, pool1, conv2 and pool2.
_SHAPES = (
    ((28, 28, 1), (28, 28, 1)), ((24, 24, 32), (32, 48, 12)), ((12, 12, 32), (32, 12, 12)),
    ((8, 8, 64), (64, 16, 4)), ((4, 4, 64), (4, 4, 64)),
)  # fmt: skip

Row = tuple[str, str, str, str]  # Section, label, stage, variant.


def _rows(*listed: Row) -> tuple[Row, ...]:
    """Return one row per stage for rows that name several stages."""
    return tuple(
        (section, label, stage, variant)
        for section, label, stages, variant in listed
        for stage in stages.split()
    )


# Steps that the report describes without a time, or with its threads in another step's place.
UNTIMED = _rows(
    ("2.2.2", "W' not transposed", "conv1 conv2", "unrolled.image_untransposed"),
    ("3.1.1", "relu4, then average pool", "pool1 pool2", "basic.in_place"),
    ("3.2.2", "including relu4", "pool1 pool2", "fused.maps_looped"),
)
# Sections 3.1 (only an idea in the report), 3.4 and 3.5, on a whole plan or two of its stages.
LINEAR = _rows(
    ("3.1", "mean, then convolution", "pool1+conv2", APART),
    ("3.1", "the two in one", "pool1+conv2", MERGED),
    ("3.1", "mean, then fully connected", "pool2+fc1", APART),
    ("3.1", "the two in one", "pool2+fc1", MERGED),
)
_STREAMED = "streams, images and labels in page-locked memory"
MOVES = _rows(
    ("3.4", "by the host between stages", "all", HOST),
    ("3.4", "left on the device", "all", RESIDENT),
    *(("3.5", _STREAMED, "all", streamed(*shape)) for shape in STREAMS),
)
# Our variants of the same ideas, with other blocks and threads than the report's.
AFTER = _rows(
    ("2.1.4", "four maps a block", "conv1 conv2", "direct.four_maps"),
    ("2.2.1", "unrolled, a thread an output", "conv1", "unrolled.naive"),
    ("2.2.2", "unrolled, a block a tile", "conv1 conv2", "unrolled.tiled"),
    ("2.2.3", "constant memory, a block a tile", "conv1", "unrolled.constant"),
    ("2.2.3", "constant memory rolled in parts", "conv2", "unrolled.constant"),
    ("2.2.4", "layout, a block a tile", "conv1 conv2", "unrolled.layout"),
    ("3.1.1", "relu4, average pool, along the output", "pool1 pool2", "basic.two_passes"),
    ("3.2.2", "including relu4, along the output", "pool1 pool2", "fused.relu_in_mean"),
    ("3.2.4", "layout, along the output", "pool1 pool2", "layout.quad"),
    ("3.3.1", "argmax, 128 threads a block", "argmax", "thread.per_image"),
    ("figs 4-6", "fully_forward_tile with its ReLU", "fc1", "tiled.shared"),
    ("figs 4-6", "fully_forward_tile, one column of blocks", "fc2", "tiled.shared"),
)
# Ideas that the report could not run or did not build; measured without a figure to compare.
BEYOND = _rows(
    ("2.2.6", "cuBLAS", "conv1 conv2", "cublas.im2col"),
    ("2.2.6", "cuBLAS", "fc1", "cublas.sgemm"),
    ("2.4", "FFT", "conv1 conv2", "fft.cufft"),
    ("3.2.3", "average pool, tile", "pool1 pool2", "tiled.shared"),
    ("3.3.2", "argmax, list reduction", "argmax", "reduction.list"),
    ("3.3.2", "argmax, warp shuffle", "argmax", "reduction.shuffle"),
    ("3.4.1", "block-level fusion", "conv1+pool1 conv2+pool2", "block.unrolled"),
    ("3.6", "half precision", "conv1 conv2 fc1", "cublas.half"),
)
# The same stages with the CPU's own variants, measured on machines without a GPU.
ON_CPU = _rows(
    ("2.1.3", "register tiles", "conv1 conv2", "tiled.blocked"),
    ("2.2", "unrolled, BLAS", "conv1 conv2", "unrolled.blas"),
    ("2.4", "FFT", "conv1 conv2", "fft.pocketfft"),
    ("3.2.2", "relu4 inside the mean", "pool1 pool2", "fused.rows"),
    ("3.3", "argmax, NumPy", "argmax", "numpy.argmax"),
    ("figs 4-6", "register tiles", "fc1", "tiled.blocked"),
    ("2.2.6", "BLAS", "fc1", "blas.numpy"),
)


def further_rows(device: str) -> tuple[Row, ...]:
    """Return the suite's rows besides FIGURES on `device` ("cpu" or "cuda")."""
    return UNTIMED + LINEAR + MOVES + BEYOND + AFTER if device == "cuda" else LINEAR + ON_CPU


TABLE_10 = {
    "conv1": ("NCHW", "QUAD"),
    "pool1": ("QUAD", "NCHW"),
    "conv2": ("NCHW", "QUAD"),
    "pool2": ("QUAD", "NHWC"),
}
_OWN = {figure.variant for figure in FIGURES} | {name for *_, name in UNTIMED}


def layouts_of(where: str, variant: Variant) -> tuple[str, str] | None:
    """Return (reads, writes) of a row; None stands for the variant's first layouts."""
    if "QUAD" in (*variant.reads, *variant.writes):
        return TABLE_10[where]  # after the transformation
    own = variant.full_name in _OWN and variant.kind in ("conv", "pool")
    return ("NHWC", "NHWC") if own else None  # as before it


def layout_rows() -> list[dict[str, Any]]:
    """Return Table 10: the report's shapes and the ones this package gives its layouts."""
    rows = []
    for index, (name, layouts) in enumerate(TABLE_10.items()):
        problem = stage(name).problem
        for out, end in enumerate(("in", "out")):
            before, layout = (problem.in_shape, problem.out_shape)[out], layouts[out]
            row: dict[str, Any] = {"table": "10", "stage": name, "end": end, "layout": layout}
            row["report_before"], row["report_after"] = map(list, _SHAPES[index + out])
            after = physical_shape(layout, 1, before)[1:]
            rows.append(row | {"before": list(before), "after": list(after)})
    return rows
