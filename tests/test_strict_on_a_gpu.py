"""The literal kernels of the Pascal paper and the Tegra slides on shapes of their papers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lenetgpu.check.judge import check_variant, judge
from lenetgpu.check.truth import random_input
from lenetgpu.gpu.device import current_arch
from lenetgpu.gpu.nvrtc import compile_together
from lenetgpu.layouts import from_nhwc, to_nhwc
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import variants
from lenetgpu.stages.conv.prefetch.single_strict import launch_parts, prepare
from lenetgpu.stages.conv.prefetch.single_strict_plan import StrictParts
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
    "wide lines, one channel": Conv(9, 3000, 1, 5, 3, 3),
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


@pytest.mark.parametrize("streams", ["lines", "filters"])
@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_pieces_are_prefetched(streams, pieces, rng):
    """What no shape of the paper needs on a large GPU."""
    import cupy

    problem = Conv(60, 50, 1, 70, 3, 5, pad=1, reads="NCHW", writes="NCHW")
    divided = (1, 7) if streams == "lines" else (7, 1)
    parts = StrictParts(*divided, streams, pieces, 9)
    x, w = random_input("conv", problem, 3, rng)
    y = cupy.full((3, *problem.out_shape[2:], *problem.out_shape[:2]), cupy.nan, cupy.float32)
    held = cupy.asarray(np.ascontiguousarray(from_nhwc(x, "NCHW")))
    launch_parts(held, prepare(w, problem, 3), y, problem, parts)
    found = to_nhwc(y.get(), "NCHW", problem.out_shape)
    verdict = judge(found, reference(x, w, problem, cupy).get(), "fp32")
    assert verdict.passed, str(verdict)
