"""The model of many workers, by hand-computed cases."""

from __future__ import annotations

import pytest

from lenetgpu.shards.model import Costs, predict

ONE = Costs(read=1_000.0, read_all=10_000.0, label=500.0, ends=0.2, line=0.01, task=0.0)


def test_one_worker_is_the_slower_of_reading_and_labelling_with_the_ends_of_a_shard():
    assert predict(ONE, 100, 1).rate == pytest.approx(100 / (100 / 500 + 0.2))
    assert predict(ONE, 1_000, 1).bound == "the network"
    assert predict(ONE, 10, 1).bound == "a shard's ends"
    slow = Costs(read=100.0, read_all=1e9, label=500.0, ends=0.2, line=0.0)
    found = predict(slow, 1_000, 1)
    assert found.bound == "reading" and found.rate == pytest.approx(1_000 / (10 + 0.2))


@pytest.mark.parametrize(
    "change, bound, rate",
    [
        ({"read_all": 2_000.0}, "the files' medium", 2_000.0),
        ({"line": 0.5}, "the manifest", 2_000.0),
        ({"task": 0.5}, "the scheduler", 2_000.0),
        ({}, "the network", 8 * 1_000 / 2.2),
    ],
)
def test_what_workers_share_bounds_them(change, bound, rate):
    found = predict(Costs(**(vars(ONE) | change)), 1_000, 8)
    assert found.bound == bound and found.rate == pytest.approx(rate)
