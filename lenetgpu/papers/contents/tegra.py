"""The Tegra X1 slides, by title: they have no numbers."""

from __future__ import annotations

from lenetgpu.papers.contents import SLIDE, Item, Text

_SHAPES, _KERNEL = "papers/shapes.py:SUITES", "stages/conv/tegra/slides.cu"
_ANALYSIS, _TABLES = (
    "stages/conv/tegra/slides.py",
    "docs/convolutions.md#the-papers-kernels",
)

TEXT = Text(
    "Tegra X1",
    "Direct Convolution for Deep Neural Network Classification on Tegra X1 (slides, GTC 2015)",
    ("Tegra X1",),
    (
        Item(SLIDE, "convolutional neural network", "a picture", why="a picture of a network"),
        Item(SLIDE, "convolutional layer", "an example", ("problems.py:Conv",)),
        Item(
            SLIDE, "math/memory ratio", "FFMA a byte of Overfeat's layers",
            (_SHAPES, f"{_ANALYSIS}:math_per_byte", _TABLES),
        ),
        Item(SLIDE, "layer configuration variety", "Overfeat's layers", (_SHAPES,)),
        Item(
            SLIDE, "input/coefficient ratio", "inputs over coefficients",
            (_SHAPES, f"{_ANALYSIS}:input_per_coefficient", _TABLES),
            gaps=(("texture.slides", "the shapes only: the ratio is not computed"),),
        ),
        Item(
            SLIDE, "workload distribution", "by output space", (_KERNEL,),
            gaps=(("texture.slides", "tiles of 5 x 8 with a block a map are not what runs"),),
        ),
        Item(SLIDE, "data reuse", "a picture", (_KERNEL,)),
        Item(SLIDE, "data reuse: input pixels", "the footprint in shared memory", (_KERNEL,)),
        Item(SLIDE, "data reuse: coefficients", "by the cache", (_KERNEL,)),
        Item(SLIDE, "input pixels layout", "a 3D texture", ("gpu/texture.py:Texture3D",)),
        Item(SLIDE, "per-thread pseudo code", "the kernel"),
        Item(
            SLIDE, "performance", "layer 6, as a share of the peak",
            (_SHAPES, "docs/measured.md#tegra-x1-overfeats-layers",),
            "no Tegra X1 is measured on",
        ),
        Item(SLIDE, "summary", "of the slides", why="sums up"),
    ),
)  # fmt: skip
