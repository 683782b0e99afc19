"""The model of many workers, by hand-computed cases."""

from __future__ import annotations

import pytest

from lenetgpu.jobs.lots import LOT_S, Lots
from lenetgpu.jobs.model import Costs, predict

ONE = Costs(
    read=1_000.0, read_all=1e6, label=500.0, start=3.0, opening=0.1, ending=0.2, line=0.001
)  # fmt: skip


def like(**change):
    return Costs(**(vars(ONE) | change))


def test_one_worker_is_the_slower_of_reading_and_labelling():
    found = predict(ONE, 10_000, 1_000, 1)
    assert found.bound == "the network" and found.rate == pytest.approx(10_000 / (20 + 10 * 0.1))
    assert found.seconds == pytest.approx(3 + 21)
    found = predict(like(read=100.0), 10_000, 1_000, 1)
    assert found.bound == "reading" and found.rate == pytest.approx(10_000 / (100 + 10 * 0.1))
    found = predict(like(ending=5.0), 10_000, 1_000, 1)
    assert found.bound == "a shard's ends" and found.rate == pytest.approx(10_000 / 50)


def test_a_worker_has_whole_shards():
    assert predict(ONE, 3_000, 1_000, 2).rate == pytest.approx(3_000 / (4 + 0.2))
    assert predict(ONE, 2_500, 1_000, 1).rate == pytest.approx(2_500 / (5 + 0.3))
    found = predict(ONE, 2_000, 1_000, 8)
    assert found.bound == "the number of shards" and found.rate == pytest.approx(2_000 / 2.1)


@pytest.mark.parametrize(
    "change, bound, rate",
    [
        ({"read_all": 2_000.0}, "the files' medium", 2_000.0),
        ({"line": 0.5}, "the manifest", 2_000.0),
        ({"task": 0.5}, "the scheduler", 2_000.0),
        ({"there": 2, "label_all": 600.0}, "the network", 80_000 / (10_000 / 300 + 1)),
        ({"bus": 500.0, "kernels": 900.0}, "the bus", 80_000 / 21),
        ({"bus": 900.0, "kernels": 500.0}, "the kernels", 80_000 / 21),
        ({}, "the network", 80_000 / 21),
    ],
)
def test_what_workers_share_bounds_them(change, bound, rate):
    found = predict(like(**change), 80_000, 1_000, 8)
    assert found.bound == bound and found.rate == pytest.approx(rate)


def test_a_task_of_several_shards_is_handed_out_once():
    """Ten shards in the time of a lot."""
    costs = like(label=1e9, read=1e9, opening=0.0999 * LOT_S, ending=0.0, task=2.0)
    found = predict(costs, 100_000, 1_000, 1)
    assert found.bound == "the scheduler" and found.rate == pytest.approx(100_000 / (10 * 2.0))


def test_lots_take_half_a_second_and_end_together():
    lots = Lots(range(100))
    assert lots.take(2) == ((0,), 1) and lots.take(2) == ((1,), 1)
    lots.took(1, LOT_S / 10)
    assert lots.take(2) == (tuple(range(2, 12)), 1)
    sizes = []
    while len(lots):
        sizes.append(len(lots.take(2)[0]))
    assert sum(sizes) == 88 and sizes[:6] == [*[10] * 5, 9] and sizes == sorted(sizes, reverse=True)
    assert sizes[-4:] == [1] * 4
    with pytest.raises(IndexError):
        lots.take(2)


def test_what_is_begun_again_is_alone_and_last():
    lots = Lots(range(3))
    lots.took(1, LOT_S / 1_000)
    lots.again(7, 2)
    assert len(lots) == 4
    assert [lots.take(1) for _ in range(4)] == [((0,), 1), ((1,), 1), ((2,), 1), ((7,), 2)]
