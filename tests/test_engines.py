"""Timing model of the convnet2 paper's engines: against its figures, and as a command."""

import csv
import io
import json
from collections import Counter
from functools import partial

import pytest
import terminal

from lenetgpu.papers import convnet2_engines as engines
from lenetgpu.papers import warps
from lenetgpu.papers.convnet2 import STEPS, TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_engines import STEPS as SIMULATED
from lenetgpu.papers.shapes import SUITES
from lenetgpu.papers.warps import Op
from lenetgpu.stages.conv.convnet2.ladder import Loads, Tile, ladder_tile

TILE = ladder_tile(TABLE_1, TABLE_1_BATCH)
BASE = engines.results(TABLE_1, TABLE_1_BATCH)
CLAIM = {claim.name: claim for claim in engines.CLAIMS}
run = partial(terminal.run, "conv", "--engines")


def test_figures_9_and_13_imply_5x5_filters(script):
    """80,640 and 1,680 runs of a line; the cheapest lines take 80,641 and 1,681 cycles in all."""
    assert script("engines").sides_printed() == [5] == [TABLE_1.R]
    assert engines.executions(True) == 80_640 and engines.executions(False) == 1_680
    assert min(value for _, value in engines.FIGURE_9) == engines.executions(True) + 1
    assert min(value for _, value in engines.FIGURE_13) == engines.executions(False) + 1
    assert (
        max(engines.line_cycles(engines.FIGURE_9, side=32)) < 10
    )  # a local load takes longer than that


def test_model_matches_figures_9_and_13_within_4_cycles(script):
    module = script("engines")
    figures = (engines.FIGURE_9, module.SORTS_9), (engines.FIGURE_13, module.SORTS_13)
    for (seen, sorts), step in zip(figures, SIMULATED, strict=False):
        means = module.line_means(step.kernel, TABLE_1, TABLE_1_BATCH)
        assert len(sorts) == len(seen) and set(filter(None, sorts)) <= set(means)
        for cycles, sort in zip(engines.line_cycles(seen), sorts, strict=True):
            if sort:
                assert abs(means[sort] - cycles) < max(4, 0.02 * cycles), sort


@pytest.mark.parametrize(
    ("sums", "loads", "together"),
    [
        (engines.Sums.ROLLED, Loads.PLAIN, 1), (engines.Sums.UNROLLED, Loads.HOISTED, 1),
        (engines.Sums.INNER, Loads.REDUCED, 4), (engines.Sums.OUTER, Loads.HOISTED, 4),
    ],
)  # fmt: skip
def test_listing_has_the_kernels_instruction_counts(sums, loads, together):
    """12 image and 3 filter floats per thread and chunk; products unless an engine has them."""
    program = engines.listing(engines.Kernel(sums, loads, together=together), TILE, 2)
    count = Counter((said.op, said.part) for said in program)
    assert count[Op.GLOBAL, "images"] == 2 * 12
    assert count[Op.GLOBAL, "filters"] == 2 * 3
    assert count[Op.STORE, "images"] == 2 * 12
    assert count[Op.DIVIDE, "index conversion"] == 2 * 2
    assert count[Op.BRANCH, "index conversion"] == 2 * 4
    assert count[Op.STORE, "write"] == 16
    assert count[Op.BARRIER, "filters"] == count[Op.BARRIER, "compute"] == 2
    cored = sums in (engines.Sums.ROLLED, engines.Sums.UNROLLED)
    assert count[Op.MAD, "compute"] == (2 * 12 * 16 if cored else 0)
    assert count[Op.LOCAL, "compute"] == (2 * 12 * 16 if sums is engines.Sums.ROLLED else 0)
    called = {engines.Sums.INNER: 16, engines.Sums.OUTER: 1}
    assert count[Op.ENGINE, "compute"] == 2 * called.get(sums, 0)
    assert {said.part for said in program} == set(engines.PARTS)


@pytest.mark.parametrize("together", [1, 2, 4, 8])
def test_uneven_tiles_lose_no_loads(together):
    """5 channels of 4 images and 8 filters: 20 image floats a thread, 10 filter floats."""
    tile = Tile(16, 2, 4, 4, 4, 5)
    program = engines.listing(
        engines.Kernel(engines.Sums.INNER, Loads.REDUCED, together=together), tile, 1
    )
    count = Counter((said.op, said.part) for said in program)
    assert count[Op.GLOBAL, "images"] == count[Op.STORE, "images"] == 2 * 20
    assert count[Op.GLOBAL, "filters"] == count[Op.STORE, "filters"] == 5


def test_full_waves_run_in_turn_and_the_rest_is_spread():
    """120 blocks are one wave; 240 two; 60 are four a multiprocessor; 180 are 8 and then 4."""
    kernel = engines.Kernel(engines.Sums.INNER, Loads.PLAIN)
    wave, half, two, more = (
        engines.simulate(kernel, TABLE_1, batch).cycles for batch in (128, 64, 256, 192)
    )
    program = engines.listing(kernel, TILE, 7)
    assert wave == warps.run(engines.GTX_480, program, 8, 2).cycles
    assert half == warps.run(engines.GTX_480, program, 4, 2).cycles
    assert two == 2 * wave
    assert more == wave + half


def test_unrolled_sums_match_figure_13():
    """8 shared loads and 16 times mov, mad, mov per (pixel, channel) pair; no jump among them."""
    program = engines.listing(engines.Kernel(engines.Sums.UNROLLED, Loads.PLAIN), TILE, 1)
    ours = [said.op for said in program if said.part == "compute" and said.op is not Op.BARRIER]
    names = {"ld.shared": Op.SHARED, "mov": Op.ARITHMETIC, "mad": Op.MAD}
    assert ours[: len(engines.FIGURE_13) - 2] == [names[name] for name, _ in engines.FIGURE_13[:-2]]
    assert Counter(ours[: 12 * 56]) == {Op.SHARED: 96, Op.MAD: 192, Op.ARITHMETIC: 384}


@pytest.mark.parametrize("claim", engines.CLAIMS, ids=lambda claim: claim.name)
def test_claims_are_reproduced_as_stated(claim):
    if claim.printed is None:
        assert not claim.reproduced and engines.agrees(claim, 0.5) is None
    else:
        assert engines.agrees(claim, claim.of(BASE)) == claim.reproduced


def test_paper_figures_match_the_ladder_and_their_product(script):
    """Figures that papers/convnet2.py has too have the same value there."""
    steps = {step.name: step for step in STEPS}
    assert CLAIM["rolled, cycles"].printed == steps["rolled"].cycles
    assert CLAIM["unrolled, cycles"].printed == steps["unrolled"].cycles
    for name, step in {
        "unrolling saves": "unrolled",
        "inner product engine saves": "inner product engine",
        "strength reduction saves": "strength_reduced",
        "extracted conditionals save": "hoisted_checks",
        "index converter saves": "index_engine",
    }.items():
        assert CLAIM[name].printed == steps[step].gain
    own_total = script("engines").own_total
    assert f"{own_total(high=True):.1f}x" == "4.4x" in SUITES["convnet2"].notes[1]
    assert own_total(low=True) < own_total() < own_total(high=True)


def test_every_assumption_affects_the_result():
    for change in engines.CHANGED:
        under = engines.results(TABLE_1, TABLE_1_BATCH, assumption=change, most=2)
        stated = engines.results(TABLE_1, TABLE_1_BATCH, most=2)
        assert any(under(step.name) != stated(step.name) for step in SIMULATED), change.name


def test_unsimulated_chunks_are_extrapolated():
    whole = engines.simulate(engines.Kernel(engines.Sums.INNER, Loads.PLAIN), TABLE_1, 128, most=7)
    part = engines.simulate(engines.Kernel(engines.Sums.INNER, Loads.PLAIN), TABLE_1, 128, most=4)
    assert part.cycles != whole.cycles
    assert part.cycles == pytest.approx(whole.cycles, rel=0.01)
    assert sum(part.parts.values()) == pytest.approx(sum(whole.parts.values()), rel=0.01)


@pytest.mark.slow
def test_command_prints_paper_and_model_figures(tmp_path):
    done = run("--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv", code=0)
    assert "524,000" in done.output and "one reader at a time" in done.output
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["command"] == "engines" and document["images"] == 128
    assert [step["step"] for step in document["steps"]] == [step.name for step in SIMULATED]
    rows = {row["figure"]: row for row in document["figures"]}
    assert rows["rolled, cycles"]["model"] == round(BASE("rolled").cycles)
    assert rows["rolled, cycles"]["agrees"] is True
    table = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert [row["figure"] for row in table] == list(rows)


def test_other_shapes_have_no_paper_figures(tmp_path):
    done = run("2,6,6,5,3,1,1", "--batch", 16, "--json", "-", code=0)
    document = json.loads(done.stdout)
    assert document["shape"] == "2,6,6,5,3,1,1"
    assert {row["paper"] for row in document["figures"]} == {None}
    assert {row["agrees"] for row in document["figures"]} == {None}
    assert all(row["model"] is not None for row in document["figures"])
