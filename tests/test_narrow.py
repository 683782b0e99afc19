"""Narrow terminals, dumb terminals, no colours, no Unicode, and streams that are not terminals."""

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console as Rich
from terminal import in_terminal, surroundings

from lenetgpu.lab import console as progress
from lenetgpu.lab.compare import COMPARED, COUNTED, COURSE, LAYOUTS, STEPS
from lenetgpu.lab.console import folded
from lenetgpu.lab.conv.document import CONVOLVED, EXPLAINED, SUMMED
from lenetgpu.lab.conv.document import STEPS as CONV_STEPS
from lenetgpu.lab.listing import matrix_lines
from lenetgpu.lab.render import Table, in_lines
from lenetgpu.lab.rows import STAGE, dimensions, listed
from lenetgpu.stages.matrix import cells

TYPES = {
    "compared": COMPARED, "course": COURSE, "layouts": LAYOUTS, "counted": COUNTED, "steps": STEPS,
    "stage": STAGE, "convolved": CONVOLVED, "summed": SUMMED, "explained": EXPLAINED,
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
        if column.write is dimensions:
            value = [10, 20 + index]
        if column.write is listed:
            value = ["power"]
        inner = row.setdefault(parts[0], {}) if len(parts) > 1 else row
        inner[parts[-1]] = value
    return row


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_numbers_are_not_broken_at_any_width(kind):
    table = Table(kind, [row_of(kind)], "a table")
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
    assert in_lines("conv1+pool1+conv2", 12) == "conv1+pool1+\nconv2"
    assert in_lines("unrolled.image_layout", 15) == "unrolled.image_\nlayout"
    assert in_lines("a 0.14 M", 4) == "a\n0.14\nM"


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
        assert "\rimages, all passes 100%" in written  # progress rewrites its line
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
    done = subprocess.run(
        [sys.executable, "-m", "lenetgpu", *NARROW[name]], env=surroundings(**environment),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
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
