"""Scores as probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from lenetgpu.check.probability import probabilities


def test_a_row_of_known_scores():
    scores = np.zeros((1, 10))
    scores[0, 3] = np.log(11)
    found = probabilities(scores)
    assert found[0, 3] == pytest.approx(11 / 20) and found[0, 4] == pytest.approx(1 / 20)


def test_scores_of_any_size_sum_to_one():
    scores = np.array([[1e4] + [0.0] * 9, [-1e4] * 10, [3e38] + [-3e38] * 9], np.float32)
    found = probabilities(scores)
    assert np.isfinite(found).all()
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert found[:, 0] == pytest.approx([1.0, 0.1, 1.0])
