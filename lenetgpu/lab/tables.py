"""Tables of results, for terminals, Markdown, CSV and HTML.

Measurements are JSON objects, and columns define how they are shown:

COMPARED = from_file("compared")    # lenetgpu/lab/columns.ini
print(Table(COMPARED, document["candidates"]).markdown())
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import one_line
from lenetgpu.ini import ini

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from lenetgpu.lab.console import Console

COLUMNS = Path(__file__).with_name("columns.ini")
Write = Callable[[Any], str] | str  # a function, or a format such as ".1%"
_WRAPPED_LEAST, _FOLDED_LEAST = 16, 9
_WRAPPED = ("explanation", "why", "note", "label", "found", "unsupported")


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


@dataclass(frozen=True)
class Table:
    """Rows (JSON objects) under columns; columns without values are left out.

    In print, the sentences of the column `below` follow the table.
    """

    every: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    below: str = ""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns that have values."""
        return tuple(
            c for c in self.every if c.empty or any(c.value(row) is not None for row in self.rows)
        )

    def cells(self, row: Any) -> list[tuple[str, float | None]]:
        """Return a row's texts, each with the unrounded number that sorts it on a page."""
        cells = []
        for column in self.columns:
            value = column.value(row)
            known = column.numeric and isinstance(value, int | float)
            cells.append((column.cell(row), float(value) if known else None))
        return cells

    def markdown(self) -> str:
        """Return a Markdown table."""
        rule = "|".join("---:" if column.numeric else "---" for column in self.columns)
        head = " | ".join(column.title for column in self.columns)
        rows = [" | ".join(column.cell(row) for column in self.columns) for row in self.rows]
        return f"| {head} |\n|{rule}|\n" + "".join(f"| {row} |\n" for row in rows)

    def csv(self) -> str:
        """Return CSV with keys as headings and unrounded values."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([one.key for one in self.columns])
        for row in self.rows:
            writer.writerow([_unrounded(one.value(row)) for one in self.columns])
        return text.getvalue()

    def fitting(self, width: int) -> tuple[Column, ...]:
        """Return the columns that fit in `width` characters; the least important are dropped."""
        fitting = [column for column in self.columns if column.key != self.below]
        for key in ini(COLUMNS)["first to go"]:
            if self._fits(fitting, width):
                break
            gone = ("low", "high") if key == "low" else (key,)  # an interval with one end misleads
            fitting = [column for column in fitting if column.key not in gone]
        for key in ini(COLUMNS)["last to go"]:
            if self._fits(fitting, width, fold=True):
                break
            fitting = [column for column in fitting if column.key != key]
        while len(fitting) > 2 and not self._fits(fitting, width, fold=True):
            fitting.pop()
        return tuple(fitting)

    def rich(self, width: int = 250) -> RichTable:
        """Return a table for a terminal; its caption names the columns too many for `width`."""
        from rich import box
        from rich.table import Table as Rich

        shown = self.fitting(width)
        left_out = [c.title for c in self.columns if c not in shown and c.key != self.below]
        table = Rich(
            title=one_line(self.title) or None,
            title_justify="left",
            caption=f"not shown for width: {', '.join(left_out)}" if left_out else None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        widths = {} if self._fits(shown, width) else self._widths(shown, width)
        for column in shown:
            table.add_column(
                column.title,
                justify="right" if column.numeric else "left",
                no_wrap=column.key not in (*widths, *_WRAPPED),
                min_width=widths.get(column.key),
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(in_lines(c.cell(row), widths.get(c.key)) for c in shown))
        return table

    def notes(self) -> list[str]:
        """Return the sentences of the `below` column, one per row that has one."""
        notes = [column for column in self.columns if column.key == self.below]
        if not notes:
            return []
        word = "" if notes[0].title == "note" else f"{notes[0].title}: "
        texts = [(self.columns[0].cell(row), notes[0].cell(row)) for row in self.rows]
        return [f"{name}: {word}{text}" for name, text in texts if text]

    def _needed(self, column: Column, fold: bool = False) -> int:
        """Return the width of a column plus its gap; `fold` allows several lines per cell."""
        widest = max((len(column.cell(row)) for row in self.rows), default=0)
        if column.key in _WRAPPED:
            widest = min(widest, _WRAPPED_LEAST)
        width = max(len(column.title), widest)
        return (min(width, _FOLDED_LEAST) if fold and not column.numeric else width) + 2

    def _fits(self, columns: Sequence[Column], width: int, fold: bool = False) -> bool:
        return sum(self._needed(column, fold) for column in columns) + 1 <= width

    def _widths(self, columns: Sequence[Column], width: int) -> dict[str, int]:
        """Return the width of each text column, shortening the widest first."""
        texts = [column for column in columns if not column.numeric]
        numbers = sum(self._needed(column) for column in columns if column.numeric)
        available = width - 1 - numbers - 2 * len(texts)
        widths = {c.key: max(map(len, (c.title, *map(c.cell, self.rows)))) for c in texts}
        while sum(widths.values()) > available and max(widths.values()) > _FOLDED_LEAST:
            widths[max(widths, key=lambda key: widths[key])] -= 1
        return widths


Part = Table | str | Any  # a table, a line, or any object that Rich prints


def show(console: Console, parts: Iterable[Part]) -> None:
    """Print tables, each with its notes, and lines."""
    for part in parts:
        if isinstance(part, Table):
            console.print(part.rich(console.width))
            for line in part.notes():
                console.print(line)
        else:
            console.print(part)


def in_lines(text: str, most: int | None) -> str:
    """Return `text` in lines of `most` characters; names are broken after a joint."""
    if most is None:
        return text
    lines = [""]
    for piece in re.split(r"(?<=[\s+_])|(?<=\.)(?=[a-z])", text):
        if len(lines[-1]) + len(piece.rstrip()) > most:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines if line)


def _unrounded(value: Any) -> Any:
    """Return a value for a CSV cell: a number unrounded, dimensions as 32x8, text as printed."""
    if isinstance(value, list):
        texts = not value or isinstance(value[0], str)
        value = listed(value) if texts else "x".join(map(str, value))
    return "" if value is None else one_line(value) if isinstance(value, str) else value
