"""The Pascal paper's literal plans against its own numbers, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lenetgpu.gpu.machines import GTX_1080_TI, GTX_TITAN_X, H200, KNOWN
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import find, variants
from lenetgpu.stages.conv.prefetch.single_strict_plan import (
    StrictParts,
    divisions,
    parts_rows,
    strict_single,
)
from lenetgpu.stages.conv.prefetch.strict import Choice
from lenetgpu.stages.conv.prefetch.strict_plan import (
    StrictPlan,
    StrictTile,
    filled,
    plan_rows,
    strict_plan,
)

MULTI = [shape.problem for shape in SUITES["pascal-multi"].shapes]
SINGLE = [shape.problem for shape in SUITES["pascal-single"].shapes]
STRICT = [v for v in variants("conv", "cuda") if v.full_name.startswith("prefetch.s")]


def single(side: int, filters: int, k: int) -> Conv:
    return Conv(side, side, 1, filters, k, k)


def test_the_papers_choice_of_64_filters_and_128_pixels():
    plan = strict_plan(Conv(112, 112, 64, 64, 3, 3), GTX_1080_TI)
    tile = plan.tile
    assert (4 * tile.taps, tile.columns, tile.filters) == (64, 128, 64)
    assert plan.least_filters == 33  # 66048 * 4 / (64 * 128) = 32.25
    assert plan.data_set == 64 * 64 + 6 * 128 * 4 == 7168  # W'y = ceil(64 / 12) = 6
    assert plan.data_set <= 96 * 1024 // 2
    assert (tile.multiprocessors * tile.each, tile.threads) == (56, 512)
    assert (tile.groups, tile.sums) == (4, 16)  # 512 / 128, 64 / 4
    assert plan.violated() == []


def test_its_64_filters_are_one_too_few_with_segments_of_32_bytes():
    plan = strict_plan(Conv(112, 112, 64, 64, 3, 3), GTX_1080_TI, segment=32)
    # 66048 * 4 / (32 * 128) = 64.5: of 64 filters there are too few, so W'x is doubled
    papers = StrictPlan(plan.problem, GTX_1080_TI, StrictTile("both", 8, 128, 64, 28))
    assert papers.least_filters == 65 and papers.violated() == ["M'"]
    assert (plan.tile.columns, plan.least_filters, plan.violated()) == (256, 33, [])


def test_an_h200_asks_for_88_filters():
    assert H200.n_fma == 700 * 128 * 2 == 179_200
    for problem in MULTI:
        plan = strict_plan(problem, H200)
        assert plan.violated() == [], problem
        if plan.tile.columns == 128:
            assert plan.least_filters == 88 <= plan.tile.filters  # 179200 * 4 / (64 * 128) = 87.5
        else:
            assert (problem.M, plan.tile.columns, plan.least_filters) == (64, 256, 44)


def test_every_shape_of_the_paper_meets_its_constraints_on_its_gpus():
    for machine in (GTX_1080_TI, GTX_TITAN_X):
        assert [p for p in MULTI if strict_plan(p, machine).violated()] == []


def test_chens_segment_is_no_multiple_of_32_bytes():
    plan = strict_plan(Conv(56, 56, 64, 64, 3, 3), GTX_1080_TI, segment=36)
    assert (plan.tile.taps, plan.tile.lines(plan.problem)) == (9, 3)
    assert plan.violated() == ["segments"]
    plan = strict_plan(Conv(56, 56, 64, 64, 1, 1), H200, segment=4)
    assert plan.violated() == ["M'", "segments"]  # 1,400 filters of 4 bytes
    odd = strict_plan(Conv(9, 9, 3, 64, 3, 3), GTX_1080_TI)
    assert odd.violated() == ["segments"]  # filters of 108 bytes begin anywhere


def test_a_data_set_larger_than_half_is_seen():
    small = replace(GTX_1080_TI, shared_bytes=14_000)
    plan = StrictPlan(Conv(112, 112, 64, 64, 3, 3), small, StrictTile("both", 16, 128, 64, 28))
    assert plan.data_set == 7168 > 7000
    assert plan.violated() == ["data set"]
    assert "NOT met" in dict(plan_rows(plan))["S x M' + 4 x W'y x W'x <= S_shared / 2"]


def test_what_shared_memory_holds():
    tile, problem = StrictTile("both", 16, 128, 64, 28), Conv(112, 112, 64, 64, 3, 3)
    assert tile.pitch(problem) == 132  # 128 pixels, 2 more, up to 16 bytes
    assert tile.shared(problem) == 4 * (2 * 16 * 64 + (2 * 6 + 1) * 132)
    kept = replace(tile, division="filters", cached=True)
    assert kept.rounds(problem) == 36  # 64 * 9 / 16
    assert kept.shared(problem) == 4 * (36 * 16 * 64 + 13 * 132)
    assert replace(kept, division="maps").shared(problem) == 4 * (2 * 16 * 64 + 64 * 3 * 132)


def test_divisions_share_out_what_they_name():
    problem = Conv(56, 56, 256, 256, 3, 3)
    channels = strict_plan(problem, GTX_1080_TI, "channels").tile
    assert channels.channels(problem) == 10  # C' = ceil(256 / 28)
    assert channels.rounds(problem) == 6  # ceil(10 * 9 / 16)
    filters = strict_plan(problem, GTX_1080_TI, "filters").tile
    assert filters.filters >= 10 and filters.filters * 28 >= 256  # M' = ceil(256 / 28)
    maps = strict_plan(problem, GTX_1080_TI, "maps").tile
    assert maps.part_lines(problem) == 2  # ceil(56 / 28)
    assert maps.segments(problem) == 1 and maps.columns == 128  # 2 * 56 pixels
    assert maps.tiles(problem) == 27 * -(-256 // maps.filters)  # 54 lines of outputs, two each
    assert strict_plan(problem, GTX_1080_TI).tile.tiles(problem) == 24 * 4  # 3022 pixels by 128


def test_filters_are_kept_where_the_paper_says_that_they_can_be():
    small = Conv(56, 56, 128, 128, 1, 1)  # 65,536 bytes in all: less than 28 x 96 KiB
    assert strict_plan(small, GTX_1080_TI, "filters").tile.cached
    large = Conv(28, 28, 512, 512, 5, 5)  # 26 MB
    assert not strict_plan(large, GTX_1080_TI, "filters").tile.cached


def test_the_last_departure_gives_every_block_a_tile():
    plan = strict_plan(Conv(14, 14, 512, 512, 3, 3), H200)
    assert plan.tile.tiles(plan.problem) < 264
    small = filled(plan)
    assert small.violated() == ["M'"] and small.tile.sums < plan.tile.sums
    assert small.tile.tiles(plan.problem) > plan.tile.tiles(plan.problem)


def test_each_departure_changes_one_thing():
    problem = Conv(14, 14, 512, 512, 3, 3)
    tiles = [Choice(departures=k).plan(problem, H200).tile for k in range(5)]
    changed = [
        {name for name in vars(a) if getattr(a, name) != getattr(b, name)}
        for a, b in pairwise(tiles)
    ]
    assert changed == [{"asynchronous"}, {"packed"}, {"spread"}, {"columns", "filters"}]
    assert Choice(segment=0).plan(problem, H200).tile.taps == 9
    assert Choice(segment=128).plan(problem, H200).tile.taps == 32
    assert Choice("maps").plan(problem, H200).tile.division == "maps"


def test_a_small_map_is_divided_again_until_v_s_is_met():
    # 28x28, 512 filters, K = 1: D2 = 2,160 < D1 = 3,212, but 28 x 2,160 = 60,480 < V_s = 86,016
    found = strict_single(single(28, 512, 1), GTX_1080_TI)
    assert found.plan.division == 2 and not found.plan.hides
    parts = found.parts
    assert found.redivided and (parts.row_parts, parts.filter_parts) == (1, 27)
    # 19 filters each: 27 multiprocessors have some
    assert (parts.busy(single(28, 512, 1)), parts.data(single(28, 512, 1))) == (27, 3212)
    assert parts.moved(single(28, 512, 1)) == 27 * 3212 == 86_724 >= GTX_1080_TI.v_s


def test_a_part_with_enough_operations_is_left_as_it_is():
    found = strict_single(single(28, 512, 5), GTX_1080_TI)
    assert found.plan.division == 1 and found.plan.hides and not found.redivided
    parts = found.parts
    assert (parts.row_parts, parts.filter_parts, parts.pieces) == (1, 28, 1)
    assert parts.data(single(28, 512, 5)) == found.plan.d1 == 5484
    assert parts.operations(single(28, 512, 5)) == found.plan.th1 == 372_400


def test_v_s_is_out_of_reach_on_an_h200():
    problem = single(28, 512, 1)
    found = strict_single(problem, H200)
    most = max(parts.moved(problem) for parts in divisions(problem, H200))
    assert H200.v_s == 3232 * 4 * 132 and found.most == most < H200.v_s
    assert not found.redivided and not found.plan.hides
    assert "V_s is NOT met" in dict(parts_rows(found, problem, H200))["approach (section 2.2)"]


def test_its_p_of_52_overflows_shared_memory_by_rounding():
    # P >= 51.3, but ceil(1024 / 52) = 20 lines and 4 more are 98,304 bytes without any filter
    problem = single(1024, 32, 5)
    found = strict_single(problem, GTX_1080_TI)
    assert found.plan.p == 52 and found.plan.d1 == 98_504 > GTX_1080_TI.shared_bytes
    parts = found.parts
    assert parts.streams == "lines" and parts.pieces > 52
    assert parts.fits(problem, GTX_1080_TI)
    assert not replace(parts, pieces=52).fits(problem, GTX_1080_TI)
    rows = dict(parts_rows(found, problem, GTX_1080_TI))
    assert "NOT met" in rows["D1 <= S_shared"]
    assert rows["P that two blocks hold"] == str(parts.pieces)


def test_a_prefetched_piece_fits_a_threads_registers():
    parts = StrictParts(1, 28, "lines", 54, 28)
    # ceil(1024 / 54) = 19 lines, 10 a block and 4 more: 14 * 1024 / 512 = 28 floats a thread
    assert parts.held(single(1024, 32, 5)) == 28
    assert replace(parts, pieces=1).held(single(1024, 32, 5)) == 0
    assert not replace(parts, pieces=54).fits(single(1024, 32, 9), GTX_1080_TI)  # 81 taps


@pytest.mark.parametrize("machine", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("both", [False, True])
def test_parts_cover_the_problem(machine, both):
    for problem in [*SINGLE, single(5, 3, 3), Conv(9, 30, 1, 7, 4, 2, pad=2)]:
        found = strict_single(problem, machine, both)
        if found is None:
            assert both, problem
            continue
        parts = found.parts
        assert parts.row_parts * parts.filter_parts <= machine.multiprocessors
        assert parts.row_parts * parts.part_lines(problem) >= problem.OH
        assert parts.filter_parts * parts.part_filters(problem) >= problem.M
        assert parts.each * parts.shared(problem) <= machine.shared_bytes


@pytest.mark.parametrize("machine", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("division", ["channels", "filters", "maps", "both"])
def test_tiles_cover_the_problem(machine, division):
    for problem in [*MULTI, Conv(7, 9, 3, 5, 2, 3, pad=1), Conv(1, 1, 1, 1, 1, 1)]:
        tile = strict_plan(problem, machine, division).tile
        assert tile.filters % tile.groups == 0 and tile.fits(problem, machine)
        lines, width = tile.part_lines(problem), problem.W + 2 * problem.pad
        if division == "maps":
            assert lines * machine.multiprocessors >= problem.OH
        most = min(lines * width, tile.positions(problem))
        assert tile.segments(problem) * tile.columns >= most
        if division == "filters":
            assert tile.filters * machine.multiprocessors >= problem.M
        if division == "channels":
            assert tile.channels(problem) * machine.multiprocessors >= problem.C


@pytest.mark.parametrize("variant", STRICT, ids=lambda v: v.full_name)
@pytest.mark.parametrize("machine", KNOWN.values(), ids=KNOWN)
def test_explained_for_any_machine(variant, machine):
    problem = Conv(28, 28, 1, 64, 3, 3, reads="NCHW", writes="NCHW")
    if "single" not in variant.full_name:
        problem = replace(problem, C=64)
    rows = variant.explain(problem, 1, machine)
    assert len({label for label, _ in rows}) == len(rows) > 5
    assert machine.name in dict(rows)["device"]


def test_refusals():
    strict, one = (
        find("conv", "prefetch.strict", "cuda"),
        find("conv", "prefetch.single_strict", "cuda"),
    )
    assert "stride 1" in strict.refusal(Conv(9, 9, 2, 2, 3, 3, stride=2))
    plane = find("conv", "prefetch.strict_plane", "cuda")
    assert "two blocks hold, found 30x30" in plane.refusal(Conv(64, 64, 2, 9, 30, 30))
    assert "two blocks hold, found 2x700" in strict.refusal(Conv(9, 900, 2, 9, 2, 700))
    assert "stride 1" in one.refusal(Conv(9, 9, 1, 2, 3, 3, stride=2))
    assert "one input channel" in one.refusal(Conv(9, 9, 2, 2, 3, 3))
    assert "two blocks" in one.refusal(single(64, 2, 60))
