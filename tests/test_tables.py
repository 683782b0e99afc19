"""Rows know their columns; tables keep what counts, whatever the width, and in every form."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

import pytest

from lenetgpu.lab.compare import COMPARED
from lenetgpu.lab.render import Table, show
from lenetgpu.lab.rows import Machine, Row, column, fixed, part, significant


@dataclass(frozen=True)
class Timed(Row):
    name: str = column("candidate")
    median_ms: float | None = column("median ms", fixed(3))
    machine: Machine = part(Machine, "machine")
    grid: list[int] | None = column("grid", lambda value: "x".join(map(str, value)))
    note: str | None = column("note")
    status: str = ""


ENTRY = {"name": "a|\x1b", "median_ms": 0.12349, "grid": [3, 2], "machine": {"power_w": 312.5},
         "status": "right", "else": 1}  # fmt: skip


def test_a_row_reads_an_object_of_json_and_every_form_shows_it():
    row = Timed.of(ENTRY, note="said")
    assert (row.status, row.machine.power_w, row.note) == ("right", 312.5, "said")
    table = Table(Timed, [row, Timed.of({"name": "b"})], "a title")
    assert [one.key for one in table.columns] == [
        "name", "median_ms", "machine.power_w", "grid", "note",
    ]  # fmt: skip
    assert table.markdown().splitlines() == [
        "| candidate | median ms | W | grid | note |",
        "|---|---:|---:|---:|---|",
        "| a|\\x1b | 0.123 | 312 | 3x2 | said |",
        "| b |  |  |  |  |",
    ]
    first, second = csv.DictReader(io.StringIO(table.csv()))
    assert first == {"name": "a|\\x1b", "median_ms": "0.12349", "machine.power_w": "312.5",
                     "grid": "3x2", "note": "said"}  # fmt: skip
    assert second["median_ms"] == ""
    assert table.cells(row)[:2] == [("a|\\x1b", None), ("0.123", 0.12349)]
    objects = Table(Timed, [{**ENTRY, "note": "said"}, {"name": "b"}])
    assert objects.csv() == table.csv()


def test_a_note_without_a_place_stands_below():
    rows = [
        Timed.of({"name": "a", "median_ms": 1.0, "note": "a sentence"}),
        Timed.of({"name": "b"}),
    ]
    table, printed = Table(Timed, rows, below="note"), []

    class Narrow:
        width = 12
        print = staticmethod(printed.append)

    show(Narrow, [table, "a line"])
    assert printed[1:] == ["a: a sentence", "a line"]
    assert table.notes(80) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0051, "0.00510"), (0.0049, "0.00490"), (1.234, "1.23"), (51.26, "51.3"), (1234.5, "1,234"),
     (0, "0.00"), (-2.5, "-2.50"), (99.96, "100.0")],
)  # fmt: skip
def test_three_digits_count_whatever_the_size(value, text):
    assert significant(3)(value) == text


def test_an_interval_has_both_its_ends_or_none():
    entry = {column.key: 1.0 for column in COMPARED if column.numeric}
    entry |= {"name": "fused.rows, again", "check": "PASS", "verdict": "undecided"}
    entry |= {"grid": [1, 1, 1], "block": [1, 1, 1], "label_flips": 0}
    table, seen = Table(COMPARED, [entry]), set()
    for width in range(40, 260):
        shown = {column.key for column in table.fitting(width)}
        assert ("low" in shown) == ("high" in shown)
        seen.add("low" in shown)
    assert seen == {True, False}
