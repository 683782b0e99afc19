"""The convolutions of ResNet-50, VGG-16 and MobileNetV2, as their papers' tables have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil

from lenetgpu.problems import Conv

BATCH, SIDE = 64, 224
"""Images in a pass of these suites, and the width of an image, RGB."""
PADDED = "the table does not say how it pads: 3x3 filters have 1 on every side here, 7x7 ones 3"
# stage -> (map's side, channels of a block, its blocks)
_RESNET_50 = {2: (56, 64, 3), 3: (28, 128, 4), 4: (14, 256, 6), 5: (7, 512, 3)}
# (map's side, maps of each layer of it)
_VGG_16 = ((224, (64, 64)), (112, (128, 128)), (56, (256,) * 3), (28, (512,) * 3),
           (14, (512,) * 3))  # fmt: skip
# (expansion, channels, blocks, stride of the first of them)
_MOBILENET_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                 (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
_CLASSES = 1000

Layer = tuple[str, Conv]


def _conv(side: int, channels: int, maps: int, taps: int = 1, stride: int = 1, groups: int = 1
          ) -> Conv:  # fmt: skip
    return Conv(side, side, channels, maps, taps, taps, stride, taps // 2, groups=groups)


def resnet_50() -> Iterator[Layer]:
    """All 53: the first block of a stage halves its map, in its 1x1 and in the way past it."""
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
    """The 13 of column D."""
    before = 3
    for block, (side, layers) in enumerate(_VGG_16, 1):
        for maps in layers:
            yield f"block {block}", _conv(side, before, maps, 3)
            before = maps


def mobilenet_v2() -> Iterator[Layer]:
    """All 53, the classes' own 1x1 among them; 17 are depthwise."""
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
    yield "classes", _conv(1, 1280, _CLASSES)


def distinct(layers: Iterator[Layer]) -> Iterator[tuple[str, Conv, int]]:
    """Each convolution once: a name of its own, and how often it is there."""
    layers_of: dict[Conv, str] = {}
    counts: Counter[Conv] = Counter()
    for name, asked in layers:
        layers_of.setdefault(asked, name)
        counts[asked] += 1
    names = Counter(layers_of.values())
    for asked, name in layers_of.items():
        sizes = f" {asked.C} to {asked.M}" if names[name] > 1 else ""
        yield f"{name}{sizes}", asked, counts[asked]
