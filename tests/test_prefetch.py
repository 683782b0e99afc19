"""The Pascal paper's kernels with tiles that their planner picks on other devices or shapes."""

from __future__ import annotations

import numpy as np
import pytest

from lenetgpu.check.judge import judge
from lenetgpu.check.truth import random_input, reference
from lenetgpu.layouts import from_nhwc, to_nhwc
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch import multi as prefetch_multi
from lenetgpu.stages.conv.prefetch import single as prefetch_single
from lenetgpu.stages.conv.prefetch.multi_plan import MultiTile
from lenetgpu.stages.conv.prefetch.single_plan import SingleTile

ONE = [
    Conv(23, 20, 1, 13, 3, 3, 1, 1, "NCHW", "NCHW"),
    Conv(31, 17, 1, 9, 5, 4, 2, 2, "NCHW", "NCHW"),
]
MANY = [
    Conv(11, 13, 3, 7, 3, 2, 2, 1, "NCHW", "NCHW"),
    Conv(20, 16, 37, 19, 3, 3, 1, 1, "NCHW", "NCHW"),
    Conv(14, 14, 20, 10, 5, 5, 1, 0, "NCHW", "NCHW"),
]
TILES = [
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


def assert_right(problem, n, rng, launch):
    import cupy

    x, w = random_input("conv", problem, n, rng)
    y = cupy.full((n, problem.M, problem.OH, problem.OW), np.nan, np.float32)
    launch(cupy.asarray(np.ascontiguousarray(from_nhwc(x, "NCHW"))), w, y)
    found = to_nhwc(y.get(), "NCHW", problem.out_shape)
    verdict = judge(found, reference("conv", x, w, problem), "fp32")
    assert verdict.passed, str(verdict)


@pytest.mark.gpu
@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("method", [1, 2])
@pytest.mark.parametrize("problem", ONE)
def test_pieces_are_streamed(problem, method, pieces, rng):
    import cupy

    tile = streamed(problem, method, pieces)
    assert_right(
        problem,
        3,
        rng,
        lambda x, w, y: prefetch_single.launch_tile(x, cupy.asarray(w), y, problem, tile),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("problem", MANY)
def test_segments_and_splits(problem, tile, rng):
    import cupy

    def launch(x, w, y):
        packed = cupy.asarray(prefetch_multi.pack(w, problem, tile))
        prefetch_multi.launch_tile(x, packed, y, problem, tile)

    assert_right(problem, 2, rng, launch)


def test_filters_are_packed_segment_by_segment(rng):
    problem, tile = Conv(9, 9, 5, 6, 3, 3), MultiTile(8, 1, 2, 1, 2, 2, 2, 2)
    w = rng.standard_normal(problem.weight_shape).astype(np.float32)
    packed = prefetch_multi.pack(w, problem, tile)
    assert packed.shape == (2, 2, 32, 4)  # 3 channels x 9 taps in 4 segments of 8
    for m, c, r, s in [(0, 0, 0, 0), (5, 4, 2, 1), (3, 3, 1, 2)]:
        split, channel = divmod(c, 3)
        assert packed[m // 4, split, channel * 9 + r * 3 + s, m % 4] == w[r, s, c, m]
    assert not packed[1, :, :, 2:].any()  # six filters in two blocks of four
    assert not packed[:, 1, 18:].any()  # the second part has two channels
