"""The literal kernels of the Pascal paper and the Tegra slides on shapes of their papers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lenetgpu.check.judge import check_variant
from lenetgpu.check.truth import random_input
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import variants
from lenetgpu.stages.conv.reference import reference

pytestmark = pytest.mark.gpu
LITERAL = [
    variant
    for variant in variants("conv", "cuda")
    if variant.full_name.startswith(("prefetch.single_strict", "prefetch.strict"))
    or variant.full_name == "texture.slides"
]
SHAPES = {
    shape.label: shape.problem
    for suite in ("pascal-single", "pascal-multi", "overfeat")
    for shape in SUITES[suite].shapes
    if shape.problem.flop(1) < 2e9
}
MORE = {
    "wide lines, one channel": Conv(9, 3000, 1, 5, 3, 3),  # pieces are prefetched
    "more filters than sums": Conv(5, 6, 3, 700, 2, 2),
    "padded beyond the filter": Conv(4, 5, 7, 9, 1, 1, pad=2),
}


@pytest.mark.parametrize("variant", LITERAL, ids=lambda v: v.full_name)
@pytest.mark.parametrize("n", [1, 2])
def test_on_the_papers_shapes(variant, n, rng):
    import cupy

    done = 0
    for label, base in (SHAPES | MORE).items():
        problem = replace(base, reads="NCHW", writes="NCHW")
        if variant.refusal(problem) is not None:
            continue
        x, w = random_input("conv", problem, n, rng)
        verdict = check_variant(variant, problem, x, w, reference(x, w, problem, cupy).get())
        assert verdict.passed, f"{verdict} for {label}"
        done += 1
    assert done > 5
