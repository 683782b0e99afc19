"""The Pascal paper's planner against its Table 1 and cases worked out by hand."""

from __future__ import annotations

import pytest

from lenetgpu.gpu.machines import GTX_1080_TI, H200, KNOWN
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.explain import explain_multi, explain_single
from lenetgpu.stages.conv.prefetch.multi_plan import plan_multi
from lenetgpu.stages.conv.prefetch.single_plan import plan_single


def single(side: int, filters: int, k: int) -> Conv:
    return Conv(side, side, 1, filters, k, k)


def test_table_1():
    facts = GTX_1080_TI
    assert facts.bytes_per_clock == 327
    assert facts.n_fma == 66_048
    assert facts.data_requirement == 84_366
    assert facts.threads == 768
    assert facts.threads // 32 == 24
    assert facts.threads * 4 == 3072
    assert facts.v_s == 86_016


def test_a_small_map_is_loaded_at_once():
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


def test_many_filters_are_divided():
    # 28x28, 512 filters, K = 5
    plan = plan_single(single(28, 512, 5), GTX_1080_TI)
    assert plan.p_bounds == (1, 5)  # 25 * 19 * 784 / 66048 = 5.6
    assert plan.d1 == 4 * (25 * 19 + (28 + 4) * 28) == 5484
    assert plan.d2 == 4 * (25 * 512 + (1 + 4) * 28) == 51_760
    assert plan.division == 1
    assert plan.th1 == 25 * 19 * 28 * 28 == 372_400
    assert plan.hides


def test_a_map_too_large_for_shared_memory_is_cut_into_p_pieces():
    # 512x512, 64 filters, K = 3: ceil(64 / 28) = 3 filters, ceil(512 / 28) = 19 lines
    plan = plan_single(single(512, 64, 3), GTX_1080_TI)
    # 4 * 512 * 512 / (98304 - 4 * 9 * 3 - 2 * 4 * 512) = 1048576 / 94100 = 11.1
    # 9 * 3 * 512 * 512 / 66048 = 107.2
    assert plan.p_bounds == (12, 107)
    assert plan.q_bounds == (1, 64)  # 9 * 64 * 19 * 512 / 66048 = 84.8, and at most M
    assert plan.p == 12
    assert plan.d1 == 4 * (27 + (43 + 2) * 512) == 92_268  # ceil(512 / 12) = 43
    assert plan.d2 == 4 * (576 + (19 + 2) * 512) == 45_312
    assert plan.division == 2


def test_the_first_method_streams_the_map():
    # 1024x1024, 32 filters, K = 5: its 37 lines a multiprocessor leave no room for filters
    plan = plan_single(single(1024, 32, 5), GTX_1080_TI)
    assert plan.q_bounds[0] is None  # 98304 - 4 * 1024 * (37 + 4) < 0
    # 4194304 / (98304 - 4 * 25 * 2 - 4 * 4 * 1024) = 51.3; 25 * 2 * 1048576 / 66048 = 793.8
    assert plan.p_bounds == (52, 793)
    assert plan.p == 52
    assert plan.division == 1
    assert plan.d1 == 4 * (50 + (20 + 4) * 1024) == 98_504
    assert plan.th1 == 25 * 2 * 20 * 1024


def test_the_papers_multi_channel_values():
    for k, lines in ((1, 16), (3, 6), (5, 4)):
        plan = plan_multi(Conv(112, 112, 64, 64, k, k), GTX_1080_TI)
        # 66048 * 4 / (32 * 128) = 64.5 filters at S = 32, 32.25 at S = 64
        assert (plan.segment, plan.columns, plan.least_filters) == (64, 128, 33)
        assert plan.filters == 64
        assert plan.lines == lines
        assert plan.data_set == 64 * 64 + lines * 128 * 4
        assert plan.fits


def test_a_long_latency_asks_for_more_filters():
    from dataclasses import replace

    slow = replace(GTX_1080_TI, latency=800)
    plan = plan_multi(Conv(112, 112, 64, 64, 3, 3), slow)
    assert plan.least_filters == 100  # 204800 * 4 / (64 * 128)
    assert plan.filters == 128


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("problem", [single(28, 512, 5), Conv(56, 56, 128, 128, 3, 3)])
def test_explain_says_what_was_chosen(problem, name):
    explain = explain_single if problem.C == 1 else explain_multi
    rows = explain(problem, 1, KNOWN[name])
    assert all(isinstance(label, str) and isinstance(value, str) for label, value in rows)
    labels = [label for label, _ in rows]
    assert len(labels) == len(set(labels))
    wanted = ("D1", "D2", "Th1", "Th2", "P", "Q") if problem.C == 1 else ("S", "W'x", "M'", "W'y")
    assert set(wanted) <= set(labels)
    assert H200.name in dict(explain(problem, 1, H200))["device"]
