"""The cuda-convnet2 paper: its sections, figures, tables and equations."""

from __future__ import annotations

from lenetgpu.papers.contents import EQUATION, FIGURE, SECTION, TABLE, Item, Text

_FOLDER = "stages/conv/convnet2/"
_LADDER, _TILE, _LOADS = f"{_FOLDER}ladder.cu", f"{_FOLDER}ladder.py:Tile", f"{_FOLDER}loads.cuh"
_ENGINES, _IM2COL = f"{_FOLDER}engines.cu", f"{_FOLDER}im2col.cu"
_STEPS, _PAGE = "papers/convnet2.py:STEPS", "docs/convnet2.md"
_CLAIMS, _LISTINGS = "papers/convnet2_engines.py:CLAIMS", "papers/convnet2_listings.py"
_SIMULATED = "docs/engines.md#beside-the-paper-and-beside-what-an-h200-does"
_OCCUPANCY = "gpu/occupancy.py:residency"
_TIME = ("papers/convnet2_shares.py:SHOWN", f"{_PAGE}#where-the-time-goes", _CLAIMS, _SIMULATED)
_TILES, _INSTRUCTIONS = "papers/convnet2_shares.py", "gpu/instructions.py:INSTRUCTIONS"
_DRAWN = "the paper draws it only: no figure to compare with"
_LINES = "latencies an instruction, by chains of each; a GPU counts none a line"

TEXT = Text(
    "convnet2",
    "Software and Hardware Enhancement of Convolutional Neural Networks on GPGPUs (2018)",
    ("convnet2",),
    (
        Item(SECTION, "1", "Introduction", why="other work"),
        Item(SECTION, "2", "Implementing convolution on GPGPU", why="a heading"),
        Item(SECTION, "2.1", "Convolution in CNN", ("stages/reference.py",)),
        Item(SECTION, "2.2", "Parallelism and data reuse", (_TILE, _LADDER)),
        Item(SECTION, "2.3", "Choosing the input size", ("gpu/occupancy.py:filling_batches",)),
        Item(SECTION, "2.4", "Summary of design concerns", why="sums up"),
        Item(SECTION, "3", "Accelerating computation", _TIME),
        Item(SECTION, "3.1", "Avoid local memory access", (_LADDER,)),
        Item(SECTION, "3.1.1", "Local variables in CUDA", (_LADDER,)),
        Item(SECTION, "3.1.2", "Loop unrolling", (_STEPS,)),
        Item(SECTION, "3.2", "Inner product engine", (_STEPS, f"{_LISTINGS}:inner_latency")),
        Item(SECTION, "3.3", "Outer product engine", (_STEPS, f"{_LISTINGS}:outer_latency")),
        Item(SECTION, "4", "Accelerating data-loading", (_LOADS, _SIMULATED)),
        Item(SECTION, "4.1", "Strength reduction", (_STEPS, _CLAIMS)),
        Item(SECTION, "4.2", "Extract conditionals", (_STEPS, _CLAIMS)),
        Item(SECTION, "4.3", "Index conversion accelerator", (_STEPS, _CLAIMS)),
        Item(SECTION, "5", "Related work", why="other work"),
        Item(SECTION, "6", "Conclusion", (_CLAIMS, _SIMULATED)),
        Item(FIGURE, "1", "Convolution in CNN", ("stages/reference.py",)),
        Item(FIGURE, "2", "Pseudocode of convolution", ("stages/reference.py",)),
        Item(FIGURE, "3", "Input data and output images", (_TILE,)),
        Item(FIGURE, "4", "Threads in a block", (_TILE,)),
        Item(FIGURE, "5", "The kernel", (_LADDER, f"{_TILES}:tiles")),
        Item(FIGURE, "6", "Loading in chunks", (_LOADS, f"{_TILES}:tiles")),
        Item(FIGURE, "7", "Several outputs a thread", (_LADDER, f"{_TILES}:tiles")),
        Item(FIGURE, "8", "Initial performance breakdown", _TIME),
        Item(
            FIGURE, "9", "Local memory access latency",
            (f"{_LISTINGS}:FIGURE_9", "docs/engines.md#the-model", _INSTRUCTIONS),
            _LINES,
        ),
        Item(FIGURE, "10", "Registers and local memory", ("tests/test_convnet2.py",)),
        Item(FIGURE, "11", "Local array in the kernel", (_LADDER,)),
        Item(FIGURE, "12", "Applying loop unrolling", (_LADDER,)),
        Item(
            FIGURE, "13", "Profile after unrolling",
            (f"{_LISTINGS}:FIGURE_13", "docs/engines.md#the-model", _INSTRUCTIONS),
            _LINES,
        ),
        Item(FIGURE, "14", "Unrolling, breakdown", _TIME),
        Item(FIGURE, "15", "Computation loop", (_LADDER,)),
        Item(FIGURE, "16", "Inner product in the loop", (_ENGINES,)),
        Item(FIGURE, "17", "Inner product", (_ENGINES,)),
        Item(FIGURE, "18", "Inner product unit", (f"{_LISTINGS}:inner_latency",)),
        Item(FIGURE, "19", "Program with the inner engine", (_ENGINES, f"{_LISTINGS}:listing")),
        Item(FIGURE, "20", "Inner engine, breakdown", _TIME),
        Item(FIGURE, "21", "Outer product in the loop", (_ENGINES,)),
        Item(FIGURE, "22", "Outer product", (_ENGINES,)),
        Item(FIGURE, "23", "Outer product unit", (f"{_LISTINGS}:outer_latency",)),
        Item(FIGURE, "24", "Outer engine, breakdown", _TIME, _DRAWN),
        Item(
            FIGURE, "25", "Breakdown after improvements", (*_TIME[:2], "docs/engines.md#cycles"),
            _DRAWN,
        ),
        Item(FIGURE, "26", "Arithmetic in the inner loop", (_LOADS, f"{_LISTINGS}:listing")),
        Item(FIGURE, "27", "Applying strength reduction (29's code)", (_LOADS,)),
        Item(FIGURE, "28", "Strength reduction, breakdown", _TIME),
        Item(FIGURE, "29", "Boundary checking (27's code)", (_LOADS,)),
        Item(FIGURE, "30", "Reduced boundary check", (_LOADS,)),
        Item(FIGURE, "31", "Extracted conditionals, breakdown", _TIME),
        Item(FIGURE, "32", "Index conversion in the loop", (_LOADS, f"{_LISTINGS}:listing")),
        Item(FIGURE, "33", "With the accelerator", (_LOADS, f"{_LISTINGS}:listing")),
        Item(
            FIGURE, "34", "Index converter, breakdown", (*_TIME, _IM2COL),
            "the TMA's copies run under the sums: only the look-up is parted",
        ),
        Item(
            TABLE, "1", "Parameters used in the experiments",
            ("papers/convnet2.py:TABLE_1", f"{_FOLDER}ladder.py:ladder_tile"),
            "its filters of 32 x 32 are a misprint for 5 x 5, as figures 9 and 13 tell",
        ),
        Item(TABLE, "2", "Addresses used by the inner engine", (f"{_LISTINGS}:listing",)),
        Item(EQUATION, "1", "Shared memory of a tile", (_TILE, f"{_TILES}:tile_bytes")),
        Item(EQUATION, "2", "Blocks by registers", (_OCCUPANCY,)),
        Item(EQUATION, "3", "Blocks by shared memory", (_OCCUPANCY,)),
        Item(EQUATION, "4", "Blocks a multiprocessor", (_OCCUPANCY,)),
        Item(EQUATION, "5", "Number of blocks", ("gpu/occupancy.py:grid_blocks",)),
        Item(EQUATION, "6", "Registers at Table 1", ("tests/test_occupancy.py",)),
        Item(EQUATION, "7", "Shared memory at Table 1", ("tests/test_occupancy.py",)),
    ),
)  # fmt: skip
