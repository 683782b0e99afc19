from __future__ import annotations

import itertools

import pytest

from lenetgpu.network import STAGES, weight_shapes
from lenetgpu.problems import Conv


def test_shapes_chain():
    for before, after in itertools.pairwise(STAGES):
        out, into = before.problem.out_shape, after.problem.in_shape
        items = 1
        for extent in out:
            items *= extent
        assert (out == into) or (items,) == into


def test_multiply_adds_per_image_match_the_published_counts():
    counts = {s.name: s.problem.flop(1) // 2 for s in STAGES if s.kind in ("conv", "fc")}
    assert counts == {"conv1": 460_800, "conv2": 3_276_800, "fc1": 131_072, "fc2": 1_280}


def test_weight_shapes_are_the_course_files():
    assert weight_shapes() == {
        "conv1": (5, 5, 1, 32),
        "conv2": (5, 5, 32, 64),
        "fc1": (1024, 128),
        "fc2": (128, 10),
    }


@pytest.mark.parametrize(
    ("size", "taps", "stride", "pad", "out"), [(28, 5, 1, 0, 24), (11, 3, 2, 1, 6), (7, 7, 3, 0, 1)]
)
def test_output_size(size, taps, stride, pad, out):
    assert out == Conv(size, size, 1, 1, taps, taps, stride, pad).OH
