"""Tables 1 to 13 and Figures 4 to 6 of the course report, with the variants to measure for them.

Times are the report's, in milliseconds, for IMAGES images on its 2016 GPU (serial: on its CPU).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lenetgpu.layouts import physical_shape
from lenetgpu.network import stage
from lenetgpu.papers import data_of
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


_DATA = data_of("course")
FIGURES: tuple[Figure, ...] = tuple(
    Figure(table, label, stage, variant, time, *at_least)
    for table, label, variant, times, *at_least in _DATA["figures"]
    for stage, time in times.items()
)
Ladder = tuple[str, tuple[tuple[str, float | None], ...]]


def _ladder(stage: str, names: list[str], tables: Sequence[str] = ()) -> Ladder:
    """Return variants of `stage` with their times in `tables`, or in the first table with one."""
    values = {
        figure.variant: figure.milliseconds
        for figure in reversed(FIGURES)
        if figure.stage == stage and (not tables or figure.table in tables)
    }
    return stage, tuple((name, values.get(name)) for name in names)


# The report's optimization steps in order, with its times (Table 7's for conv1's unrolled ladder).
# None: the report says which is better but gives no time.
LADDERS: tuple[Ladder, ...] = tuple(_ladder(*row) for row in _DATA["ladders"])

Row = tuple[str, str, str, str]  # Section, label, stage, variant.


def _rows(name: str) -> tuple[Row, ...]:
    """Return one row per stage for rows that name several stages."""
    return tuple(
        (section, label, stage, variant)
        for section, label, stages, variant in _DATA[name]
        for stage in stages.split()
    )


# Steps that the report describes without a time, or with its threads in another step's place.
UNTIMED = _rows("untimed")
# Sections 3.1 (only an idea in the report), 3.4 and 3.5, on a whole plan or two of its stages.
LINEAR = _rows("linear")
_STREAMED = "streams, images and labels in page-locked memory"
MOVES = _rows("moves") + tuple(("3.5", _STREAMED, "all", streamed(*shape)) for shape in STREAMS)
# Our variants of the same ideas, with other blocks and threads than the report's.
AFTER = _rows("after")
# Ideas that the report could not run or did not build; measured without a figure to compare.
BEYOND = _rows("beyond")
# The same stages with the CPU's own variants, measured on machines without a GPU.
ON_CPU = _rows("cpu")


def further_rows(device: str) -> tuple[Row, ...]:
    """Return the suite's rows besides FIGURES on `device` ("cpu" or "cuda")."""
    return UNTIMED + LINEAR + MOVES + BEYOND + AFTER if device == "cuda" else LINEAR + ON_CPU


# Layouts (reads, writes) of the stages after the report's transformation.
TABLE_10 = {stage: (reads, writes) for stage, (reads, writes) in _DATA["layouts"].items()}
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
            # without batch k: the input of conv1, then the outputs of all four stages
            row["report_before"], row["report_after"] = _DATA["shapes"][index + out]
            after = physical_shape(layout, 1, before)[1:]
            rows.append(row | {"before": list(before), "after": list(after)})
    return rows
