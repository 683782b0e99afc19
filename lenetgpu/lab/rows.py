"""Columns of tables: measurements are JSON objects, and columns define how they are shown.

COMPARED = from_file("compared")    # lenetgpu/lab/columns.ini
print(Table(COMPARED, document["candidates"]).markdown())    # lenetgpu/lab/render.py
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.errors import one_line
from lenetgpu.ini import ini

COLUMNS = Path(__file__).with_name("columns.ini")
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


def from_file(name: str, **own: Callable[[Any], str]) -> tuple[Column, ...]:
    """Return the columns of a table of columns.ini; `own` are formatters that only it names."""
    formatters: dict[str, Write] = {"dimensions": dimensions, "listed": listed, "plain": str, **own}
    result: list[Column] = []
    for title, text in ini(COLUMNS)[name].items():
        if title.startswith("*"):
            result += from_file(title[1:])
            continue
        key, _, form = (text or title).partition(" | ")
        kind, _, detail = form.partition(" ")
        write = formatters.get(detail or kind, form or str)
        if kind in ("fixed", "significant"):
            write = (fixed if kind == "fixed" else significant)(int(detail))
        result.append(Column(title, key, write, numeric=kind not in ("", "words")))
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


LAUNCH, RATES, TIMES, RATIO, STAGE = map(from_file, ("launch", "rates", "times", "ratio", "stage"))
