"""What the four source texts contain, and where each part of it is reproduced.

Its sections, figures, tables and equations, in their order. The variants that cite
one are not listed here: they say so themselves (`paper=`), and `cited` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SECTION, FIGURE, TABLE, EQUATION, SLIDE = "section", "figure", "table", "equation", "slide"
KINDS = (SECTION, FIGURE, TABLE, EQUATION, SLIDE)


@dataclass(frozen=True)
class Item:
    """A part of a text: `number` as printed, `places` in this repository besides the variants.

    A place is a path below the package or the repository, a name in it behind a colon, or a heading
    of a page behind a #. `why` says what is not reproduced of it and why.
    """

    kind: str
    number: str
    title: str
    places: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Text:
    """One of the four: `name` as words.md has it, `cited_as` as variants and docstrings name it."""

    name: str
    title: str
    cited_as: tuple[str, ...]
    items: tuple[Item, ...]

    def find(self, kind: str, number: str) -> Item | None:
        """Its part of that kind and number; None where there is none."""
        return next((i for i in self.items if (i.kind, i.number) == (kind, number)), None)


Citation = tuple[str, str]
"""A kind, a number."""

_KIND = {"sec": SECTION, "fig": FIGURE, "tab": TABLE, "equ": EQUATION}
_WORD = r"sections?|figures?|figs?\.?|tables?|equations?"
_NUMBER = r"\(?\d+(?:\.\d+)*\)?"
_JOINT = r"(?:\s*(?:,|-|to|and|or)\s*)"
_NUMBERS = rf"{_NUMBER}(?:{_JOINT}{_NUMBER})*"
_REFERENCE = re.compile(rf"\b({_WORD})\s+({_NUMBERS})(?![\w%])", re.IGNORECASE)


def _spread(kind: str, numbers: str) -> Iterator[Citation]:
    """Each number of "2.2, 3.1 and 4", and those between of "16 to 19" or "5-8"."""
    found = re.split(rf"({_JOINT})", numbers)
    for index, number in enumerate(found[::2]):
        yield kind, number.strip("()")
        if index and found[2 * index - 1].strip() in ("to", "-"):
            first, last = found[2 * index - 2].strip("()"), number.strip("()")
            if first.isdigit() and last.isdigit():
                yield from ((kind, str(n)) for n in range(int(first) + 1, int(last)))


def references(prose: str) -> set[Citation]:
    """What a sentence refers to by a kind's word: "section 2.2", "figs. 16 to 19", "table 1"."""
    return {
        citation
        for word, numbers in _REFERENCE.findall(prose)
        for citation in _spread(_KIND[word[:3].lower()], numbers)
    }


def cited(paper: str, text: Text, literal: bool = False) -> set[Citation]:
    """What a variant's `paper` cites of `text`: "report 2.2.2, table 5; ..." cites two.

    Numbers behind the text's name are sections until a kind's word comes; a slide goes by title.
    `literal` leaves out what stands behind "after": a kernel of our own that follows the text.
    """
    found: set[Citation] = set()
    for clause in paper.split(";"):
        name = next((n for n in text.cited_as if re.search(rf"\b{n}\b", clause)), None)
        if name is None:
            continue
        if literal and "after" in clause[: clause.index(name)].split():
            continue
        rest = clause[clause.index(name) + len(name) :]
        slides = [item.number for item in text.items if item.kind == SLIDE]
        found |= {(SLIDE, slide) for slide in slides if slide in rest.lower()}
        before = re.match(rf"\s+({_NUMBERS})", rest)
        if before:
            found |= set(_spread(SECTION, before[1]))
        found |= references(rest)
    return found


_HEADING = "a heading"
_COUNTED = ("papers/course_counters.py", "docs/measured.md#its-figures-4-to-6-counted")
_TIMES, _TODAY = "papers/course.py:FIGURES", "docs/measured.md#the-courses-steps-today"
_ROWS, _MOVES = "docs/measured.md#the-courses-figures", "papers/course_ladder.py"

COURSE = Text(
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
        Item(SECTION, "2.1.4", "New design of block"),
        Item(SECTION, "2.2", "Convolutional layer with unroll"),
        Item(SECTION, "2.2.1", "Normal optimization"),
        Item(SECTION, "2.2.2", "Tile implementation"),
        Item(SECTION, "2.2.3", "Using constant memory"),
        Item(SECTION, "2.2.4", "Layout transformation", ("layouts.py",)),
        Item(SECTION, "2.2.5", "Comparison", ("papers/course.py:LADDERS", _TODAY)),
        Item(SECTION, "2.2.6", "cuBLAS"),
        Item(SECTION, "2.3", "Forward path against unroll", ("papers/course.py:LADDERS", _TODAY)),
        Item(SECTION, "2.4", "FFT"),
        Item(SECTION, "3", "Optimization of other functions", why=_HEADING),
        Item(SECTION, "3.1", "Relu4 and relu2", ("papers/course_ladder.py",)),
        Item(SECTION, "3.1.1", "Normal optimization"),
        Item(SECTION, "3.1.2", "Embedded into other function"),
        Item(SECTION, "3.1.3", "Analysis", (_TIMES, _ROWS)),
        Item(SECTION, "3.2", "Average pool"),
        Item(SECTION, "3.2.1", "Normal optimization"),
        Item(SECTION, "3.2.2", "Including relu4"),
        Item(SECTION, "3.2.3", "Tile optimization"),
        Item(SECTION, "3.2.4", "Layout transformation", ("layouts.py",)),
        Item(SECTION, "3.2.5", "Analysis of using layout transformation", (_TIMES, _TODAY)),
        Item(SECTION, "3.3", "Argmax"),
        Item(SECTION, "3.3.1", "Normal optimization"),
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
        Item(SECTION, "4.2", "Forward path with new design of block", _COUNTED),
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
        Item(TABLE, "4", "New design of block", (_TIMES, _ROWS)),
        Item(TABLE, "5", "Unroll using shared memory", (_TIMES, _ROWS)),
        Item(TABLE, "6", "Unroll after layout transformation", (_TIMES, _ROWS)),
        Item(TABLE, "7", "The first layer using unroll", (_TIMES, _ROWS)),
        Item(TABLE, "8", "Forward path against unroll", (_TIMES, _ROWS)),
        Item(TABLE, "9", "Relu4", (_TIMES, _ROWS)),
        Item(TABLE, "10", "Dimensions of transformation", ("papers/course.py:LAYOUTS",)),
        Item(TABLE, "11", "Average pool", (_TIMES, _ROWS)),
        Item(TABLE, "12", "ArgMax", (_TIMES, _ROWS)),
        Item(TABLE, "13", "Result run times", (_TIMES, _ROWS)),
    ),
)  # fmt: skip


_PLAN = "stages/conv/prefetch/plan.py:plan_single"
_STRICT_PLAN = "stages/conv/prefetch/plan.py:strict_plan"
_AGAIN = "stages/conv/prefetch/plan.py:strict_single"
_MACHINE = "gpu/machines.py:Machine"
_SINGLE_TABLE = "docs/measured.md#pascal-one-channel"
_MULTI_TABLE = "docs/measured.md#pascal-many-channels"

PASCAL = Text(
    "Pascal",
    "Fast Convolution Kernels on Pascal GPU with High Memory Efficiency (Chang and others)",
    ("Pascal", "Chang"),
    (
        Item(SECTION, "1", "Introduction", why="other work"),
        Item(SECTION, "2", "Optimization methods", why="a heading"),
        Item(SECTION, "2.1", "The convolution models", ("stages/reference.py",)),
        Item(SECTION, "2.2", "Acceleration models on GPU", (_MACHINE, _PLAN, _AGAIN)),
        Item(SECTION, "2.3", "Data mapping", (_AGAIN, _STRICT_PLAN)),
        Item(SECTION, "3", "GPU implementation", why="a heading"),
        Item(SECTION, "3.1", "Single-channel convolution", (_PLAN, _AGAIN)),
        Item(SECTION, "3.2", "Multi-channel convolution", (_STRICT_PLAN,)),
        Item(
            SECTION, "4", "Experimental analysis",
            ("papers/shapes.py:SUITES", _SINGLE_TABLE, _MULTI_TABLE),
            "its GPUs, a GTX 1080 Ti and a GTX Titan X, are planned for, not measured on",
        ),
        Item(SECTION, "5", "Conclusions", why="sums up section 4"),
        Item(FIGURE, "1", "Memory storage form of the filter", ("stages/conv/prefetch/strict.cu",)),
        Item(FIGURE, "2", "Assignment of the input data", (_AGAIN, _STRICT_PLAN)),
        Item(FIGURE, "3", "Multi-channel kernel", ("stages/conv/prefetch/strict.cu",)),
        Item(FIGURE, "4", "Performance, single channel", (_SINGLE_TABLE,)),
        Item(FIGURE, "5", "Performance, many channels", (_MULTI_TABLE,)),
        Item(
            TABLE, "1", "Parameters of a GTX 1080Ti",
            ("gpu/machines.py:GTX_1080_TI", "tests/test_prefetch.py"),
        ),
        Item(EQUATION, "1", "Convolution of many channels", ("stages/reference.py",)),
        Item(EQUATION, "2", "Convolution of one", ("stages/reference.py",)),
        Item(EQUATION, "3", "D_input", (_PLAN,)),
        Item(EQUATION, "4", "D_1 with the map whole", (_PLAN,), "as equation (5) with P = 1"),
        Item(EQUATION, "5", "D_1", (_PLAN,)),
        Item(EQUATION, "6", "Th_1", (_PLAN,)),
        Item(EQUATION, "7", "D_2 with the filters whole", (_PLAN,), "as equation (8) with Q = 1"),
        Item(EQUATION, "8", "D_2", (_PLAN,)),
        Item(EQUATION, "9", "Th_2", (_PLAN,)),
    ),
)  # fmt: skip


_SHAPES, _KERNEL = "papers/shapes.py:SUITES", "stages/conv/tegra/slides.cu"
_ANALYSIS, _TABLES = (
    "stages/conv/tegra/slides.py",
    "docs/convolutions.md#the-papers-kernels",
)

TEGRA = Text(
    "Tegra X1",
    "Direct Convolution for Deep Neural Network Classification on Tegra X1 (slides, GTC 2015)",
    ("Tegra X1",),
    (
        Item(SLIDE, "convolutional neural network", "a picture", why="a picture of a network"),
        Item(SLIDE, "convolutional layer", "an example", ("problems.py:Conv",)),
        Item(
            SLIDE, "math/memory ratio", "FFMA a byte of Overfeat's layers",
            (_SHAPES, f"{_ANALYSIS}:math_per_byte", _TABLES),
        ),
        Item(SLIDE, "layer configuration variety", "Overfeat's layers", (_SHAPES,)),
        Item(
            SLIDE, "input/coefficient ratio", "inputs over coefficients",
            (_SHAPES, f"{_ANALYSIS}:input_per_coefficient", _TABLES)),
        Item(SLIDE, "workload distribution", "by output space", (_KERNEL,)),
        Item(SLIDE, "data reuse", "a picture", (_KERNEL,)),
        Item(SLIDE, "data reuse: input pixels", "the footprint in shared memory", (_KERNEL,)),
        Item(SLIDE, "data reuse: coefficients", "by the cache", (_KERNEL,)),
        Item(SLIDE, "input pixels layout", "a 3D texture", ("gpu/texture.py:Texture3D",)),
        Item(SLIDE, "per-thread pseudo code", "the kernel"),
        Item(
            SLIDE, "performance", "layer 6, as a share of the peak",
            (_SHAPES, "docs/measured.md#tegra-x1-overfeats-layers",),
            "no Tegra X1 is measured on",
        ),
        Item(SLIDE, "summary", "of the slides", why="sums up"),
    ),
)  # fmt: skip


_FOLDER = "stages/conv/convnet2/"
_LADDER, _TILE, _LOADS = f"{_FOLDER}ladder.cu", f"{_FOLDER}ladder.py:Tile", f"{_FOLDER}loads.cuh"
_ENGINES, _IM2COL = f"{_FOLDER}engines.cu", f"{_FOLDER}im2col.cu"
_STEPS, _PAGE = "papers/convnet2.py:STEPS", "docs/convnet2.md"
_CLAIMS, _LISTINGS = "papers/convnet2_engines.py:CLAIMS", "papers/convnet2_listings.py"
_SIMULATED = "docs/engines.md#beside-the-paper-and-beside-what-an-h200-does"
_OCCUPANCY = "gpu/occupancy.py:residency"
_TIME = ("papers/convnet2_measured.py:SHOWN", f"{_PAGE}#where-the-time-goes", _CLAIMS, _SIMULATED)
_TILES, _INSTRUCTIONS = "papers/convnet2_measured.py", "gpu/instructions.py:INSTRUCTIONS"
_DRAWN = "the paper draws it only: no figure to compare with"
_LINES = "latencies an instruction, by chains of each; a GPU counts none a line"

CONVNET2 = Text(
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
        Item(FIGURE, "25", "Breakdown after improvements", (*_TIME[:2], "docs/engines.md#cycles"),
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
        Item(FIGURE, "34", "Index converter, breakdown", (*_TIME, _IM2COL),
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


TEXTS = (COURSE, PASCAL, TEGRA, CONVNET2)
"""All four, in the order of words.md."""
