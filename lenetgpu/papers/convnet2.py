"""Figures of the cuda-convnet2 paper: its ladder, its Table 1, and larger shapes for comparison.

The paper is "Software and Hardware Enhancement of Convolutional Neural Networks on GPGPUs" (2018);
its cycles are from GPGPU-sim for a GTX 480 with 15 multiprocessors.
"""

from dataclasses import dataclass, replace

from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2.ladder import Loads

TABLE_1_BATCH = 128
TABLE_1 = Conv(6, 5, 3, 32, 5, 5, pad=2, reads="NCHW", writes="NCHW")
TABLE_1_PRINTED = Conv(6, 5, 3, 32, 32, 32, pad=16, reads="NCHW", writes="NCHW")


def is_table_1(problem: Conv, batch: int) -> bool:
    """Return True for Table 1's convolution with its images, in any layouts."""
    return (replace(problem, reads="NCHW", writes="NCHW"), batch) == (TABLE_1, TABLE_1_BATCH)


TABLE_1_NOTE = (
    "Table 1 prints 32 for the filter's width and height. 32x32 filters would need 786 thousand "
    "cycles for the products alone (49,152 a thread, 16 warps a multiprocessor, one warp of "
    "products a cycle), more than the 148 thousand of the whole run, so the ladder is measured "
    "with 5x5 filters and the same 120 blocks, and with the printed size besides."
)
SHAPES: dict[str, tuple[Conv, int]] = {
    "table 1, filters 5x5": (TABLE_1, TABLE_1_BATCH),
    "table 1, filters as printed": (TABLE_1_PRINTED, TABLE_1_BATCH),
    "32x32x3 to 64, 5x5": (Conv(32, 32, 3, 64, 5, 5, pad=2), TABLE_1_BATCH),
    "16x16x64 to 64, 5x5": (Conv(16, 16, 64, 64, 5, 5, pad=2), TABLE_1_BATCH),
    "13x13x256 to 384, 3x3": (Conv(13, 13, 256, 384, 3, 3, pad=1), TABLE_1_BATCH),
}


@dataclass(frozen=True)
class PaperStep:
    """One step: the variant that runs here, the step to compare it with, the paper's numbers."""

    name: str
    variant: str
    before: str | None
    section: str
    what: str
    cycles: int | None = None
    gain: float | None = None  # share of the overall time that the step saves
    remark: str = ""
    loads: Loads | None = None  # instead of the variant's own way to load a chunk


_ON_CORES = "the paper has a product engine in place here (figure 25); this row has none"
_UNNAMED = "overall, with a product engine in place; which of the two is not said"
STEPS: tuple[PaperStep, ...] = (
    PaperStep("rolled", "convnet2.rolled", None, "3.1.1",
              "sums indexed by loop counters, in local memory", 524_000),
    PaperStep("unrolled", "convnet2.unrolled", "rolled", "3.1.2",
              "loop unrolling: sums in registers", 148_000, 0.71,
              "524k to 148k cycles; 1 - 148/524 is 71.8 %"),
    PaperStep("inner product engine", "convnet2.inner_product", "unrolled", "3.2",
              "inner product engine, simulated; here mma.sync, a fragment at a time",
              None, 0.66, "the computation part by 88 %, the whole by 66 %", Loads.PLAIN),
    PaperStep("outer product engine", "convnet2.outer_product", "unrolled", "3.3",
              "outer product engine, simulated; here mma.sync, all pairs",
              None, None, "drawn in figure 24, no number in the text", Loads.PLAIN),
    PaperStep("strength_reduced", "convnet2.strength_reduced", "unrolled", "4.1",
              "strength reduction of indices", None, 0.259, _ON_CORES),
    PaperStep("hoisted_checks", "convnet2.hoisted_checks", "strength_reduced", "4.2",
              "extracted conditionals", None, 0.026, _ON_CORES),
    PaperStep("inner product, strength reduced", "convnet2.inner_product", "inner product engine",
              "4.1", "strength reduction with an engine", None, 0.259, _UNNAMED, Loads.REDUCED),
    PaperStep("inner_product", "convnet2.inner_product", "inner product, strength reduced", "4.2",
              "extracted conditionals with an engine: the variant", None, 0.026, _UNNAMED),
    PaperStep("outer product, strength reduced", "convnet2.outer_product", "outer product engine",
              "4.1", "strength reduction with an engine", None, 0.259, _UNNAMED, Loads.REDUCED),
    PaperStep("outer_product", "convnet2.outer_product", "outer product, strength reduced", "4.2",
              "extracted conditionals with an engine: the variant", None, 0.026, _UNNAMED),
    PaperStep("index_table", "convnet2.index_table", "hoisted_checks", "4.3",
              "index converter as a look-up", None, 0.05,
              "the paper's converter is one simulated instruction"),
    PaperStep("index_engine", "convnet2.index_engine", "hoisted_checks", "4.3",
              "index converter as the TMA's im2col loads", None, 0.05,
              "another tile too: NHWC windows, and copies that overlap the sums"),
)  # fmt: skip
PAPER_TOTAL_NOTE = (
    "Abstract and section 6: up to 4.4x against the baseline. The text does not say which steps it "
    "counts; 524/148 is 3.5x, with strength reduction 4.8x, with an engine's 66 % more than 10x."
)
