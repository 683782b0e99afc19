"""The literal kernels of the Pascal paper and the Tegra slides on shapes of their papers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lenetgpu.check.judge import check_variant
from lenetgpu.check.truth import random_input
from lenetgpu.gpu.device import current_arch
from lenetgpu.gpu.nvrtc import compile_together
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
CHOSEN = {
    "pascal-single": ("28x512 K1", "28x512 K5", "112x128 K3", "224x64 K5"),
    "pascal-multi": ("7x512 K5", "14x512 K3", "28x256 K1", "56x128 K3", "112x64 K5"),
    "overfeat": ("layer 1", "layer 3"),
}
SHAPES = {
    f"{suite}, {shape.label}": shape.problem
    for suite, labels in CHOSEN.items()
    for shape in SUITES[suite].shapes
    if shape.label in labels
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

    laid_out = {
        label: replace(base, reads="NCHW", writes="NCHW") for label, base in (SHAPES | MORE).items()
    }
    taken = {at: problem for at, problem in laid_out.items() if variant.refusal(problem) is None}
    kernels = [kernel for problem in taken.values() for kernel in variant.kernels(problem, n)]
    compile_together(kernels, current_arch())
    for label, problem in taken.items():
        x, w = random_input("conv", problem, n, rng)
        verdict = check_variant(variant, problem, x, w, reference(x, w, problem, cupy).get())
        assert verdict.passed, f"{verdict} for {label}"
    assert len(taken) >= 5
