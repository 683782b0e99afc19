"""Plans of our own convolutions: exact transforms, legal tiles, explainable choices; no GPU."""

from __future__ import annotations

from fractions import Fraction
from itertools import product as pairs

import pytest
from problems import ODD

from lenetgpu.dispatch import choose as best
from lenetgpu.gpu.machines import H200
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tuned import direct as tuned
from lenetgpu.stages.conv.tuned import winograd
from lenetgpu.stages.conv.tuned.clocks import product_clocks
from lenetgpu.stages.conv.tuned.product import SPLITS, TILES, Product

MAPS = {"reads": "NCHW", "writes": "NCHW"}
SMALLEST_SHARED_BYTES = 64 << 10  # of sm_75


def square(size: int, channels: int, taps: int, **more: int) -> Conv:
    return Conv(size, size, channels, channels, taps, taps, **more, **MAPS)


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (2, 5), (4, 5)])
def test_transforms_are_exact(outputs, taps):
    to_output, from_filter, from_input = winograd.transforms(outputs, taps)
    g = [Fraction(3 * i + 1, 7) for i in range(taps)]
    d = [Fraction((5 * i * i) % 11 - 4, 3) for i in range(outputs + taps - 1)]
    u = [sum(a * b for a, b in zip(row, g, strict=True)) for row in from_filter]
    v = [sum(a * b for a, b in zip(row, d, strict=True)) for row in from_input]
    products = [a * b for a, b in zip(u, v, strict=True)]
    y = [sum(a * b for a, b in zip(row, products, strict=True)) for row in to_output]
    assert y == [sum(g[k] * d[i + k] for k in range(taps)) for i in range(outputs)]


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (2, 5), (4, 5)])
def test_coefficients_have_short_binary_fractions(outputs, taps):
    to_output, _, from_input = winograd.transforms(outputs, taps)
    for row in (*to_output, *from_input):
        for value in row:
            assert Fraction(float(value)) == value and value.denominator <= 1 << 12
            assert abs(value.numerator) < 1 << 24


@pytest.mark.parametrize("tile", TILES)
def test_tiles_are_legal(tile):
    assert tile.threads <= 1024
    assert tile.bk % (tile.threads // (tile.bm // 4)) == 0  # a pass of copies is whole rows
    for columns in (tile.bn, tile.bn // 4):
        assert tile.threads % columns == 0 and tile.bk % (tile.threads // columns) == 0
    for split in SPLITS:
        assert tile.shared(split) <= SMALLEST_SHARED_BYTES
        assert Product(tile, split).resident(H200) >= 1


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (square(7, 512, 1), "direct.tuned"),
        (square(28, 512, 5), "tensor.wgmma_fp16x3"),
        (square(14, 512, 3), "winograd.f4"),
        (Conv(224, 224, 1, 64, 3, 3, **MAPS), "direct.tuned_single"),
        (square(28, 64, 3, stride=2), "direct.tuned"),
    ],
)
def test_the_choice_is_known_and_explained(problem, expected):
    options = best.choices(problem, 1)
    assert options[0].algorithm == expected
    assert [o.clocks for o in options] == sorted(o.clocks for o in options)
    rows = best.explain(problem, 64, H200)
    model = best.choices(problem, 64, H200)
    assert rows[0] == ("chosen", f"{model[0].algorithm}, by the model")
    priced = [name for name, figure in rows if "by the model, " in figure]
    assert priced == [option.algorithm for option in model]


def test_small_maps_split_the_depth():
    for taps in (3, 5):
        plan = tuned.plan(square(7, 512, taps), 1)
        assert plan.split * plan.tile.warps_k >= 8
    assert tuned.plan(square(224, 64, 3), 8).split == 1


def test_more_work_never_costs_less():
    problem = square(28, 64, 3)
    for tile, split in pairs(TILES, SPLITS):
        product = Product(tile, split)
        clocks = [product_clocks(product, problem, n, 1, H200) for n in (1, 2, 16, 256)]
        assert clocks == sorted(clocks)


def test_every_odd_shape_has_a_plan():
    for problem in (base for base in ODD["conv"] if not base.wants):
        for batch in (1, 5, 10_000):
            assert best.choices(problem, batch)[0].clocks > 0
