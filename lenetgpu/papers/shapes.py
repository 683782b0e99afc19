"""Shapes of the convolution papers, with the papers' claims about them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from lenetgpu.network import STAGES
from lenetgpu.papers.convnet2 import PAPER_TOTAL_NOTE, SHAPES, TABLE_1_NOTE
from lenetgpu.problems import Conv


@dataclass(frozen=True)
class Shape:
    """A convolution of a suite: its label, its number of images, and the paper's figure for it."""

    label: str
    problem: Conv
    batch: int = 1
    paper: str = ""
    count: int = 1  # how often a network contains it


@dataclass(frozen=True)
class Unsupported:
    """An unsupported convolution: `why` gives the reason; `problem` is None if it is unknown."""

    label: str
    problem: Conv | None
    batch: int
    why: str
    count: int = 1


Row = Shape | Unsupported


@dataclass(frozen=True)
class Suite:
    """Shapes of one paper or network, and the paper's claim."""

    name: str
    title: str
    literal: tuple[str, ...]  # variants that reproduce its kernels
    after: tuple[str, ...]  # variants that follow its proposal
    says: str  # the claim in words
    rows: tuple[Row, ...]
    claim: tuple[float, float, float] | None = None  # over its baseline: average, least, most
    notes: tuple[str, ...] = ()  # how its text was interpreted
    source: str = ""  # of a network's convolutions, whose times are summed, each `count` times

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The supported rows."""
        return tuple(row for row in self.rows if isinstance(row, Shape))


_SINGLE = ((28, 512), (56, 256), (112, 128), (224, 64), (512, 64), (1024, 32))
_MULTI = (
    (7, 512), (14, 512), (28, 512), (28, 256), (56, 256),
    (56, 128), (112, 128), (112, 64), (224, 64), (512, 64),
)  # fmt: skip
# layer -> (channels, maps, filter side, pad, stride, input side), the paper's FFMA per byte
_OVERFEAT = {
    1: ((3, 96, 7, 0, 2, 221), 31.8),
    2: ((96, 256, 7, 0, 1, 36), 173.8),
    3: ((256, 512, 3, 1, 1, 15), 48.5),
    4: ((512, 512, 3, 1, 1, 15), 50.6),
    5: ((512, 1024, 3, 1, 1, 15), 52.1),
    6: ((1024, 1024, 3, 1, 1, 15), 53.3),
}
_LENET_BATCHES = (1, 10_000)
_CONVNET2_LITERAL = (
    "convnet2.rolled", "convnet2.unrolled", "convnet2.strength_reduced", "convnet2.hoisted_checks",
)  # fmt: skip
# the proposed hardware, replaced by what a GPU has: a look-up, the TMA, tensor cores
_CONVNET2_AFTER = (
    "convnet2.index_table", "convnet2.inner_product", "convnet2.outer_product",
    "convnet2.index_engine",
)  # fmt: skip


def _pascal(sizes: tuple[tuple[int, int], ...], single: bool) -> Iterator[Shape]:
    for side, maps in sizes:
        for k in (1, 3, 5):
            yield Shape(f"{side}x{maps} K{k}", Conv(side, side, 1 if single else maps, maps, k, k))


def _overfeat() -> Iterator[Shape]:
    for layer, ((channels, maps, k, pad, stride, side), intensity) in _OVERFEAT.items():
        paper = f"{intensity} FFMA/byte" + (", 75 % of the peak" if layer == 6 else "")
        problem = Conv(side, side, channels, maps, k, k, stride, pad)
        yield Shape(f"layer {layer}", problem, paper=paper)


def _convnet2() -> Iterator[Shape]:
    for label, (problem, batch) in SHAPES.items():
        paper = "524k to 148k cycles" if label.startswith("table 1") else ""
        yield Shape(label, replace(problem, reads="NHWC", writes="NHWC"), batch, paper)


def images_of(batch: int) -> str:
    """Return the label suffix of a shape that a suite has for several numbers of images."""
    return f", {batch:,} images"


def _lenet() -> Iterator[Shape]:
    for stage in STAGES:
        if isinstance(stage.problem, Conv):
            for batch in _LENET_BATCHES:
                yield Shape(f"{stage.name}{images_of(batch)}", stage.problem, batch)


BATCH, SIDE = 64, 224  # Images in a pass of these suites, and the side of an RGB image.
PADDED = "the table does not say how it pads: 3x3 filters have 1 on every side here, 7x7 ones 3"
# stage -> (map's side, channels of a block, its blocks)
_RESNET_50 = {2: (56, 64, 3), 3: (28, 128, 4), 4: (14, 256, 6), 5: (7, 512, 3)}
# (map's side, maps of each layer of it)
_VGG_16 = ((224, (64, 64)), (112, (128, 128)), (56, (256,) * 3), (28, (512,) * 3),
           (14, (512,) * 3))  # fmt: skip
# (expansion, channels, blocks, stride of the first of them)
_MOBILENET_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                 (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip

Layer = tuple[str, Conv]


def _conv(side: int, channels: int, maps: int, k: int = 1, stride: int = 1, groups: int = 1
          ) -> Conv:  # fmt: skip
    return Conv(side, side, channels, maps, k, k, stride, k // 2, groups=groups)


def resnet_50() -> Iterator[Layer]:
    """Yield all 53 convolutions; the first block of stages 3 to 5 halves its map."""
    yield "conv1", _conv(SIDE, 3, 64, 7, 2)
    before, last = 64, 56
    for stage, (side, channels, blocks) in _RESNET_50.items():
        for block in range(blocks):
            stride = last // side
            yield f"conv{stage}_x in", _conv(last, before, channels, 1, stride)
            yield f"conv{stage}_x", _conv(side, channels, channels, 3)
            yield f"conv{stage}_x out", _conv(side, channels, 4 * channels)
            if block == 0:
                yield f"conv{stage}_x past", _conv(last, before, 4 * channels, 1, stride)
            before, last = 4 * channels, side


def vgg_16() -> Iterator[Layer]:
    """Yield the 13 convolutions of column D."""
    before = 3
    for block, (side, layers) in enumerate(_VGG_16, 1):
        for maps in layers:
            yield f"block {block}", _conv(side, before, maps, 3)
            before = maps


def mobilenet_v2() -> Iterator[Layer]:
    """Yield all 53 convolutions, the classifier's 1x1 included; 17 are depthwise."""
    yield "first", _conv(SIDE, 3, 32, 3, 2)
    side, before = SIDE // 2, 32
    for row, (expansion, channels, blocks, first) in enumerate(_MOBILENET_V2, 1):
        for block in range(blocks):
            stride = first if block == 0 else 1
            wide = expansion * before
            if expansion > 1:
                yield f"bottleneck {row} in", _conv(side, before, wide)
            yield f"bottleneck {row} depthwise", _conv(side, wide, wide, 3, stride, wide)
            side = ceil(side / stride)
            yield f"bottleneck {row} out", _conv(side, wide, channels)
            before = channels
    yield "last", _conv(side, before, 1280)
    yield "classes", _conv(1, 1280, 1000)


def distinct(layers: Iterator[Layer]) -> Iterator[tuple[str, Conv, int]]:
    """Yield each convolution once, with a unique name and its count."""
    listed = list(layers)
    counts = Counter(problem for _, problem in listed)
    first = {problem: name for name, problem in reversed(listed)}
    names = Counter(first.values())
    for problem in counts:
        sizes = f" {problem.C} to {problem.M}" if names[first[problem]] > 1 else ""
        yield f"{first[problem]}{sizes}", problem, counts[problem]


def _network(name: str, title: str, layers: Iterator[Layer], source: str) -> Suite:
    rows = [Shape(label, problem, BATCH, count=count) for label, problem, count in distinct(layers)]
    return Suite(name, title, (), (), "", tuple(rows), notes=(PADDED,), source=source)


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "pascal-single", "Pascal, single channel (map x filters)",
            ("prefetch.single_strict",), ("prefetch.single",),
            "2.6x cuDNN 7.1 on a GTX 1080 Ti on average, 1.5x to 5.6x",
            tuple(_pascal(_SINGLE, True)), (2.6, 1.5, 5.6),
        ),
        Suite(
            "pascal-multi", "Pascal, multi channel (map x channels in and out)",
            ("prefetch.strict",), ("prefetch.stride_fixed",),
            "1.39x cuDNN 7.1 on a GTX 1080 Ti on average, 1.05x to 2x",
            tuple(_pascal(_MULTI, False)), (1.39, 1.05, 2.0),
        ),
        Suite(
            "overfeat", "Tegra X1, Overfeat's layers",
            ("texture.slides",), ("texture.direct", "texture.split"),
            "layer 6 at 75 % of the peak of a Tegra X1; no library beside it", tuple(_overfeat()),
        ),
        Suite(
            "convnet2", "cuda-convnet2 enhancement", _CONVNET2_LITERAL, _CONVNET2_AFTER,
            "4.4x its own baseline, simulated GTX 480; no library beside it", tuple(_convnet2()),
            notes=(TABLE_1_NOTE, PAPER_TOTAL_NOTE),
        ),
        Suite("lenet", "this network's convolutions", (), (), "", tuple(_lenet())),
        _network(
            "resnet50", "ResNet-50's convolutions", resnet_50(),
            "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (2015), Table 1, "
            "50-layer, shortcuts B",
        ),
        _network(
            "vgg16", "VGG-16's convolutions", vgg_16(),
            "Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image "
            "Recognition (2014), Table 1, column D",
        ),
        _network(
            "mobilenet-v2", "MobileNetV2's convolutions", mobilenet_v2(),
            "Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: Inverted Residuals and Linear "
            "Bottlenecks (2018), Table 2",
        ),
    )
}  # fmt: skip
