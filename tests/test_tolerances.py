"""How far each precision may be off, in figures that stand here and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from lenetgpu.check.judge import TOLERANCE, excusable_flips, judge

# of the largest value of the reference
LIMITS = {"fp32": 1e-5, "fp16x3": 1e-5, "fp16": 2e-3, "fp16w": 4e-3}
LIMITS |= {"int8": 4e-2, "int8s": 6e-2}


def test_every_precision_has_a_limit_here():
    assert set(TOLERANCE) >= set(LIMITS)


@pytest.mark.parametrize(("precision", "limit"), LIMITS.items())
def test_a_tenth_beyond_the_limit_is_wrong(precision, limit):
    expected = np.array([[1.0, -4.0, 0.0]])
    last = np.array([[0.0, 0.0, limit * 4]])
    for sign in (-1, 1):
        near, beyond = expected + sign * 0.9 * last, expected + sign * 1.1 * last
        assert judge(near, expected, precision).passed
        verdict = judge(beyond, expected, precision)
        assert not verdict.passed
        assert verdict.error == pytest.approx(1.1 * limit)
        assert verdict.tolerance == limit


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("precision", LIMITS)
def test_one_value_that_is_no_number_is_wrong(precision, value):
    expected = np.ones((3, 4))
    found = expected.copy()
    found[2, 3] = value
    verdict = judge(found, expected, precision)
    assert not verdict.passed and "1 outputs NaN" in str(verdict)


def test_an_error_is_of_the_largest_value_and_the_largest_anywhere():
    expected = np.array([[10.0, 0.0], [0.0, 0.0]])
    found = expected + np.array([[0.0, 1e-6], [0.0, -3e-5]])
    assert judge(found, expected, "fp32").error == pytest.approx(3e-6)
    assert judge(np.array([0.5]), np.array([0.0]), "fp32").error == 0.5


# both scores may be off by the limit, of the largest of all images: the distance between them
@pytest.mark.parametrize(
    ("precision", "apart"),
    [("fp16", 2 * 2e-3 * 8.0), ("fp16w", 2 * 4e-3 * 8.0), ("int8", 2 * 4e-2 * 8.0),
     ("int8s", 2 * 6e-2 * 8.0)],
)  # fmt: skip
def test_a_flip_is_excused_within_twice_the_limit_only(precision, apart):
    scores = np.array(
        [
            [1.0, 1.0 - 0.9 * apart, -3.0],
            [1.0, 1.0 - 1.1 * apart, -3.0],
            [-8.0, 1.0, 1.0 - 0.9 * apart],
            [5.0, 5.0 - 9 * apart if precision != "int8" else -8.0, -7.0],
        ]
    )
    assert excusable_flips(scores, precision).tolist() == [True, False, True, False]


@pytest.mark.parametrize("precision", ["fp32", "fp16x3"])
def test_precise_plans_are_excused_nothing(precision):
    assert not excusable_flips(np.zeros((3, 10)), precision).any()


def test_one_wrong_label_is_wrong():
    expected = np.arange(10)
    found = expected.copy()
    found[9] = 0
    assert judge(expected, expected, "int8").passed
    assert not judge(found, expected, "int8").passed


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (2, 3), (5,)])
def test_a_shape_that_would_broadcast_is_wrong_too(shape):
    assert not judge(np.zeros(shape), np.zeros(6), "fp32").passed
    assert not judge(np.zeros(shape, int), np.zeros(6, int), "fp32").passed
