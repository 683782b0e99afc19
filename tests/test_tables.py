"""Tables keep the important columns at any width and in every format."""

import csv
import io

import pytest

from lenetgpu.lab import rows
from lenetgpu.lab.compare import COMPARED
from lenetgpu.lab.render import Table, show
from lenetgpu.lab.rows import columns, dimensions, fixed, significant

TIMED = columns(
    "candidate=name",
    ("median ms=median_ms", fixed(3)),
    *columns(("W=machine.power_w", fixed(0))),
    ("grid", dimensions),
    "note",
)
ENTRY = {"name": "a|\x1b", "median_ms": 0.12349, "grid": [3, 2], "machine": {"power_w": 312.5},
         "status": "right", "else": 1}  # fmt: skip


@pytest.mark.parametrize("name", rows.ini(rows.COLUMNS).sections())
def test_formats_in_the_file_of_columns_are_known(name):
    own = dict.fromkeys(("between", "rounded", "yes_or_no", "shortened", "stalls"), str)
    for column in rows.from_file(name, **own):
        assert callable(column.write) or name == "tooltips" or format(1, column.write)
        assert column.numeric or callable(column.write)


def test_every_format_shows_nested_json_objects():
    row = ENTRY | {"note": "said"}
    table = Table(TIMED, [row, {"name": "b", "machine": None}], "a title")
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


def test_note_that_does_not_fit_is_shown_below():
    rows = [{"name": "a", "median_ms": 1.0, "note": "a sentence"}, {"name": "b"}]
    table, printed = Table(TIMED, rows, below="note"), []

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
def test_three_significant_digits_at_any_magnitude(value, text):
    assert significant(3)(value) == text


def test_interval_has_both_ends_or_none():
    entry = {column.key: 1.0 for column in COMPARED if column.numeric}
    entry |= {"name": "fused.rows, again", "check": "PASS", "verdict": "undecided"}
    entry |= {"grid": [1, 1, 1], "block": [1, 1, 1], "label_flips": 0}
    table, seen = Table(COMPARED, [entry]), set()
    for width in range(40, 260):
        shown = {column.key for column in table.fitting(width)}
        assert ("low" in shown) == ("high" in shown)
        seen.add("low" in shown)
    assert seen == {True, False}
