"""How `direct.tuned_single` divides one-channel maps."""

from __future__ import annotations

import pytest

from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.tuned.one_channel import Tile, filters_a_block, tile, tiles

SINGLE = [shape.problem for shape in SUITES["pascal-single"].shapes]


@pytest.mark.parametrize("problem", SINGLE, ids=lambda p: f"{p.H}x{p.M}-K{p.R}")
def test_the_papers_shapes_are_whole_vectors_and_fill_the_gpu(problem):
    shape = tile(problem, 1, 132)
    assert problem.OW % shape.columns == 0
    assert shape.columns == (2 if problem.R == 3 else 4)
    threads = -(-problem.OH // shape.rows) * problem.OW // shape.columns
    blocks = -(-threads // 128)
    group = filters_a_block(problem, blocks, 132)
    assert 1 <= group <= 64
    assert blocks * -(-problem.M // group) >= 250


def test_tiles_of_odd_shapes_fit_into_registers():
    for problem in (
        Conv(1, 1, 1, 1, 1, 1),
        Conv(40, 37, 1, 3, 5, 3, stride=3),
        Conv(33, 31, 1, 5, 8, 8, stride=2, pad=3),
        Conv(100, 100, 1, 3, 2, 2, stride=50),
    ):
        for shape in tiles(problem):
            assert problem.OW % shape.columns == 0
            rows = (shape.rows - 1) * problem.stride + problem.R
            columns = (shape.columns - 1) * problem.stride + problem.S
            assert rows * columns <= 96
            assert shape.rows <= problem.OH
    assert tiles(Conv(1, 1, 1, 1, 1, 1)) == (Tile(1, 1),)


def test_many_taps_get_more_rows_where_blocks_are_enough():
    def rows(side, maps, n=1):
        return tile(Conv(side, side, 1, maps, 5, 5), n, 132).rows

    assert [rows(28, 512), rows(224, 64), rows(512, 64), rows(1024, 32)] == [2, 2, 4, 8]
    assert rows(28, 32, 10_000) == 8


def test_large_maps_are_written_few_at_a_time():
    large = Conv(1024, 1024, 1, 32, 3, 3)
    assert filters_a_block(large, 4080, 132) == 4
    assert filters_a_block(Conv(1024, 1024, 1, 32, 1, 1), 4096, 132) == 64
    assert filters_a_block(Conv(1, 1, 1, 2, 1, 1), 1, 132) == 1


def test_it_refuses_channels_and_large_filters():
    variant = find("conv", "direct.tuned_single", "cuda")
    assert variant.refusal(Conv(9, 9, 1, 3, 8, 8)) is None
    assert "one-channel maps, not 2 channels" in variant.refusal(Conv(9, 9, 2, 3, 3, 3))
    assert "up to 64 taps, not 81" in variant.refusal(Conv(9, 9, 1, 3, 9, 9))
