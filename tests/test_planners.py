"""Tests of the plans of our own convolutions, without a GPU: transforms, tiles, costs."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from problems import ODD, in_layouts

from lenetgpu.check.judge import check_variant
from lenetgpu.check.reference import random_input, reference
from lenetgpu.dispatch.choose import choices
from lenetgpu.errors import LenetError
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.workspace import images_within
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.texture import Tiling, tiling_for, tilings
from lenetgpu.stages.conv.tuned import winograd
from lenetgpu.stages.conv.tuned.one_channel import Tile, tiles
from lenetgpu.stages.conv.tuned.product import SPLITS, TILES, Product

MAPS = {"reads": "NCHW", "writes": "NCHW"}
SMALLEST_SHARED_BYTES = 64 << 10  # of sm_75
SINGLE = [shape.problem for shape in SUITES["pascal-single"].shapes]
TEXTURE = [find("conv", f"texture.{name}", "cuda") for name in ("direct", "split")]
OVERFEAT_6 = Conv(15, 15, 1024, 1024, 3, 3, 1, 1, reads="NCHW", writes="NCHW")


def square(size: int, channels: int, side: int, **more: int) -> Conv:
    return Conv(size, size, channels, channels, side, side, **more, **MAPS)


@pytest.mark.parametrize(("outputs", "side"), [(2, 3), (4, 3), (2, 5), (4, 5)])
def test_winograd_transforms_are_exact(outputs, side):
    to_output, from_filter, from_input = winograd.transforms(outputs, side)
    g = [Fraction(3 * i + 1, 7) for i in range(side)]
    d = [Fraction((5 * i * i) % 11 - 4, 3) for i in range(outputs + side - 1)]
    u = [sum(a * b for a, b in zip(row, g, strict=True)) for row in from_filter]
    v = [sum(a * b for a, b in zip(row, d, strict=True)) for row in from_input]
    products = [a * b for a, b in zip(u, v, strict=True)]
    y = [sum(a * b for a, b in zip(row, products, strict=True)) for row in to_output]
    assert y == [sum(g[k] * d[i + k] for k in range(side)) for i in range(outputs)]


def test_gemm_tiles_are_valid():
    for tile in TILES:
        assert tile.threads <= 1024
        assert tile.bk % (tile.threads // (tile.bm // 4)) == 0  # each pass copies whole rows
        for columns in (tile.bn, tile.bn // 4):
            assert tile.threads % columns == 0 and tile.bk % (tile.threads // columns) == 0
        for split in SPLITS:
            assert tile.shared(split) <= SMALLEST_SHARED_BYTES
            assert Product(tile, split).blocks_per_sm(H200) >= 1


def test_every_odd_shape_has_a_plan():
    for problem in (base for base in ODD["conv"] if not base.requires):
        for batch in (1, 5, 10_000):
            maps = replace(problem, reads="NCHW", writes="NCHW")
            assert choices(maps, batch, H200)[0].cycles > 0


def test_workspace_holds_at_least_one_whole_image():
    assert images_within(10, 100, 1_000) == 10
    assert images_within(11, 100, 1_000) == 10
    assert images_within(11, 101, 1_000) == 9
    assert images_within(11, 5_000, 1_000) == 1
    assert images_within(10_000, 1 << 20) == 1024


def test_direct_tiles_fit_into_registers():
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


def test_several_channels_and_large_filters_are_refused():
    variant = find("conv", "direct.tuned_single", "cuda")
    assert variant.refusal(Conv(9, 9, 1, 3, 8, 8)) is None
    assert "one-channel maps, not 2 channels" in variant.refusal(Conv(9, 9, 2, 3, 3, 3))
    assert "up to 64 elements, not 81" in variant.refusal(Conv(9, 9, 1, 3, 9, 9))


def test_papers_tile_covers_its_map():
    paper = Tiling(OVERFEAT_6, (5, 8), maps=1, tiles=(3, 2))
    assert paper.threads == 32 * 6
    assert paper.footprint == (17, 18)
    assert paper.blocks(1) == 1024 // 32
    assert (paper.filter_rows, paper.set_channels, paper.elements) == (3, 4, 36)


@pytest.mark.parametrize("slides", [True, False])
@pytest.mark.parametrize("base", [*ODD["conv"], OVERFEAT_6])
def test_texture_tilings_divide_channels_and_filters(base, slides):
    for problem in in_layouts(TEXTURE[0], base):
        for tiling in tilings(problem, H200, slides):
            assert not slides or tiling.maps == tiling.split == 1
            assert problem.C % (tiling.stage * tiling.split) == 0
            assert tiling.stage % tiling.set_channels == 0
            assert problem.R % tiling.filter_rows == 0
            assert tiling.tile[1] % 4 == 0
            assert tiling.unit >= tiling.images * np.prod(tiling.tiles) * 32 // tiling.maps
            assert tiling.unit == 32 or tiling.split == 1


def test_tiling_depends_on_batch_size():
    few, many = tilings(OVERFEAT_6, H200)
    assert tiling_for(OVERFEAT_6, 1, H200) == few
    assert tiling_for(OVERFEAT_6, 1000, H200) == many
    assert few.split > many.split == 1


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (Conv(2, 20_000, 1, 1, 1, 1), "up to 16384"),
        (Conv(4, 4, 20_000, 1, 1, 1), "up to 16384"),
        (Conv(64, 200, 1, 1, 3, 150), "row of coefficients"),
    ],
)
def test_unsupported_texture_shapes_are_refused(problem, why):
    for variant in TEXTURE:
        assert why in variant.refusal(problem)


@pytest.mark.gpu
def test_texture_beyond_depth_limit_is_refused():
    from lenetgpu.gpu.texture import Texture3D

    with pytest.raises(LenetError, match="8x8x1000000"):
        Texture3D(8, 8, 1_000_000)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("variant", TEXTURE, ids=lambda v: v.full_name)
def test_large_batch_is_split_into_textures(variant, n, rng):
    """Fill the array's planes with each image, so that every image is a part of its own."""
    problem = Conv(3, 4, 9000, 5, 1, 2, 1, 1, reads="NCHW", writes="NCHW")
    x, w = random_input("conv", problem, n, rng)
    verdict = check_variant(variant, problem, x, w, reference("conv", x, w, problem))
    assert verdict.passed, str(verdict)
