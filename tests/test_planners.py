"""Limits and costs that planners decide by, against cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lenetgpu.gpu.machines import GTX_1080_TI, H200
from lenetgpu.gpu.workspace import images_within
from lenetgpu.papers.course_ladder import step_rows
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.multi_plan import MultiTile, plan_multi
from lenetgpu.stages.conv.prefetch.single_plan import SingleTile
from lenetgpu.stages.conv.tuned.clocks import product_clocks, single_clocks, transform_clocks
from lenetgpu.stages.conv.tuned.product import TILES, Product


@pytest.mark.parametrize(
    ("latency", "filters", "fits"), [(5_000, 640, True), (8_000, 1_024, False)]
)
def test_two_data_sets_have_to_fit_shared_memory(latency, filters, fits):
    """One is used while the next arrives: each may take half of 96 KiB."""
    plan = plan_multi(Conv(112, 112, 64, 64, 3, 3), replace(GTX_1080_TI, latency=latency))
    assert plan.filters == filters  # latency * 128 * 2 * 4 / (64 * 128), in warps
    assert plan.data_set == 64 * filters + 6 * 128 * 4
    assert plan.data_set < GTX_1080_TI.shared_bytes
    assert (plan.data_set <= 48 << 10) == fits
    assert plan.fits == fits


def test_what_streams_is_held_twice():
    problem = Conv(28, 28, 1, 64, 5, 5)
    held = SingleTile(1, 4, 16, 1, 6, 4, 2, 1, 4, 128)
    # 8 lines of 28 and 25 taps of 16 filters
    assert held.shared(problem) == 4 * (8 * 28 + 25 * 16)
    assert replace(held, pieces=2).shared(problem) == 4 * (2 * 8 * 28 + 25 * 16)
    assert replace(held, pieces=2, method=2).shared(problem) == 4 * (8 * 28 + 2 * 25 * 16)


def test_a_tile_of_many_channels_covers_its_outputs():
    tile = MultiTile(8, 4, 2, 2, 2, 2, 1, 2)
    problem = Conv(20, 17, 8, 10, 3, 3)
    # 18 x 15 outputs in tiles of 4 x 8, 10 maps in fours
    assert tile.blocks(problem) == 5 * 2 * 3
    assert tile.lines(problem) == 6
    assert tile.threads == 32  # 4 * 2 / 2 strips x 2 groups, in whole warps


@pytest.mark.parametrize(
    ("capability", "warps", "kib"), [(90, 64, 228), (89, 48, 100), (80, 64, 164)]
)
def test_a_gpu_has_the_limits_of_its_own_capability(capability, warps, kib):
    found = replace(H200, compute_capability=capability).limits
    assert (found.warps, found.shared_bytes) == (warps, kib << 10)


def ladder(*times):
    names = ("direct.basic", "direct.tight", "direct.shared_constant", "direct.whole_warps")
    rows = [
        {"stage": "conv1", "variant": name, "report_ms": 1.0, "median_ms": ms}
        for name, ms in zip(names, times, strict=True)
    ]
    return [row["verdict"] for row in step_rows(rows)]


def test_two_per_cent_are_a_gain_or_a_loss_and_less_is_none():
    assert ladder(1.03, 1.0, 1.03, 1.0) == ["holds", "turned", "holds"]
    assert ladder(1.015, 1.0, 1.015, 1.0) == ["gone", "gone", "gone"]


def lightest(stages):
    """The tile with so many stages that has the least work, and so waits for its copies."""
    chosen = [tile for tile in TILES if tile.stages == stages]
    return min(chosen, key=lambda tile: tile.instructions() * tile.threads)


@pytest.mark.parametrize(("stages", "each"), [(2, 2090.0), (3, 1045.0)])
def test_a_lone_block_waits_for_its_copies(stages, each):
    """Clocks of one more chunk on one multiprocessor: the latency over the copies under way."""
    tile, one = lightest(stages), replace(H200, multiprocessors=1)

    def clocks(chunks):
        problem = Conv(1, 1, tile.bk * chunks, 4, 1, 1, reads="NCHW", writes="NCHW")
        return product_clocks(Product(tile, 1), problem, 1, 1, one)

    assert (clocks(9) - clocks(1)) / 8 == pytest.approx(each)


def test_a_launch_and_its_bytes():
    near, far = Conv(28, 28, 1, 4, 1, 1), Conv(4096, 4096, 1, 4, 1, 1)
    # 28 * 28 * 5 + 4 floats from the cache at 5,170 bytes a clock
    assert single_clocks(near, 1, H200) == pytest.approx(2730 + 4 * (784 * 5 + 4) / 5170, rel=0.02)
    # 16 Mi * 5 floats from memory at 1,630
    moved = 4 * (4096 * 4096 * 5 + 4)
    assert single_clocks(far, 1, H200) == pytest.approx(2730 + moved / 1630, rel=0.02)
    assert transform_clocks(1740, H200) == pytest.approx(2 * 2270 + 1)
    assert transform_clocks(1630 * 10**6, H200) == pytest.approx(2 * 2270 + 10**6, rel=1e-3)


def test_a_workspace_holds_whole_images_and_at_least_one():
    assert images_within(10, 100, 1_000) == 10
    assert images_within(11, 100, 1_000) == 10
    assert images_within(11, 101, 1_000) == 9
    assert images_within(11, 5_000, 1_000) == 1
    assert images_within(10_000, 1 << 20) == 1024
