"""Medians, intervals for a second run, verdicts and warnings on simulated machines."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lenetgpu.measure.statistics import (
    Interval,
    _block_lengths,
    _bootstrap,
    _student,
    ratio_interval,
    second_run_interval,
    single_ratio,
    warnings,
)

TIMES = st.floats(1e-4, 1e4)


def noisy(source, n, spread=0.03, memory=0.0, bursts=0.0):
    """Return `n` times around 1 ms, correlated by `memory`; a share `bursts` is 10 times longer."""
    state, found = 0.0, []
    for _ in range(n):
        state = memory * state + math.sqrt(1 - memory**2) * source.gauss(0, spread)
        burst = 10.0 if source.random() < bursts else 1.0
        found.append(burst * math.exp(state + source.gauss(0, spread)))
    return found


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=60))
def test_ratio_intervals_exclude_zero(pairs):
    samples, base = zip(*pairs, strict=True)
    interval = ratio_interval(samples, base)
    assert 0 < interval.low <= interval.value <= interval.high < math.inf
    assert interval.half_width >= 0.0099


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.90, 0.99, "faster"), (1.001, 1.3, "slower"), (0.9805, 1.0199, "same"),
        (1.0, 1.0, "same"), (0.98, 1.01, "undecided"), (0.99, 1.0201, "undecided"),
    ],
)  # fmt: skip
def test_verdict_of_intervals(low, high, verdict):
    assert Interval(math.sqrt(low * high), low, high).verdict() == verdict


@pytest.mark.parametrize(
    ("n", "memory", "bursts"),
    [(6, 0.0, 0.0), (25, 0.0, 0.1), (100, 0.0, 0.0), (100, 0.8, 0.0), (200, 0.9, 0.05)],
)
def test_median_of_a_second_run_lies_in_the_interval(n, memory, bursts):
    source = random.Random(n)

    def once():
        base = noisy(source, n, 0.03, memory, bursts)
        other = noisy(source, n, 0.03, memory, bursts)
        return second_run_interval([a / b for a, b in zip(other, base, strict=True)])

    pairs = [(once(), once()) for _ in range(200)]
    inside = sum(first.low <= second.value <= first.high for first, second in pairs)
    assert inside >= 180


def test_equal_is_not_different_and_3_percent_is_found():
    source, called, found = random.Random(3), 0, 0
    for _ in range(40):
        base, same, slow = (noisy(source, 400, 0.02, 0.5, 0.02) for _ in range(3))
        called += ratio_interval(same, base).verdict() in ("faster", "slower")
        found += ratio_interval([1.03 * x for x in slow], base).verdict() == "slower"
    assert (called, found >= 36) == (0, True)


def test_pairing_cancels_variation_between_rounds():
    source = random.Random(5)
    load = [math.exp(0.5 * math.sin(i / 9)) for i in range(90)]
    base = [value * source.uniform(0.99, 1.01) for value in load]
    slow = [1.04 * value * source.uniform(0.99, 1.01) for value in load]
    assert ratio_interval(slow, base).verdict() == "slower"
    assert ratio_interval(base, slow).verdict() == "faster"
    assert ratio_interval(slow, base[::-1]).verdict() == "undecided"


def test_autocorrelation_widens_the_interval():
    source = random.Random(2)
    slowly = noisy(source, 200, 0.03, 0.97)
    shuffled = list(slowly)
    source.shuffle(shuffled)
    assert second_run_interval(slowly).half_width > 1.5 * second_run_interval(shuffled).half_width
    assert [_block_lengths(n) for n in (7, 16, 100)] == [[], [1, 2], [1, 5, 10, 12]]
    linear = second_run_interval([1.0 + 0.01 * i for i in range(20)])
    assert linear == Interval(*map(pytest.approx, (1.094988584, 1.008070217, 1.189401273)))
    by_hand = 14 / 27 * 3 / 2  # medians of three of 0, 1, 2: 14 of 27 are 1 from their mean
    assert _bootstrap(np.arange(3.0), 1) == pytest.approx(_student(2) * by_hand**0.5, rel=0.1)


def test_process_variation_and_control_drift_widen_ratios():
    assert Interval(2.0, 1.0, 4.0).widened(0.25) == Interval(2.0, 0.8, 5.0)
    same = [1.0] * 30
    assert ratio_interval(same, same, 0.005) == Interval(1.0, 1 / 1.01, 1.01)
    assert ratio_interval(same, same, 0.25) == Interval(1.0, 0.8, 1.25)
    assert single_ratio(3.0, 2.0) == Interval(1.5, 1.2, 1.875)


@pytest.mark.parametrize(
    ("samples", "clauses"),
    [
        ([5.0] + [1.0, 1.01] * 20, ["the first sample took 5 times the median"]),
        ([1.0] * 9 + [3.0], ["1 of 10 samples are outliers"]),
        ([1.0] * 19 + [3.0], []),
        ([1.0, 1.5, 0.7] * 10, ["samples spread by 70%"]),
        ([1.0, 1.01] * 10 + [1.06, 1.07] * 10,
         ["drift: the last third took 7.0% longer than the first"]),
        ([1.06, 1.07] * 10 + [1.0, 1.01] * 10,
         ["drift: the last third took 4.7% less than the first"]),
        ([0.177] + [40.538, 40.6] * 9 + [40.6], ["the median is 229 times the 5th percentile"]),
        (noisy(random.Random(1), 60, 0.01), []),
        ([1.0] * 8 + [3.0], []),
    ],
)  # fmt: skip
def test_sample_warnings(samples, clauses):
    assert warnings(samples) == clauses


def test_student_quantiles_match_the_tables():
    quantiles = {6: 2.446912, 10: 2.228139, 100: 1.983972}
    assert {n: _student(n) for n in quantiles} == pytest.approx(quantiles, rel=2e-3)
    assert [_student(n) for n in (1, 2)] == pytest.approx([9.710583775, 4.17120554], rel=1e-8)
