"""What a page is made of: sections of charts, tables and pictures, each with where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lenetgpu.lab.show.tables import Column, used

Document = dict[str, Any]
"""What `commands/report_shapes.py` kept of a file; `label` is the file's name."""
_DIGITS = 6


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite `spec`; `title` says what is drawn, and stands above it.

    A `wide` one stands alone, others side by side where there is room.
    """

    title: str
    spec: dict[str, Any]
    wide: bool = False
    kind: str = "chart"

    @property
    def empty(self) -> bool:
        """Whether it has nothing to draw: an axis without a value has no ends."""
        layers = [self.spec, *self.spec.get("layer", ())]
        return not any(layer["data"]["values"] for layer in layers if "data" in layer)


@dataclass(frozen=True)
class Cell:
    """A value as it is shown, and `key`, the unrounded number that it is sorted by."""

    shown: str
    key: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows to sort and filter; columns in which no row has a value are left out."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[dict[str, Any]]
    kind: str = "table"

    @cached_property
    def shown(self) -> tuple[Column, ...]:
        """The columns that have values."""
        return used(self.columns, list(self.rows))

    def cells(self, row: dict[str, Any]) -> list[Cell]:
        """A row as it is shown."""
        return [Cell(column.cell(row), _key(column, row)) for column in self.shown]


def _key(column: Column, row: dict[str, Any]) -> float | None:
    value = column.value(row)
    known = column.numeric and isinstance(value, int | float)
    return float(value) if known else None


@dataclass(frozen=True)
class Tile:
    """One figure in large: its value, what it is, and where it is from."""

    value: str
    what: str
    source: str


@dataclass(frozen=True)
class Tiles:
    """The figures to read first."""

    tiles: list[Tile]
    kind: str = "tiles"


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    title: str
    values: dict[str, str]
    kind: str = "facts"


@dataclass(frozen=True)
class Drawing:
    """Markup of our own: a picture of `pipeline.py`, digits of another page's template."""

    title: str
    markup: Any
    kind: str = "drawing"


Part = Chart | Table | Tiles | Facts | Drawing


@dataclass(frozen=True)
class Block:
    """Parts that one line tells the origin of; several charts stand side by side."""

    parts: Sequence[Part]
    source: str = ""
    note: str = ""


@dataclass
class Section:
    """A heading with what stands below it; left out where there are no blocks."""

    anchor: str
    title: str
    lead: str
    blocks: list[Block] = field(default_factory=list)


def of_command(documents: Sequence[Document], *commands: str) -> list[Document]:
    """The documents of these commands, in the order that they were given."""
    return [document for document in documents if document["command"] in commands]


def short(value: float, digits: int = _DIGITS) -> str:
    """A number in a few digits, as 0.0661 or 10,000."""
    return f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"
