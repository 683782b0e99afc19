"""Figures of the cuda-convnet2 paper: its ladder, its Table 1, and larger shapes for comparison.

The paper is "Software and Hardware Enhancement of Convolutional Neural Networks on GPGPUs" (2018);
its cycles are from GPGPU-sim for a GTX 480 with 15 multiprocessors.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from lenetgpu.papers import data_of
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2.ladder import Loads

TABLE_1_BATCH = 128
TABLE_1 = Conv(6, 5, 3, 32, 5, 5, pad=2, reads="NCHW", writes="NCHW")
# with the printed filter size; why it is not the size of the ladder: notes of shapes.json
TABLE_1_PRINTED = Conv(6, 5, 3, 32, 32, 32, pad=16, reads="NCHW", writes="NCHW")


def is_table_1(problem: Conv, batch: int) -> bool:
    """Return True for Table 1's convolution with its images, in any layouts."""
    return (replace(problem, reads="NCHW", writes="NCHW"), batch) == (TABLE_1, TABLE_1_BATCH)


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


_Row = TypeVar("_Row")


def rows_of(name: str, cls: type[_Row]) -> tuple[_Row, ...]:
    """Return the rows `name` of convnet2.json as `cls`, with members of Loads for their names."""
    rows = data_of("convnet2")[name]
    return tuple(
        cls(**{k: Loads[v] if k == "loads" else v for k, v in row.items()}) for row in rows
    )


STEPS = rows_of("steps", PaperStep)
