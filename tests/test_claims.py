"""A paper's claim stands beside its own kernel, timed; ours after it stand apart."""

from __future__ import annotations

import json
from math import exp, log

import pytest
from conftest import ROOT

from lenetgpu.gpu.machines import H200
from lenetgpu.lab.conv.document import summary_json
from lenetgpu.network import stage
from lenetgpu.papers.shapes import SUITES
from lenetgpu.stages import find

ABLATION = ROOT / "docs" / "measured" / "nvidia-h200" / "ablation"
OVERVIEW = "| suite | shapes | `best.fp32`"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table whose first line begins so."""
    lines = iter((ROOT / "docs" / page).read_text().splitlines())
    next(line for line in lines if line.startswith(heading))
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def cases(suite: str) -> list[dict[str, dict]]:
    """Of each shape the right candidates of the suite's ablation, by name."""
    document = json.loads((ABLATION / f"{suite}.json").read_text())
    return [
        {one["name"]: one for one in case["candidates"] if one["status"] == "right"}
        for case in document["cases"]
    ]


def mean(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


@pytest.mark.parametrize("name", [name for name in SUITES if SUITES[name].literal])
def test_literal_kernels_are_the_papers_and_ours_come_after(name):
    suite = SUITES[name]
    assert not set(suite.literal) & set(suite.after)
    for one in suite.literal:
        assert not (find("conv", one, "cuda").paper or "after").startswith("after")
    for one in suite.after if name != "convnet2" else ():
        assert (find("conv", one, "cuda").paper or "").startswith("after")


@pytest.mark.parametrize("suite", ["pascal-single", "pascal-multi", "overfeat"])
def test_the_overview_has_the_literal_kernels_own_gain(suite):
    (literal,) = SUITES[suite].literal
    gains = [case[literal]["speedup"] for case in cases(suite)]
    (row,) = [cells for cells in rows("measured.md", OVERVIEW) if cells[0] == f"`{suite}`"]
    assert row[5].startswith(f"**{mean(gains):.2f}x** ({min(gains):.2f}x to {max(gains):.2f}x)")
    assert row[4] != row[5]


def test_the_summary_has_the_claim_beside_the_papers_own_kernels_only():
    timed = [
        {"name": name, "speedup": 2.0} for name in ("prefetch.strict", "prefetch.stride_fixed")
    ]
    found = summary_json([{"best": "", "candidates": timed}], SUITES["pascal-multi"])
    said = {row["name"]: row["paper"] for row in found}
    assert said["prefetch.strict"] and said["prefetch.stride_fixed"] is None


def test_every_departure_has_its_gain_and_the_steps_join_up():
    found = rows("convolutions.md", "| suite | from | to | what changes")
    for suite in ("pascal-single", "pascal-multi"):
        steps = [cells for cells in found if cells[0] == suite]
        names = [cells[1].strip("`") for cells in steps] + [steps[-1][2].strip("`")]
        assert (names[0],) == SUITES[suite].literal and (names[-1],) == SUITES[suite].after
        assert [cells[2].strip("`") for cells in steps] == names[1:]
        for before, after, cells in zip(names, names[1:], steps, strict=False):
            gains = [case[before]["median_ms"] / case[after]["median_ms"] for case in cases(suite)]
            assert cells[4] == str(len(gains)) and cells[5] == f"{mean(gains):.2f}x"
            assert cells[6].startswith(f"{min(gains):.2f}x") and cells[7].startswith(
                f"{max(gains):.2f}x"
            )
        assert [("several" in cells[3]) for cells in steps] == [False] * (len(steps) - 1) + [True]


def test_figure_4s_conv1_is_said_to_be_counted_with_filters_from_global_memory():
    variant = find("conv", "direct.shared_constant", "cuda")
    explained = dict(variant.explain(stage("conv1").problem, 10_000, H200))
    assert any("100.0% of loads" in f"{what} {found}" for what, found in explained.items())
    page = (ROOT / "docs" / "measured.md").read_text()
    assert "Figure 4, conv1: loads are counted with the filters in global memory" in page
