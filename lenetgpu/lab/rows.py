"""Typed rows: what a command measures, as dataclasses that know their columns.

    @dataclass(frozen=True)
    class Timed(Row):
        name: str = column("candidate")
        median_ms: float | None = column("median ms", fixed(3))
        launch: Launch = part(Launch)                  # its keys beside those of this row
        machine: Machine = part(Machine, "machine")    # its keys within the object "machine"

    rows = [Timed.of(entry) for entry in document["candidates"]]
    print(Table(Timed, rows).markdown())               # lenetgpu/lab/render.py

A field's name is its key in JSON and CSV; the annotation says whether it holds words, which stand
left, or numbers; `column` gives the title and how a value is written. A field without `column` is
kept and not shown. `of` reads an object of JSON, what it lacks is None; words beside it come first.

A table that needs no type of its own has a list of `Column` and dictionaries for rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import one_line

if TYPE_CHECKING:
    from typing import Self

Write = Callable[[Any], str]
_WORDS = ("str", "list[str]", "bool")


@dataclass(frozen=True)
class Column:
    """A title, the key of the value, and how the value is written; `empty` stands for none."""

    title: str
    key: str
    write: Write = str
    numeric: bool = True
    empty: str = ""
    path: tuple[str, ...] = ()
    """Attributes that lead to the value in a Row; the parts of the key where there are none."""

    def value(self, row: Any) -> Any:
        """Return what a Row or an object of JSON holds under the key, None where nothing."""
        names = self.key.split(".") if isinstance(row, Mapping) else self.path
        for name in names or self.key.split("."):
            row = row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)
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
    return [replace(one, key=f"{key}.{one.key}", path=()) for one in inner]


def column(title: str, write: Write = str, key: str = "", empty: str = "") -> Any:
    """Return a field of a Row that is shown; `key` where its name cannot be that."""
    return field(default=None, metadata={"title": title, "how": (write, key, empty)})


def part(kind: type[Row], within: str = "") -> Any:
    """Return a field of a Row that is another Row, of the same object or of the one `within` it."""
    return field(default=None, metadata={"part": kind, "within": within})


@dataclass(frozen=True)
class Row:
    """A row of a table; its fields are columns in the order in which they stand."""

    @classmethod
    def of(cls, entry: Mapping[str, Any], **more: Any) -> Self:
        """Return the row of an object of JSON, `more` before what that says."""
        values, found = {**entry, **more}, {}
        for one in fields(cls):
            kind, within = one.metadata.get("part"), one.metadata.get("within")
            if kind is not None:
                found[one.name] = kind.of((values.get(within) or {}) if within else values)
            else:
                found[one.name] = _at(values, _key(one))
        return cls(**found)

    @classmethod
    def columns(cls) -> tuple[Column, ...]:
        """Return the columns, those of parts at the parts' places."""
        return _columns(cls)


def _columns(kind: type[Row]) -> tuple[Column, ...]:
    found: list[Column] = []
    for one in fields(kind):
        inner = one.metadata.get("part")
        if inner is not None:
            prefix = f"{one.metadata['within']}." if one.metadata["within"] else ""
            found += [
                Column(c.title, prefix + c.key, c.write, c.numeric, c.empty, (one.name, *c.path))
                for c in _columns(inner)
            ]
        elif "title" in one.metadata:
            write, _, empty = one.metadata["how"]
            numeric = not str(one.type).startswith(_WORDS)
            title = one.metadata["title"]
            found.append(Column(title, _key(one), write, numeric, empty, (one.name,)))
    return tuple(found)


def _key(one: Any) -> str:
    return str(one.metadata.get("how", ("", "", ""))[1] or one.name)


def _at(row: Any, key: str) -> Any:
    for name in key.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


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


@dataclass(frozen=True)
class Launch(Row):
    """The launch of a kernel's sums and what it takes of a multiprocessor."""

    grid: list[int] | None = column("grid", dimensions)
    block: list[int] | None = column("block", dimensions)
    registers: int | None = column("regs/thread")
    shared_bytes: int | None = column("shared B/block")
    local_bytes: int | None = column("local B/thread")
    occupancy: float | None = column("occup.", percent)
    blocks_per_sm: int | None = column("blocks/SM")
    limited_by: str | None = column("limited by")
    waves: float | None = column("waves", fixed(2))


@dataclass(frozen=True)
class Machine(Row):
    """A GPU while something ran on it."""

    sm_mhz: float | None = column("SM MHz", fixed(0))
    power_w: float | None = column("W", fixed(0))
    temperature_c: float | None = column("C", fixed(0))
    throttle: list[str] | None = column("throttled", listed)
    energy_uj_per_image: float | None = column("uJ/image", fixed(2))


@dataclass(frozen=True)
class Rates(Row):
    """What was reached of the device, and what bounds it."""

    tflops: float | None = column("TFLOP/s", significant(3))
    gbs: float | None = column("GB/s", fixed(1))
    roofline: float | None = column("of the roof", percent)
    bound: str | None = column("bound by")


@dataclass(frozen=True)
class Times(Row):
    """The median of samples in ms, and their percentiles."""

    median_ms: float | None = column("median ms", fixed(3))
    p05_ms: float | None = column("p05 ms", fixed(3))
    p95_ms: float | None = column("p95 ms", fixed(3))
    p99_ms: float | None = column("p99 ms", fixed(3))


@dataclass(frozen=True)
class Ratio(Row):
    """A time over the baseline's with its interval, and what that says."""

    ratio: float | None = column("ratio", fixed(3))
    low: float | None = column("95 % from", fixed(3))
    high: float | None = column("to", fixed(3))
    verdict: str | None = column("verdict")


@dataclass(frozen=True)
class Stage(Row):
    """A stage of a plan, or a conversion between two, timed by itself."""

    name: str = column("stage")
    variant: str = column("variant")
    times: Times = part(Times)
    share: float | None = column("of the sum", percent)
    rates: Rates = part(Rates)
    launch: Launch = part(Launch)
    machine: Machine = part(Machine, "machine")
