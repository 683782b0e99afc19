"""Figures in sentences: filled from docs/measured/, and found where nothing stands behind them.

`<!-- figure:NAME -->0.58 ms<!-- end -->` is written by `FIGURES[NAME]`. Any other figure with a
unit needs, in its section, one above it or before the first section, a line as EXAMPLE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import peer_tables
import plan_tables
from measured import GPU, load

from lenetgpu.papers.course_ladder import SAME

EXAMPLE = (
    "Figures in this section outside generated tables were seen during development on an NVIDIA "
    "H200, 2026-11-20; no file records them."
)
_EXCUSE = re.compile(
    r"Figures (?:in this section|on this page)(?: outside generated tables)? were seen during"
    r" development on an? [^;]+, \d{4}-\d{2}-\d{2}; no file records them\."
)
_SPAN = re.compile(r"<!-- figure:([\w-]+) -->(.*?)<!-- end -->", re.DOTALL)
_BLOCK = re.compile(r"<!-- begin:([\w-]+) -->.*?<!-- end:\1 -->", re.DOTALL)
_UNITS = r"ms|us|ns|s|%|TFLOP/s|GFLOP/s|T?GB/s|TB/s|images/s|GHz|MHz|W"
_FIGURE = re.compile(rf"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:\s?(?:{_UNITS})|x)(?![\w/])")
_DEFINED = re.compile(r"95\s%\s(?:confidence\s)?interval")


def _launch_cost() -> str:
    """What a launched pass of the fused plans takes over a replayed one, least to most."""
    document = load(GPU, "peers.json")
    launched = {d["plan_name"]: d["timing_ms"]["compute"]["median"] for d in plan_tables.plans(GPU)}
    more = [
        launched[plan] - ms for plan, ms in peer_tables.replayed(document).items()
        if plan in launched
    ]  # fmt: skip
    return f"{min(more):.2f} to {max(more):.2f} ms"


def _right() -> str:
    """Labels of MNIST's test images that the shipped weights get right, by plan `fp32`."""
    rows = load(GPU, "peers.json")["rows"]
    return f"{next(row['correct'] for row in rows if row['name'] == 'lenetgpu fp32 graph'):,}"


FIGURES: dict[str, Callable[[], str]] = {
    "course-total": lambda: f"{plan_tables.COURSE_MS:.0f} ms",
    "no-gain": lambda: f"{(SAME - 1) * 100:.0f} %",
    "launch-cost": _launch_cost,
    "mnist-right": _right,
}


def filled(text: str) -> str:
    """`text` with every quoted figure as the files have it; KeyError for a NAME there is not."""
    return _SPAN.sub(
        lambda found: f"<!-- figure:{found[1]} -->{FIGURES[found[1]]()}<!-- end -->", text
    )


def _sections(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a page from heading to heading, and whether a line excuses its figures."""
    excused = [False] * 7
    for part in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        marks = re.match(r"#*", part)
        level = len(marks[0]) if marks else 0
        here = _EXCUSE.search(" ".join(part.split())) is not None
        excused[level:] = [here] * (7 - level)
        yield part, any(excused[: level + 1])


def unbacked(text: str) -> list[str]:
    """The figures of a page that are in no generated part and that no line owns up to."""
    left = _SPAN.sub("", _BLOCK.sub("", text))
    return [
        figure
        for part, excused in _sections(left)
        if not excused
        for figure in _FIGURE.findall(_DEFINED.sub("", part))
    ]
