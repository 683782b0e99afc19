"""Columns of tables: what a command measures is objects of JSON, and columns say what is shown.

    TIMED = columns("candidate=name", ("median ms=median_ms, to=high", fixed(3)), *LAUNCH)
    print(Table(TIMED, document["candidates"]).markdown())    # lenetgpu/lab/render.py

A column has a title, a key and a way to write values; words stand left, numbers right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lenetgpu.errors import one_line

Write = Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """A title, the key of the value, and how the value is written; `empty` stands for none.

    A key with dots leads into objects.
    """

    title: str
    key: str
    write: Write = str
    numeric: bool = True
    empty: str = ""

    def value(self, row: Any) -> Any:
        """Return what an object of JSON holds under the key, None where nothing."""
        for name in self.key.split("."):
            row = row.get(name) if isinstance(row, Mapping) else None
        return row

    def cell(self, row: Any) -> str:
        """Return the value as text, safe to print."""
        value = self.value(row)
        return self.empty if value is None else one_line(self.write(value))


def words(title: str, key: str, write: Write = str) -> Column:
    """Return a column of words, for tables of dictionaries."""
    return Column(title, key, write, numeric=False)


def columns(*groups: Column | str | tuple[str, Write]) -> tuple[Column, ...]:
    """Return columns of "title=key, title=key, key": words or, with a way to write them, numbers.

    A key without a title is its own.
    """
    found = []
    for group in groups:
        if isinstance(group, Column):
            found.append(group)
            continue
        text, write = (group, str) if isinstance(group, str) else group
        for one in text.split(", "):
            title, _, key = one.partition("=")
            found.append(Column(title, key or title, write, numeric=not isinstance(group, str)))
    return tuple(found)


def within(key: str, inner: Iterable[Column]) -> list[Column]:
    """Return the same columns, of the object under `key`."""
    return [replace(one, key=f"{key}.{one.key}") for one in inner]


def fixed(digits: int) -> Write:
    """Write a float with `digits` decimals, and with more where that would leave only zeros."""

    def write(value: float) -> str:
        return f"{value:,.{digits}f}" if not 0 < abs(value) < 0.5 * 10**-digits else f"{value:.1e}"

    return write


def significant(digits: int) -> Write:
    """Write a float with `digits` digits that count, whatever its size, and none of it lost."""

    def write(value: float) -> str:
        size = math.floor(math.log10(abs(value))) if value else 0
        return f"{value:,.{max(0, digits - 1 - size)}f}"

    return write


def percent(value: float) -> str:
    """Write a share as a percentage."""
    return f"{value:.1%}"


def dimensions(value: list[int]) -> str:
    """Write a grid or block, without trailing ones."""
    kept = list(value)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))


def listed(value: list[str]) -> str:
    """Write words in one cell, "no" for none."""
    return ", ".join(value) or "no"


def short_error(value: float) -> str:
    """Write an error with one digit after the point."""
    return f"{value:.1e}"


def count(value: float) -> str:
    """Write a whole number."""
    return f"{value:,}"


STATUS_WORDS = {
    "right": "PASS",
    "wrong": "WRONG",
    "failed": "FAILED",
    "skipped": "skipped",
    "refused": "refused",
    "absent": "absent",
    "waiting": "not checked",
}


LAUNCH = columns(
    ("grid, block", dimensions),
    ("regs/thread=registers, shared B/block=shared_bytes, local B/thread=local_bytes", str),
    ("occup.=occupancy", percent),
    ("blocks/SM=blocks_per_sm", str),
    "limited by=limited_by",
    ("waves", fixed(2)),
)
"""The launch of a kernel's sums and what it takes of a multiprocessor."""
MACHINE = within(
    "machine",
    columns(
        ("SM MHz=sm_mhz, W=power_w, C=temperature_c", fixed(0)),
        words("throttled", "throttle", listed),
        ("uJ/image=energy_uj_per_image", fixed(2)),
    ),
)
"""A GPU while something ran on it."""
RATES = columns(
    ("TFLOP/s=tflops", significant(3)),
    ("GB/s=gbs", fixed(1)),
    ("of the roof=roofline", percent),
    "bound by=bound",
)
"""What was reached of the device, and what bounds it."""
TIMES = columns(("median ms=median_ms, p05 ms=p05_ms, p95 ms=p95_ms, p99 ms=p99_ms", fixed(3)))
"""The median of samples in ms, and their percentiles."""
RATIO = columns(("ratio, 95 % from=low, to=high", fixed(3)), "verdict")
"""A time over the baseline's with its interval, and what that says."""
STAGE = columns(
    "stage=name, variant", *TIMES, ("of the sum=share", percent), *RATES, *LAUNCH, *MACHINE
)
"""A stage of a plan, or a conversion between two, timed by itself."""
