"""The shapes of the convolution papers, with what the papers say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lenetgpu.network import STAGES
from lenetgpu.papers import networks
from lenetgpu.papers.convnet2 import PAPER_TOTAL_NOTE, SHAPES, TABLE_1_NOTE
from lenetgpu.problems import Conv

KERNEL_SIDES = (1, 3, 5)


@dataclass(frozen=True)
class Shape:
    """A convolution of a suite: its label, how many images, and the paper's figure for it.

    `count` is how often a network has it.
    """

    label: str
    problem: Conv
    batch: int = 1
    paper: str = ""
    count: int = 1


@dataclass(frozen=True)
class Untaken:
    """A convolution that is not taken, whose `problem` may not be known: `why` says why."""

    label: str
    problem: Conv | None
    batch: int
    why: str
    count: int = 1


Row = Shape | Untaken


@dataclass(frozen=True)
class Suite:
    """Shapes of one paper. `literal` are the variants that are its kernels to the letter.

    `after` are ours that follow its proposal. `claim` is the paper's speed-up over its own
    reference: (average, least, most), None where it gives none; `says` is the claim in words;
    `notes` say how its text was read. `source` says where a network's convolutions are from; they
    are summed, each as often as it is there.
    """

    name: str
    title: str
    literal: tuple[str, ...]
    after: tuple[str, ...]
    says: str
    rows: tuple[Row, ...]
    claim: tuple[float, float, float] | None = None
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The rows that variants are asked for."""
        return tuple(row for row in self.rows if isinstance(row, Shape))


_SINGLE = ((28, 512), (56, 256), (112, 128), (224, 64), (512, 64), (1024, 32))
_MULTI = (
    (7, 512), (14, 512), (28, 512), (28, 256), (56, 256),
    (56, 128), (112, 128), (112, 64), (224, 64), (512, 64),
)  # fmt: skip
# layer -> (channels, maps, taps, pad, stride, input side), the paper's FFMA per byte
_OVERFEAT = {
    1: ((3, 96, 7, 0, 2, 221), 31.8),
    2: ((96, 256, 7, 0, 1, 36), 173.8),
    3: ((256, 512, 3, 1, 1, 15), 48.5),
    4: ((512, 512, 3, 1, 1, 15), 50.6),
    5: ((512, 1024, 3, 1, 1, 15), 52.1),
    6: ((1024, 1024, 3, 1, 1, 15), 53.3),
}
LENET_BATCHES = (1, 10_000)
CONVNET2_LITERAL = (
    "convnet2.rolled", "convnet2.unrolled", "convnet2.strength_reduced", "convnet2.hoisted_checks",
)  # fmt: skip
# hardware that was proposed, by what a GPU has: a look-up, the TMA, tensor cores
CONVNET2_AFTER = (
    "convnet2.index_table", "convnet2.inner_product", "convnet2.outer_product",
    "convnet2.index_engine",
)  # fmt: skip


def _pascal(sizes: tuple[tuple[int, int], ...], single: bool) -> Iterator[Shape]:
    for side, maps in sizes:
        for taps in KERNEL_SIDES:
            problem = Conv(side, side, 1 if single else maps, maps, taps, taps)
            yield Shape(f"{side}x{maps} K{taps}", problem)


def _overfeat() -> Iterator[Shape]:
    for layer, ((channels, maps, taps, pad, stride, side), intensity) in _OVERFEAT.items():
        paper = f"{intensity} FFMA/byte" + (", 75 % of the peak" if layer == 6 else "")
        problem = Conv(side, side, channels, maps, taps, taps, stride, pad)
        yield Shape(f"layer {layer}", problem, paper=paper)


def _convnet2() -> Iterator[Shape]:
    for label, (problem, batch) in SHAPES.items():
        plain = replace(problem, reads="NHWC", writes="NHWC")
        paper = "524k to 148k cycles" if label.startswith("table 1") else ""
        yield Shape(label, plain, batch, paper)


def images_of(batch: int) -> str:
    """What ends the label of a shape that a suite has for several numbers of images."""
    return f", {batch:,} images"


def _lenet() -> Iterator[Shape]:
    for stage in STAGES:
        if isinstance(stage.problem, Conv):
            for batch in LENET_BATCHES:
                yield Shape(f"{stage.name}{images_of(batch)}", stage.problem, batch)


def _network(name: str, title: str, layers: Iterator[networks.Layer], source: str) -> Suite:
    rows = [
        Shape(label, problem, networks.BATCH, count=count)
        for label, problem, count in networks.distinct(layers)
    ]
    return Suite(name, title, (), (), "", tuple(rows), notes=(networks.PADDED,), source=source)


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
            "convnet2", "cuda-convnet2 enhancement", CONVNET2_LITERAL, CONVNET2_AFTER,
            "4.4x its own baseline, simulated GTX 480; no library beside it", tuple(_convnet2()),
            notes=(TABLE_1_NOTE, PAPER_TOTAL_NOTE),
        ),
        Suite(
            "lenet", "this network's convolutions", (), (), "",
            tuple(_lenet()),
        ),
        _network(
            "resnet50", "ResNet-50's convolutions", networks.resnet_50(),
            "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (2015), Table 1, "
            "50-layer, shortcuts B",
        ),
        _network(
            "vgg16", "VGG-16's convolutions", networks.vgg_16(),
            "Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image "
            "Recognition (2014), Table 1, column D",
        ),
        _network(
            "mobilenet-v2", "MobileNetV2's convolutions", networks.mobilenet_v2(),
            "Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: Inverted Residuals and Linear "
            "Bottlenecks (2018), Table 2",
        ),
    )
}  # fmt: skip
