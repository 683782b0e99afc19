"""Tables and lists at any width and in every format; terminals without colours or Unicode."""

import csv
import io
import json
import re
from itertools import groupby

import pytest
from rich.console import Console as Rich
from terminal import in_terminal, python, run, surroundings, without_escapes

from lenetgpu.gpu.device import Gpu
from lenetgpu.ini import ini
from lenetgpu.lab import console as progress
from lenetgpu.lab import listing, tables
from lenetgpu.lab.compare import COMPARED, COUNTED, COURSE, LAYOUTS, STEPS
from lenetgpu.lab.console import folded
from lenetgpu.lab.conv.document import CONVOLVED, EXPLAINED, SUMMED
from lenetgpu.lab.conv.document import STEPS as CONV_STEPS
from lenetgpu.lab.listing import matrix_lines, variant_lines
from lenetgpu.stages import variants
from lenetgpu.stages.matrix import cells
from lenetgpu.stages.registry import KINDS, SPAN_KINDS

TYPES = {
    "compared": COMPARED, "course": COURSE, "layouts": LAYOUTS, "counted": COUNTED, "steps": STEPS,
    "stage": tables.STAGE, "convolved": CONVOLVED, "summed": SUMMED, "explained": EXPLAINED,
    "conv steps": CONV_STEPS,
}  # fmt: skip
NARROW = {
    "infer": ["infer", "--limit", "20", "--timing", "--device", "cpu", "--plan", "tiled"],
    "compare": ["compare", "pool2", "--batch", "20", "--rounds", "5", "--device", "cpu"],
    "matrix": ["variants", "conv", "--matrix"],
    "doctor": ["doctor"],
}


def row_of(columns):
    """Return a row with a value of the largest size in every column."""
    row = {}
    for index, column in enumerate(columns):
        parts = column.key.split(".")
        value = 12345.678 + index if column.numeric else f"winograd.part_{index} of it"
        if column.write is tables.dimensions:
            value = [10, 20 + index]
        if column.write is tables.listed:
            value = ["power"]
        inner = row.setdefault(parts[0], {}) if len(parts) > 1 else row
        inner[parts[-1]] = value
    return row


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_numbers_are_not_broken_at_any_width(kind):
    table = tables.Table(kind, [row_of(kind)], "a table")
    for width in (30, 40, 60, 100):
        shown = table.fitting(width)
        written = io.StringIO()
        Rich(file=written, width=width).print(table.rich(width))
        lines = written.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        head = next(at for at, line in enumerate(lines) if "\u2500" in line)
        assert "\u2026" not in written.getvalue()
        printed = [word for line in lines[head:] for word in line.split()]
        cells = [c.cell(table.rows[0]) for c in shown if c.numeric]
        assert [cell for cell in cells if cell not in printed] == []
        assert len(shown) >= 2


def test_names_break_after_a_separator():
    assert tables.in_lines("conv1+pool1+conv2", 12) == "conv1+pool1+\nconv2"
    assert tables.in_lines("unrolled.image_layout", 15) == "unrolled.image_\nlayout"
    assert tables.in_lines("a 0.14 M", 4) == "a\n0.14\nM"


@pytest.mark.parametrize("width", [24, 40, 60])
def test_lines_are_folded_between_words(width):
    text = "plan     auto, fp32: conv1=direct.basic, 1,234.56 ms (95 % from 0.123 to 45.678)"
    lines = folded(text, width).split("\n")
    assert max(map(len, lines)) <= width and " ".join(" ".join(lines).split()) == " ".join(
        text.split()
    )
    indent = 9 if width > 27 else 2
    assert all(line.startswith(" " * indent) and line[indent] != " " for line in lines[1:])
    assert folded(text, 200) == text


def test_matrix_becomes_a_list_if_too_narrow():
    lines = ["".join(text for text, _ in line) for line in matrix_lines(cells(), 40)]
    assert max(map(len, lines)) <= 40
    at = lines.index("cuda argmax")
    assert lines[at + 1 : at + 6] == [
        "  serial   loops*", "  tiled    shared", "  unrolled pairs", "  cublas   idamax",
        "  fft      refused",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_narrow_output_without_colours(name):
    """NO_COLOR: no escape code on stdout or stderr, including progress."""
    width = 40
    written = in_terminal(width, *NARROW[name], NO_COLOR="1")
    assert "\x1b" not in written and "\u2026" not in written
    if name == "infer":
        assert "\rimages, all passes" in written  # progress rewrites its line
        assert "all passes 100%" not in written  # some work always follows
    lines = [line.rpartition("\r")[2] for line in written.splitlines()]
    # words longer than a line cannot be broken
    assert [line for line in lines if len(line) > width and " " in line.strip()] == []


def test_terminal_gets_bold_text_and_progress_bar():
    words = [
        "3000" if word == "20" else word for word in NARROW["infer"]
    ]  # long enough for progress
    written = in_terminal(80, *words)
    assert "\x1b[1maccuracy" in written and "images, all passes" in written


@pytest.mark.parametrize("name", ["infer", "matrix"])
def test_ascii_terminal_gets_ascii_only(name):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    written = in_terminal(60, *NARROW[name], NO_COLOR="1", **plain)
    assert written.isascii() and not re.search(r"\\[ux]", written)


def piped(name, **environment):
    done = python("-m", "lenetgpu", *NARROW[name], env=surroundings(**environment))
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_pipe_gets_whole_lines_and_no_progress():
    out, err = piped("infer", COLUMNS="40")
    assert err == "" and "\x1b" not in out and "\r" not in out
    assert "p95 ms" in out and "not shown" not in out
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    assert max(map(len, out.splitlines())) > 100


def test_colours_can_be_forced_and_disabled():
    forced, _ = piped("matrix", FORCE_COLOR="1")
    assert "\x1b[1m" in forced and "\x1b[32m" in forced
    assert "\x1b" not in piped("matrix", FORCE_COLOR="1", NO_COLOR="1")[0]
    assert "\x1b" not in piped("matrix", FORCE_COLOR="1", TERM="dumb")[0]
    assert "\x1b" not in piped("matrix")[0]


@pytest.mark.parametrize("rate", [True, False])
@pytest.mark.parametrize("width", [40, 60, 80])
def test_progress_fits_the_width(width, rate):
    screen = Rich(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    with progress._bar(screen, rate) as bar:
        task = bar.add_task("images, all passes", total=1_234_567)
        bar.update(task, completed=123_456)
        bar.refresh()
    frames = re.findall(r"images, all passes[^\r\n\x1b]*", screen.file.getvalue())
    assert any("123,456/1,234,567" in frame for frame in frames)
    assert not any("\u2026" in frame or len(frame) > width for frame in frames)


TIMED = tables.columns(
    "candidate=name",
    ("median ms=median_ms", tables.fixed(3)),
    *tables.columns(("W=machine.power_w", tables.fixed(0))),
    ("grid", tables.dimensions),
    "note",
)
ENTRY = {"name": "a|\x1b", "median_ms": 0.12349, "grid": [3, 2], "machine": {"power_w": 312.5},
         "status": "right", "else": 1}  # fmt: skip


@pytest.mark.parametrize("name", ini(tables.COLUMNS))
def test_formats_in_the_file_of_columns_are_known(name):
    own = dict.fromkeys(("between", "rounded", "yes_or_no", "shortened", "stalls", "share"), str)
    for column in tables.from_file(name, **own):
        assert callable(column.write) or name == "tooltips" or format(1, column.write)
        assert column.numeric or callable(column.write)


def test_every_format_shows_nested_json_objects():
    row = ENTRY | {"note": "said"}
    table = tables.Table(TIMED, [row, {"name": "b", "machine": None}], "a title")
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


def test_notes_are_shown_below_the_table():
    rows = [{"name": "a", "median_ms": 1.0, "note": "a sentence"}, {"name": "b"}]
    table, printed = tables.Table(TIMED, rows, below="note"), []

    class Narrow:
        width = 12
        print = staticmethod(printed.append)

    tables.show(Narrow, [table, "a line"])
    assert printed[1:] == ["a: a sentence", "a line"]
    assert [column.title for column in table.fitting(250)] == [c.title for c in table.columns[:-1]]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0051, "0.00510"), (0.0049, "0.00490"), (1.234, "1.23"), (51.26, "51.3"), (1234.5, "1,234"),
     (0, "0.00"), (-2.5, "-2.50"), (99.96, "100.0")],
)  # fmt: skip
def test_three_significant_digits_at_any_magnitude(value, text):
    assert tables.significant(3)(value) == text


def test_interval_has_both_ends_or_none():
    entry = {column.key: 1.0 for column in COMPARED if column.numeric}
    entry |= {"name": "fused.rows, again", "check": "PASS", "verdict": "undecided"}
    entry |= {"grid": [1, 1, 1], "block": [1, 1, 1], "label_flips": 0}
    table, seen = tables.Table(COMPARED, [entry]), set()
    for width in range(40, 260):
        shown = {column.key for column in table.fitting(width)}
        assert ("low" in shown) == ("high" in shown)
        seen.add("low" in shown)
    assert seen == {True, False}


WIDTHS = (60, 140)
_NEEDS = "a GPU of compute capability "
LACKING = {
    None: {"a GPU"},
    75: {f"{_NEEDS}8.0 or later", f"{_NEEDS}9.0"},
    90: set(),
    100: {f"{_NEEDS}9.0"},
}
ROW = re.compile(r"([* ]) (\S+\.\S+) +(cpu|cuda \d+\.\d(?: only)?) +(\w+)(?:  .*)?$")


def lines_at(width, stage=None):
    return [text for [(text, _)] in variant_lines(*listing.table_rows(stage), width)]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_variant_is_a_row_within_the_width(width):
    lines = lines_at(width)
    assert max(map(len, lines)) <= width
    rows = [found for line in lines if (found := ROW.match(line))]
    listed = [v for v in variants() if v.kind in (*KINDS, *SPAN_KINDS)]
    assert sorted(row[2] for row in rows) == sorted(v.full_name for v in listed)
    words = " ".join(" ".join(lines).split())
    for v in listed:
        assert f"{v.needs}" in [row[3] for row in rows if row[2] == v.full_name]
        assert v.summary in words
    assert not any(line != line.rstrip() for line in lines)


def test_descriptions_are_shown_where_they_fit():
    narrow, wide = lines_at(60, "argmax"), lines_at(140, "argmax")
    scan = "One thread scans the scores of one image."
    assert f"    {scan}" in narrow
    assert any(ROW.match(line) and scan in line for line in wide)
    assert "report 3.3.1" in "".join(wide)
    assert "report 3.3.1" not in "".join(narrow)


def test_variants_are_grouped_by_kind_and_family():
    rows, _ = listing.table_rows()
    for keys in (
        [row["kind"] for row in rows],
        [(row["kind"], row["variant"].split(".")[0]) for row in rows],
    ):
        runs = [key for key, _ in groupby(keys)]
        assert len(runs) == len(set(runs))
    headings = [line for line in lines_at(80) if line and line[0] not in " *"]
    assert headings[0] == "conv: conv1, conv2"
    assert [line.partition(":")[0] for line in headings] == [*KINDS, *SPAN_KINDS]


def test_variants_are_ordered_from_naive_to_fast():
    order = "serial.loops direct.basic direct.tight direct.four_maps unrolled.naive cublas.im2col"
    order = f"{order} convnet2.rolled winograd.f2 winograd.f4".split()
    names = [row["variant"] for row in listing.table_rows("conv")[0]]
    assert [name for name in names if name in order] == order


@pytest.mark.parametrize(
    ("capability", "marked"),
    [(None, {"cpu"}), (75, {"cpu", "cuda 7.5"}),
     (90, {"cpu", "cuda 7.5", "cuda 8.0", "cuda 9.0 only"}),
     (100, {"cpu", "cuda 7.5", "cuda 8.0"})],
)  # fmt: skip
def test_supported_variants_are_marked(capability, marked, monkeypatch):
    gpu = None if capability is None else Gpu(0, "NVIDIA Test", capability)
    monkeypatch.setattr(listing, "choose_device", lambda wanted: (gpu, "no NVIDIA GPU found"))
    lines = lines_at(80)
    rows = [found for line in lines if (found := ROW.match(line))]
    assert {row[3] for row in rows if row[1] == "*"} == marked
    assert not marked & {row[3] for row in rows if row[1] == " "}
    lacks = {row["lacks"] for row in listing.variant_rows()} - {None}
    assert lacks == LACKING[capability]
    machine = "cpu (no NVIDIA GPU found)" if gpu is None else "cpu and NVIDIA Test, cuda"
    legend = " ".join(" ".join(lines).split()).partition("* runs on this machine: ")[2]
    assert legend.startswith(machine) and ("the others require" in legend) == bool(lacks)
    assert all(what in legend for what in lacks)


def test_json_has_the_same_variants_and_marks():
    printed = run("variants", "pool", "--json").output
    (row, *_) = rows = json.loads(printed)["variants"]
    assert list(row) == [
        "kind", "stages", "variant", "also", "needs", "precision", "reads", "writes", "paper",
        "description", "here", "lacks",
    ]  # fmt: skip
    assert {r["variant"] for r in rows} == {r["variant"] for r in listing.table_rows("pool")[0]}


@pytest.mark.parametrize("width", (20, *WIDTHS))
def test_terminal_output_fits_its_width(width):
    plain = without_escapes(in_terminal(width, "variants", "pool"))
    assert plain.splitlines() == lines_at(width, "pool")
