"""The texture convolution: its tilings, what it refuses, batches beyond the array's planes."""

from __future__ import annotations

import numpy as np
import pytest
from problems import ODD, in_layouts

from lenetgpu.check.judge import check_variant
from lenetgpu.check.truth import random_input, reference
from lenetgpu.errors import LenetError
from lenetgpu.gpu.machines import H200
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.texture import Tiling, tiling_for, tilings

VARIANTS = [find("conv", f"texture.{name}", "cuda") for name in ("direct", "split")]
OVERFEAT_6 = Conv(15, 15, 1024, 1024, 3, 3, 1, 1, reads="NCHW", writes="NCHW")


def test_the_papers_tile_covers_the_papers_map():
    paper = Tiling(OVERFEAT_6, (5, 8), maps=1, tiles=(3, 2))
    assert paper.threads == 32 * 6
    assert paper.footprint == (17, 18)
    assert paper.blocks(1) == 1024 // 32
    assert (paper.filter_rows, paper.set_channels, paper.taps) == (3, 4, 36)


@pytest.mark.parametrize("slides", [True, False])
@pytest.mark.parametrize("base", [*ODD["conv"], OVERFEAT_6])
def test_tilings_divide_what_the_kernel_must_divide(base, slides):
    for problem in in_layouts(VARIANTS[0], base):
        for tiling in tilings(problem, slides):
            assert not slides or tiling.maps == tiling.split == 1
            assert problem.C % (tiling.stage * tiling.split) == 0
            assert tiling.stage % tiling.set_channels == 0
            assert problem.R % tiling.filter_rows == 0
            assert tiling.tile[1] % 4 == 0
            assert tiling.unit >= tiling.images * np.prod(tiling.tiles) * 32 // tiling.maps
            assert tiling.unit == 32 or tiling.split == 1


def test_more_images_change_the_tiling():
    few, many = tilings(OVERFEAT_6)
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
def test_refusals(problem, why):
    for variant in VARIANTS:
        assert why in variant.refusal(problem)


@pytest.mark.gpu
def test_a_texture_too_deep_is_refused():
    from lenetgpu.gpu.texture import Texture3D

    with pytest.raises(LenetError, match="8x8x1000000"):
        Texture3D(8, 8, 1_000_000)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.full_name)
def test_a_batch_in_parts(variant, n, rng):
    """Images that fill the array's planes alone: every one is a part of its own."""
    problem = Conv(3, 4, 9000, 5, 1, 2, 1, 1, reads="NCHW", writes="NCHW")
    x, w = random_input("conv", problem, n, rng)
    verdict = check_variant(variant, problem, x, w, reference("conv", x, w, problem))
    assert verdict.passed, str(verdict)
