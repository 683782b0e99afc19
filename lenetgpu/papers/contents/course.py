"""The course's report: its sections, figures and tables."""

from __future__ import annotations

from lenetgpu.papers.contents import FIGURE, SECTION, TABLE, Item, Text

_HEADING = "a heading"
_COUNTED = (
    "papers/course_counters.py",
    "docs/measured.md#its-figures-4-to-6-counted",
    "papers/course_counters.py:MORE",
    "docs/measured.md#its-figures-4-to-6-counted",
)
_TIMES, _STEPS = "papers/course.py:FIGURES", "docs/measured.md#the-courses-steps-today"
_ROWS, _MOVES = "docs/measured.md#the-courses-figures", "papers/course_passes.py"
_QUADRANTS = (
    ("direct.whole_warps", "conv1's block of one map whose warps are whole is not built"),
    ("direct.quadrants", "conv2's block of four maps in quadrants is not built"),
)
_TWO_MAPS = (("direct.two_maps", "the blocks of [16,12] are not built"),)
_NAIVE = (("unrolled.image_naive", "outputs lie in a row over all images, not an image a block"),)
_TILES = (
    ("unrolled.image_tiled", "a block is a tile, not an image that walks its tiles"),
    ("unrolled.image_untransposed", "the step before W' is transposed is not built"),
)
_CONSTANT = (("unrolled.image_constant", "a block is a tile, not an image"),)
_LAYOUT = (("unrolled.image_layout", "a block is a tile, not an image"),)
_BOTH = (
    *_LAYOUT,
    ("unrolled.constant_layout", "constant memory and the layout are not built in one kernel"),
)
_IN_PLACE = (("basic.in_place", "ReLU is not in place, nor a block an image's map in a loop"),)
_LOOPED = (("fused.maps_looped", "threads run along the output, not with the maps in a loop"),)
_QUAD = (("layout.quad_looped", "threads run along the output, not with the maps in a loop"),)
_WIDE = (("thread.wide_blocks", "blocks are smaller than 1,024 threads"),)

TEXT = Text(
    "course",
    "Final Project Report, ECE 408 (2016)",
    ("report",),
    (
        Item(SECTION, "1", "Introduction", ("network.py",)),
        Item(SECTION, "2", "Convolution optimization", why=_HEADING),
        Item(SECTION, "2.1", "Forward path of convolutional layer", ("network.py:STAGES",)),
        Item(SECTION, "2.1.1", "Basic kernel with forward path"),
        Item(SECTION, "2.1.2", "Forward path using less threads"),
        Item(SECTION, "2.1.3", "Shared and constant memory"),
        Item(SECTION, "2.1.4", "New design of block", gaps=_QUADRANTS),
        Item(SECTION, "2.2", "Convolutional layer with unroll"),
        Item(SECTION, "2.2.1", "Normal optimization", gaps=_NAIVE),
        Item(SECTION, "2.2.2", "Tile implementation", gaps=_TILES),
        Item(SECTION, "2.2.3", "Using constant memory", gaps=_CONSTANT),
        Item(SECTION, "2.2.4", "Layout transformation", ("layouts.py",), gaps=_BOTH),
        Item(SECTION, "2.2.5", "Comparison", ("papers/course.py:LADDERS", _STEPS)),
        Item(SECTION, "2.2.6", "cuBLAS"),
        Item(SECTION, "2.3", "Forward path against unroll", ("papers/course.py:LADDERS", _STEPS)),
        Item(SECTION, "2.4", "FFT"),
        Item(SECTION, "3", "Optimization of other functions", why=_HEADING),
        Item(SECTION, "3.1", "Relu4 and relu2", ("papers/course_passes.py",)),
        Item(SECTION, "3.1.1", "Normal optimization", gaps=_IN_PLACE),
        Item(SECTION, "3.1.2", "Embedded into other function"),
        Item(SECTION, "3.1.3", "Analysis", (_TIMES, _ROWS)),
        Item(SECTION, "3.2", "Average pool"),
        Item(SECTION, "3.2.1", "Normal optimization", gaps=_IN_PLACE),
        Item(SECTION, "3.2.2", "Including relu4", gaps=_LOOPED),
        Item(SECTION, "3.2.3", "Tile optimization"),
        Item(SECTION, "3.2.4", "Layout transformation", ("layouts.py",), gaps=_QUAD),
        Item(SECTION, "3.2.5", "Analysis of using layout transformation", (_TIMES, _STEPS)),
        Item(SECTION, "3.3", "Argmax"),
        Item(SECTION, "3.3.1", "Normal optimization", gaps=_WIDE),
        Item(SECTION, "3.3.2", "List reduction"),
        Item(SECTION, "3.4", "Memory transform", ("pipeline.py", f"{_MOVES}:Transfers")),
        Item(SECTION, "3.4.1", "Block level overlapping"),
        Item(
            SECTION, "3.5", "Stream",
            (
                "net/streaming/streamer.py", f"{_MOVES}:Streamed",
                "docs/measured.md#streams-and-chunks",
            ),
        ),
        Item(SECTION, "3.6", "Appropriate floating number"),
        Item(SECTION, "4", "NVProf and NVVP results", _COUNTED),
        Item(SECTION, "4.1", "Forward path using shared memory", _COUNTED),
        Item(
            SECTION, "4.2", "Forward path with new design of block", _COUNTED, gaps=_TWO_MAPS,
        ),
        Item(SECTION, "4.3", "Unroll using layout", _COUNTED),
        Item(SECTION, "5", "Result", (_TIMES, "docs/measured.md#the-courses-figures")),
        Item(SECTION, "6", "Contributions of each team member", why="names who did what"),
        Item(FIGURE, "1", "The streaming multiprocessors", ("gpu/occupancy.py",)),
        Item(FIGURE, "2", "The block of the second convolution", ("stages/conv/direct.cu",)),
        Item(FIGURE, "3", "The revised kernel", ("stages/conv/direct.cu",)),
        Item(
            FIGURE, "4", "Unrolled matrix in tiles; NVVP, forward path (two are numbered 4)",
            ("stages/conv/unrolled.cu", *_COUNTED),
        ),
        Item(
            FIGURE, "5", "Layout transformation; NVVP, new block (two are numbered 5)",
            ("layouts.py", *_COUNTED),
        ),
        Item(FIGURE, "6", "NVVP, unroll using layout", _COUNTED),
        Item(TABLE, "1", "Basic kernel", (_TIMES, _ROWS)),
        Item(TABLE, "2", "Less threads", (_TIMES, _ROWS)),
        Item(TABLE, "3", "Shared and constant memory", (_TIMES, _ROWS)),
        Item(TABLE, "4", "New design of block", (_TIMES, _ROWS), gaps=_QUADRANTS),
        Item(TABLE, "5", "Unroll using shared memory", (_TIMES, _ROWS), gaps=_TILES),
        Item(TABLE, "6", "Unroll after layout transformation", (_TIMES, _ROWS), gaps=_LAYOUT),
        Item(
            TABLE, "7", "The first layer using unroll", (_TIMES, _ROWS),
            gaps=(*_NAIVE, *_TILES, *_CONSTANT, *_BOTH),
        ),
        Item(TABLE, "8", "Forward path against unroll", (_TIMES, _ROWS)),
        Item(TABLE, "9", "Relu4", (_TIMES, _ROWS), gaps=_IN_PLACE),
        Item(TABLE, "10", "Dimensions of transformation", ("papers/course.py:LAYOUTS",)),
        Item(TABLE, "11", "Average pool", (_TIMES, _ROWS), gaps=(*_LOOPED, *_QUAD)),
        Item(TABLE, "12", "ArgMax", (_TIMES, _ROWS), gaps=_WIDE),
        Item(TABLE, "13", "Result run times", (_TIMES, _ROWS)),
    ),
)  # fmt: skip
