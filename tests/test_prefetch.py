"""Tests of the Pascal paper's planners by hand, and of its kernels with other tiles and shapes."""

import shutil
from dataclasses import replace
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from conftest import ROOT
from test_kernels_on_a_cpu import folder, on_a_cpu, version  # noqa: F401

from lenetgpu.check.judge import check_variant, judge
from lenetgpu.check.reference import random_input, reference
from lenetgpu.gpu.device import current_arch
from lenetgpu.gpu.machines import GTX_1080_TI, GTX_TITAN_X, H200, KNOWN
from lenetgpu.gpu.nvrtc import compile_together
from lenetgpu.layouts import from_nhwc, physical_shape, to_nhwc
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import find, variants
from lenetgpu.stages.conv.prefetch import multi, single_strict, strict
from lenetgpu.stages.conv.prefetch import single as single_
from lenetgpu.stages.conv.prefetch.plan import (
    MultiTile,
    SingleTile,
    StrictParts,
    StrictPlan,
    StrictTile,
    explain_multi,
    explain_single,
    plan_multi,
    plan_rows,
    plan_single,
    strict_plan,
    strict_single,
)
from lenetgpu.stages.conv.prefetch.strict import Choice
from lenetgpu.stages.prepared import Guarded, PreparedKernel
from lenetgpu.stages.reference import conv_reference

on_this_cpu = pytest.mark.skipif(version() < 11, reason="no g++ 11 to compile kernels for a CPU")
MULTI = [shape.problem for shape in SUITES["pascal-multi"].shapes]
SINGLE = [shape.problem for shape in SUITES["pascal-single"].shapes]


def violated(plan):
    """Return the paper's constraints that a plan violates, according to --explain."""
    rows = dict(plan_rows(plan))
    names = {"M'": "M' >= ", "data set": "S x M'", "segments": "S and filters"}
    missed = [label for label, said in rows.items() if "NOT met" in said]
    return [n for n, of in names.items() if any(label.startswith(of) for label in missed)]


def single(side: int, filters: int, k: int) -> Conv:
    return Conv(side, side, 1, filters, k, k)


def test_table_1_machine_figures():
    facts = GTX_1080_TI
    assert (facts.bytes_per_clock, facts.n_fma) == (327, 66_048)
    assert (facts.data_requirement, facts.threads, facts.v_s) == (84_366, 768, 86_016)


def test_small_map_is_loaded_at_once():
    # 28x28, 512 filters, K = 1: ceil(512 / 28) = 19 filters, one line a multiprocessor
    plan = plan_single(single(28, 512, 1), GTX_1080_TI)
    assert plan.p_bounds == (1, 0)  # 19 * 28 * 28 / 66048 = 0.23
    assert plan.q_bounds == (1, 0)  # 512 * 1 * 28 / 66048 = 0.22
    assert (plan.p, plan.q) == (1, 1)
    assert plan.d1 == 4 * (19 + 28 * 28) == 3212
    assert plan.d2 == 4 * (512 + 28) == 2160
    assert plan.th1 == 19 * 28 * 28
    assert plan.th2 == 512 * 28
    assert plan.division == 2
    assert not plan.hides


def test_multi_channel_plan_matches_the_paper():
    for k, lines in ((1, 16), (3, 6), (5, 4)):
        plan = plan_multi(Conv(112, 112, 64, 64, k, k), GTX_1080_TI)
        # 66048 * 4 / (32 * 128) = 64.5 filters at S = 32, 32.25 at S = 64
        assert (plan.tile.elements, plan.tile.columns, plan.least_filters) == (16, 128, 33)
        assert (plan.tile.filters, plan.tile.lines(plan.problem)) == (64, lines)
        assert plan.data_set == 64 * 64 + lines * 128 * 4 <= 48 << 10


def test_paper_choice_of_64_filters_and_128_pixels():
    for machine in (GTX_1080_TI, GTX_TITAN_X):
        assert [p for p in MULTI if violated(strict_plan(p, machine))] == []
    plan = strict_plan(Conv(112, 112, 64, 64, 3, 3), GTX_1080_TI)
    tile = plan.tile
    assert (4 * tile.elements, tile.columns, tile.filters) == (64, 128, 64)
    assert plan.least_filters == 33  # 66048 * 4 / (64 * 128) = 32.25
    assert plan.data_set == 64 * 64 + 6 * 128 * 4 == 7168  # W'y = ceil(64 / 12) = 6
    assert plan.data_set <= 96 * 1024 // 2
    assert (tile.multiprocessors * tile.each, tile.threads) == (56, 512)
    assert (tile.groups, tile.sums) == (4, 16)  # 512 / 128, 64 / 4
    assert violated(plan) == []


def test_64_filters_are_too_few_for_32_byte_segments():
    plan = strict_plan(Conv(112, 112, 64, 64, 3, 3), GTX_1080_TI, segment=32)
    # 66048 * 4 / (32 * 128) = 64.5: 64 filters are too few, so W'x is doubled
    papers = StrictPlan(plan.problem, GTX_1080_TI, StrictTile("both", 8, 128, 64, 28))
    assert papers.least_filters == 65 and violated(papers) == ["M'"]
    assert (plan.tile.columns, plan.least_filters, violated(plan)) == (256, 33, [])


def test_36_byte_segment_is_no_multiple_of_32():
    plan = strict_plan(Conv(56, 56, 64, 64, 3, 3), GTX_1080_TI, segment=36)
    assert (plan.tile.elements, plan.tile.lines(plan.problem)) == (9, 3)
    assert violated(plan) == ["segments"]
    plan = strict_plan(Conv(56, 56, 64, 64, 1, 1), H200, segment=4)
    assert violated(plan) == ["M'", "segments"]  # 1,400 filters of 4 bytes


def test_divisions_split_channels_or_filters():
    problem = Conv(56, 56, 256, 256, 3, 3)
    channels = strict_plan(problem, GTX_1080_TI, "channels").tile
    assert channels.channels(problem) == 10  # C' = ceil(256 / 28)
    filters = strict_plan(problem, GTX_1080_TI, "filters").tile
    assert filters.filters >= 10 and filters.filters * 28 >= 256  # M' = ceil(256 / 28)
    maps = strict_plan(problem, GTX_1080_TI, "maps").tile
    assert maps.part_lines(problem) == 2  # ceil(56 / 28)
    assert maps.tiles(problem) == 27 * -(-256 // maps.filters)  # 54 lines of outputs, two each
    assert strict_plan(problem, GTX_1080_TI).tile.tiles(problem) == 24 * 4  # 3022 pixels by 128


def test_each_departure_changes_one_property():
    problem = Conv(14, 14, 512, 512, 3, 3)
    tiles = [strict.plan(Choice(departures=k), problem, H200).tile for k in range(5)]
    changed = [
        {name for name in vars(a) if getattr(a, name) != getattr(b, name)}
        for a, b in pairwise(tiles)
    ]
    assert changed == [{"asynchronous"}, {"packed"}, {"spread"}, {"columns", "filters"}]
    assert strict.plan(Choice(segment=0), problem, H200).tile.elements == 9
    assert strict.plan(Choice(segment=128), problem, H200).tile.elements == 32
    assert strict.plan(Choice("maps"), problem, H200).tile.division == "maps"


def test_small_map_is_redivided_until_v_s_is_met():
    # 28x28, 512 filters, K = 1: D2 = 2,160 < D1 = 3,212, but 28 x 2,160 = 60,480 < V_s = 86,016
    found = strict_single(single(28, 512, 1), GTX_1080_TI)
    assert found.plan.division == 2 and not found.plan.hides
    parts = found.parts
    assert found.redivided and (parts.row_parts, parts.filter_parts) == (1, 27)
    # 19 filters each occupy 27 multiprocessors
    assert (parts.busy(single(28, 512, 1)), parts.data(single(28, 512, 1))) == (27, 3212)
    assert parts.moved(single(28, 512, 1)) == 27 * 3212 == 86_724 >= GTX_1080_TI.v_s


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


def test_unsupported_shapes_are_refused():
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


@pytest.mark.parametrize("machine", KNOWN.values(), ids=KNOWN)
def test_every_plan_is_explained_for_any_machine(machine):
    one = Conv(28, 28, 1, 64, 3, 3, reads="NCHW", writes="NCHW")
    for variant in variants("conv", "cuda"):
        if variant.family == "prefetch":
            problem = one if "single" in variant.full_name else replace(one, C=64)
            rows = variant.explain(problem, 1, machine)
            assert len({label for label, _ in rows}) == len(rows) > 5
            assert machine.name in dict(rows)["device"]
    assert {"D1", "D2", "Th1", "Th2", "P", "Q"} <= dict(explain_single(one, 1, machine)).keys()
    assert {"S", "W'x", "M'", "W'y"} <= dict(explain_multi(replace(one, C=64), 1, machine)).keys()


ONE = [
    Conv(23, 20, 1, 13, 3, 3, 1, 1, "NCHW", "NCHW"),
    Conv(31, 17, 1, 9, 5, 4, 2, 2, "NCHW", "NCHW"),
]
SEVERAL = [
    Conv(11, 13, 3, 7, 3, 2, 2, 1, "NCHW", "NCHW"),
    Conv(20, 16, 37, 19, 3, 3, 1, 1, "NCHW", "NCHW"),
    Conv(14, 14, 20, 10, 5, 5, 1, 0, "NCHW", "NCHW"),
]
MULTI_TILES = [
    MultiTile(8, 1, 2, 2, 2, 2, 1, 2),
    MultiTile(16, 2, 2, 1, 4, 2, 2, 2),
    MultiTile(8, 3, 1, 2, 1, 4, 3, 3),
    MultiTile(16, 2, 3, 2, 4, 1, 1, 4),
]


def streamed(problem: Conv, method: int, pieces: int) -> SingleTile:
    rows, filters = 4, 4
    row_parts = -(-problem.OH // (rows * (pieces if method == 1 else 1)))
    filter_parts = -(-problem.M // (filters * (pieces if method == 2 else 1)))
    return SingleTile(method, rows, filters, pieces, row_parts, filter_parts, 2, 1, 4, 128)


def assert_right(problem, n, rng, launch, arrays=np):
    """Check the outputs of `launch` with arrays of NumPy or CuPy; its filters are NumPy's."""
    problem = replace(problem, reads="NCHW", writes="NCHW")
    x, w = random_input("conv", problem, n, rng)
    held = Guarded(arrays, physical_shape("NCHW", n, problem.in_shape), "float32")
    held.array[...] = arrays.asarray(np.ascontiguousarray(from_nhwc(x, "NCHW")))
    y = Guarded(arrays, physical_shape("NCHW", n, problem.out_shape), "float32")
    PreparedKernel.poison(y.array)
    launch(held.array, w, y.array, problem)
    outputs = y.array if arrays is np else y.array.get()
    found = to_nhwc(outputs, "NCHW", problem.out_shape)
    verdict = judge(found, reference("conv", x, w, problem), "fp32")
    assert verdict.passed, str(verdict)
    assert y.intact


@pytest.mark.gpu
@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("method", [1, 2])
@pytest.mark.parametrize("problem", ONE)
def test_streamed_pieces_are_correct(problem, method, pieces, rng, cupy):
    def launch(x, w, y, problem):
        single_.launch_tile(x, cupy.asarray(w), y, problem, streamed(problem, method, pieces))

    assert_right(problem, 3, rng, launch, cupy)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", MULTI_TILES)
@pytest.mark.parametrize("problem", SEVERAL)
def test_segments_and_splits_are_correct(problem, tile, rng, cupy):
    def launch(x, w, y, problem):
        multi.launch_tile(x, cupy.asarray(multi.pack(w, problem, tile)), y, problem, tile)

    assert_right(problem, 2, rng, launch, cupy)


MANY = {
    "elements across channels": Conv(7, 9, 5, 11, 3, 3),
    "one element": Conv(6, 8, 10, 9, 1, 1),
    "padded": Conv(6, 7, 3, 5, 3, 2, pad=1),
}
TILES = {
    "both": StrictTile("both", 8, 32, 4, 3, threads=64),
    "both, wide": StrictTile("both", 8, 128, 5, 2, threads=64),
    "both, a plane": StrictTile("both", 3, 32, 6, 3, threads=64),
    "both, past the registers": StrictTile("both", 8, 32, 4, 3, threads=64, asynchronous=True),
    "both, packed": StrictTile("both", 16, 32, 4, 3, threads=64, asynchronous=True, packed=True),
    "both, spread": StrictTile("both", 8, 64, 4, 3, threads=64, spread=True),
    "channels": StrictTile("channels", 8, 32, 4, 3, threads=64),
    "filters": StrictTile("filters", 8, 32, 4, 3, threads=64),
    "filters, kept": StrictTile("filters", 8, 32, 4, 3, threads=64, cached=True),
    "maps": StrictTile("maps", 8, 32, 4, 3, threads=64),
    "maps, kept": StrictTile("maps", 8, 64, 4, 3, threads=64, cached=True),
}


@pytest.fixture(scope="module")
def copies(folder):  # noqa: F811
    (folder / "gpu" / "ptx").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "cpu_async.hpp", folder / "gpu" / "ptx" / "async.cuh")


def long(cases, fast):
    """Return parameters of `cases`: those in `fast` for every run, the others for long runs."""
    return [pytest.param(case, id=name, marks=() if name in fast else pytest.mark.slow)
            for name, case in cases.items()]  # fmt: skip


OFTEN = ("both", "both, packed", "channels", "filters, kept", "maps, kept")


@on_this_cpu
@pytest.mark.parametrize("tile", long(TILES, OFTEN))
@pytest.mark.parametrize("problem", long(MANY, ("elements across channels",)))
def test_all_divisions_and_segments_are_correct(problem, tile, copies, on_a_cpu, rng):  # noqa: F811
    if tile.division == "filters":
        tile = replace(tile, filters=2 * ceil(ceil(problem.M / 3) / 2))
    if tile.cached and tile.division == "maps" and tile.segments(problem) > 1:
        pytest.skip("several runs of pixels are not kept")

    def launch(x, w, y, laid_out):
        strict.launch_tile(x, strict.pack(w, laid_out, tile), y, laid_out, tile)

    assert_right(problem, 4, rng, launch)


PARTS = {
    "method 1": StrictParts(1, 3, "lines", 1, 3, threads=32),
    "method 1, P = 3": StrictParts(1, 3, "lines", 3, 3, threads=32),
    "method 2": StrictParts(4, 1, "filters", 1, 4, threads=32),
    "method 2, Q = 3": StrictParts(4, 1, "filters", 3, 4, threads=32),
    "both": StrictParts(2, 2, "lines", 1, 5, threads=32),
    "both, filters shared": StrictParts(3, 2, "filters", 1, 6, threads=32),
}


@on_this_cpu
@pytest.mark.parametrize("parts", long(PARTS, ("method 1, P = 3", "method 2, Q = 3")))
@pytest.mark.parametrize("problem", [Conv(9, 7, 1, 10, 3, 3), Conv(8, 11, 1, 5, 2, 4, pad=1)])
def test_all_methods_and_pieces_are_correct(problem, parts, copies, on_a_cpu, rng):  # noqa: F811
    def launch(x, w, y, laid_out):
        held = single_strict.prepare(w, laid_out, 3)
        single_strict.launch_parts(x, held, y, laid_out, parts)

    assert_right(problem, 3, rng, launch)


LITERAL = [
    variant
    for variant in variants("conv", "cuda")
    if variant.full_name.startswith(("prefetch.single_strict", "prefetch.strict"))
    or variant.full_name == "texture.slides"
]
WIDE = [
    Conv(9, 3000, 1, 5, 3, 3),
    Conv(5, 6, 3, 700, 2, 2),  # more filters than sums
    Conv(4, 5, 7, 9, 1, 1, pad=2),  # padded beyond the filter
]


@pytest.mark.gpu
@pytest.mark.parametrize("variant", LITERAL, ids=lambda v: v.full_name)
def test_paper_shapes_are_correct(variant, rng, cupy):
    problems = [*SINGLE[::4], *MULTI[::4], *(shape.problem for shape in SUITES["overfeat"].shapes)]
    laid_out = (replace(base, reads="NCHW", writes="NCHW") for base in (*problems, *WIDE))
    supported = [problem for problem in laid_out if variant.refusal(problem) is None]
    kernels = [kernel for problem in supported for kernel in variant.kernels(problem, 2)]
    compile_together(kernels, current_arch())
    for problem in supported:
        x, w = random_input("conv", problem, 2, rng)
        verdict = check_variant(variant, problem, x, w, conv_reference(x, w, problem, cupy).get())
        assert verdict.passed, f"{verdict} for {problem}"
    assert len(supported) >= 4


@pytest.mark.gpu
@pytest.mark.parametrize("streams", ["lines", "filters"])
@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_prefetched_pieces_are_correct(streams, pieces, rng, cupy):
    """Test several pieces, which none of the paper's shapes needs on a large GPU."""
    divided = (1, 7) if streams == "lines" else (7, 1)
    parts = StrictParts(*divided, streams, pieces, 9)

    def launch(x, w, y, problem):
        held = single_strict.prepare(w, problem, 3)
        single_strict.launch_parts(x, held, y, problem, parts)

    assert_right(Conv(60, 50, 1, 70, 3, 5, pad=1), 3, rng, launch, cupy)
