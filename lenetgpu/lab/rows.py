"""Columns of tables: measurements are JSON objects, and columns define how they are shown.

TIMED = columns("candidate=name", ("median ms=median_ms, to=high", fixed(3)), *LAUNCH)
print(Table(TIMED, document["candidates"]).markdown())    # lenetgpu/lab/render.py
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lenetgpu.errors import one_line

Write = Callable[[Any], str] | str  # a function, or a format such as ".1%"


@dataclass(frozen=True)
class Column:
    """A title, the key of the value, dots leading into nested objects, and its formatter."""

    title: str
    key: str
    write: Write = str
    numeric: bool = True
    empty: str = ""

    def value(self, row: Any) -> Any:
        """Return the value of a JSON object under the key, or None."""
        for name in self.key.split("."):
            row = row.get(name) if isinstance(row, Mapping) else None
        return row

    def cell(self, row: Any) -> str:
        """Return the value as text that is safe to print."""
        value, write = self.value(row), self.write
        if value is None:
            return self.empty
        return one_line(format(value, write) if isinstance(write, str) else write(value))


def columns(*groups: Column | str | tuple[str, Write]) -> tuple[Column, ...]:
    """Return columns of "title=key, title=key, key": text or, with a formatter, numbers."""
    result = []
    for group in groups:
        if isinstance(group, Column):
            result.append(group)
            continue
        text, write = (group, str) if isinstance(group, str) else group
        for column in text.split(", "):
            title, _, key = column.partition("=")
            result.append(Column(title, key or title, write, numeric=not isinstance(group, str)))
    return tuple(result)


def fixed(digits: int) -> Write:
    """Return a formatter with `digits` decimals, or more if those would all be zeros."""

    def write(value: float) -> str:
        return f"{value:,.{digits}f}" if not 0 < abs(value) < 0.5 * 10**-digits else f"{value:.1e}"

    return write


def significant(digits: int) -> Write:
    """Return a formatter with `digits` significant digits at any magnitude."""

    def write(value: float) -> str:
        size = math.floor(math.log10(abs(value))) if value else 0
        return f"{value:,.{max(0, digits - 1 - size)}f}"

    return write


def dimensions(value: list[int]) -> str:
    """Format a grid or block without trailing ones."""
    used = [at for at, size in enumerate(value) if size != 1]
    return "x".join(map(str, value[: max(used, default=0) + 1]))


def listed(value: list[str]) -> str:
    """Join words in one cell, "no" if there are none."""
    return ", ".join(value) or "no"


_STATUS_WORDS = {"right": "PASS", "wrong": "WRONG", "failed": "FAILED", "waiting": "not checked"}


def status_word(row: Mapping[str, Any]) -> str:
    """Return the status of a row in the words of tables."""
    status: str = row["status"]
    return _STATUS_WORDS.get(status, status)


# The launch of a variant's main kernels, their multiprocessor resources, and the GPU's state
LAUNCH = columns(
    ("grid, block", dimensions),
    ("regs/thread=registers, shared B/block=shared_bytes, local B/thread=local_bytes", str),
    ("occup.=occupancy", ".1%"),
    ("blocks/SM=blocks_per_sm", str),
    "limited by=limited_by",
    ("waves", fixed(2)),
    ("SM MHz=machine.sm_mhz, W=machine.power_w, C=machine.temperature_c", fixed(0)),
    Column("throttled", "machine.throttle", listed, numeric=False),
    ("uJ/image=machine.energy_uj_per_image", fixed(2)),
)
# The rates reached on the device, and the bound
RATES = columns(
    ("TFLOP/s=tflops", significant(3)),
    ("GB/s=gbs", fixed(1)),
    ("of the roof=roofline", ".1%"),
    "bound by=bound",
)
# The median of the samples and their percentiles, in ms
TIMES = columns(("median ms=median_ms, p05 ms=p05_ms, p95 ms=p95_ms, p99 ms=p99_ms", fixed(3)))
# The ratio to the baseline's time, its interval, and the verdict
RATIO = columns(("ratio, 95 % from=low, to=high", fixed(3)), "verdict")
# A stage of a plan, or a layout conversion, timed by itself
STAGE = columns("stage=name, variant", *TIMES, ("of the sum=share", ".1%"), *RATES, *LAUNCH)
