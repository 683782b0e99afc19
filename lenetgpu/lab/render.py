"""Tables for terminals, Markdown, CSV and HTML, with lines of text between them.

A command's results are a list of parts: `Table`s, and lines of text. `show` prints them;
`Table.markdown`, `Table.csv` and `Table.cells` (HTML) write one table.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import one_line
from lenetgpu.lab.rows import Column, listed

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from lenetgpu.lab.console import Console

_WRAPPED_LEAST, _FOLDED_LEAST = 16, 9
_WRAPPED = ("explanation", "why", "note", "label", "found", "unsupported")
_FIRST_TO_GO = (
    "command machine.temperature_c machine.power_w shared_bytes local_bytes registers grid block "
    "occupancy limited_by blocks_per_sm waves p05_ms p95_ms p99_ms p05_us p95_us p99_us method "
    "layout bound gbs low high label_flips machine.sm_mhz precision machine.energy_uj_per_image "
    "tflops share roofline gflop images baseline_us note explanation machine.throttle "
    "relative_error"
)
# Columns dropped if folded words do not fit either; a name, its check and its time always stay
_LAST_TO_GO = "speedup verdict table section label paper images_per_second"


@dataclass(frozen=True)
class Table:
    """Rows (JSON objects) under columns.

    Columns without values are left out. `below` is the key of a column of sentences: if the
    terminal is too narrow for it, the sentences follow the table, each with its row's first
    cell.
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
        found = []
        for one in self.columns:
            value = one.value(row)
            known = one.numeric and isinstance(value, int | float)
            found.append((one.cell(row), float(value) if known else None))
        return found

    def markdown(self) -> str:
        """Return a Markdown table."""
        rule = "|".join("---:" if one.numeric else "---" for one in self.columns)
        lines = [[one.title for one in self.columns]]
        lines += [[one.cell(row) for one in self.columns] for row in self.rows]
        head, *rest = (f"| {' | '.join(line)} |\n" for line in lines)
        return "".join([head, f"|{rule}|\n", *rest])

    def csv(self) -> str:
        """Return CSV with keys as headings and unrounded values."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([one.key for one in self.columns])
        for row in self.rows:
            writer.writerow([_unrounded(one.value(row)) for one in self.columns])
        return text.getvalue()

    def fitting(self, width: int) -> tuple[Column, ...]:
        """Return the columns that fit in `width` characters, dropping _FIRST_TO_GO in order.

        If that is not enough, words are folded, then the _LAST_TO_GO columns are dropped,
        then the rightmost columns.
        """
        kept = list(self.columns)
        for key in _FIRST_TO_GO.split():
            if self._hold(kept, width):
                break
            gone = ("low", "high") if key == "low" else (key,)  # an interval with one end misleads
            kept = [one for one in kept if one.key not in gone]
        for key in _LAST_TO_GO.split():
            if self._hold(kept, width, fold=True):
                break
            kept = [one for one in kept if one.key != key]
        while len(kept) > 2 and not self._hold(kept, width, fold=True):
            kept.pop()
        return tuple(kept)

    def rich(self, width: int = 250) -> RichTable:
        """Return a table for a terminal; its caption names the columns too many for `width`."""
        from rich import box
        from rich.table import Table as Rich

        shown = self.fitting(width)
        left_out = [one.title for one in self.columns if one not in shown]
        table = Rich(
            title=one_line(self.title) or None,
            title_justify="left",
            caption=f"not shown for width: {', '.join(left_out)}" if left_out else None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        wide = {} if self._hold(shown, width) else self._widths(shown, width)
        for one in shown:
            table.add_column(
                one.title,
                justify="right" if one.numeric else "left",
                no_wrap=one.key not in (*wide, *_WRAPPED),
                min_width=wide.get(one.key),
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(in_lines(one.cell(row), wide.get(one.key)) for one in shown))
        return table

    def notes(self, width: int) -> list[str]:
        """Return the sentences of the `below` column if it does not fit in `width`, one per row."""
        if not self.below or self.below in [one.key for one in self.fitting(width)]:
            return []
        every = {one.key: one for one in self.columns}
        if self.below not in every:
            return []
        one = every[self.below]
        word = "" if one.title == "note" else f"{one.title}: "
        found = [(self.columns[0].cell(row), one.cell(row)) for row in self.rows]
        return [f"{name}: {word}{said}" for name, said in found if said]

    def _needed(self, one: Column, fold: bool = False) -> int:
        """Return the width of a column plus its gap; `fold` allows several lines per cell."""
        widest = max((len(one.cell(row)) for row in self.rows), default=0)
        if one.key in _WRAPPED:
            widest = min(widest, _WRAPPED_LEAST)
        found = max(len(one.title), widest)
        return (min(found, _FOLDED_LEAST) if fold and not one.numeric else found) + 2

    def _hold(self, columns: Sequence[Column], width: int, fold: bool = False) -> bool:
        return sum(self._needed(one, fold) for one in columns) + 1 <= width

    def _widths(self, columns: Sequence[Column], width: int) -> dict[str, int]:
        """Return the width of each text column, shortening the widest first."""
        texts = [one for one in columns if not one.numeric]
        numbers = sum(self._needed(one) for one in columns if one.numeric)
        available = width - 1 - numbers - 2 * len(texts)
        found = {one.key: max(map(len, (one.title, *map(one.cell, self.rows)))) for one in texts}
        while sum(found.values()) > available and max(found.values()) > _FOLDED_LEAST:
            found[max(found, key=lambda key: found[key])] -= 1
        return found


Part = Table | str | Any  # a table, a line, or any object that Rich prints


def show(console: Console, parts: Iterable[Part]) -> None:
    """Print tables, each with its notes, and lines."""
    for one in parts:
        if isinstance(one, Table):
            console.print(one.rich(console.width))
            for line in one.notes(console.width):
                console.print(line)
        else:
            console.print(one)


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
