"""`lenetgpu variants`: order, support on this machine, and any width of terminal."""

import json
import re
from itertools import groupby

import pytest
from terminal import in_terminal, run, without_escapes

from lenetgpu.gpu.device import Gpu
from lenetgpu.lab import listing
from lenetgpu.lab.listing import variant_lines
from lenetgpu.stages import variants
from lenetgpu.stages.registry import KINDS, SPAN_KINDS

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
