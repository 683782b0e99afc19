"""Shapes of the convolution papers, with the papers' claims about them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lenetgpu.network import STAGES
from lenetgpu.papers import data_of
from lenetgpu.papers.convnet2 import SHAPES
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


_LENET_BATCHES = (1, 10_000)
BATCH = 64  # images in a pass of a network's suite


def _pascal(sizes: Any) -> Iterator[Shape]:
    for side, channels, maps in sizes:
        for k in (1, 3, 5):
            yield Shape(f"{side}x{maps} K{k}", Conv(side, side, channels, maps, k, k))


def _overfeat(layers: Any) -> Iterator[Shape]:
    for layer, (channels, maps, k, pad, stride, side, intensity) in enumerate(layers, 1):
        paper = f"{intensity} FFMA/byte" + (", 75 % of the peak" if layer == 6 else "")
        problem = Conv(side, side, channels, maps, k, k, stride, pad)
        yield Shape(f"layer {layer}", problem, paper=paper)


def _convnet2(_: Any) -> Iterator[Shape]:
    for label, (problem, batch) in SHAPES.items():
        paper = "524k to 148k cycles" if label.startswith("table 1") else ""
        yield Shape(label, replace(problem, reads="NHWC", writes="NHWC"), batch, paper)


def images_of(batch: int) -> str:
    """Return the label suffix of a shape that a suite has for several numbers of images."""
    return f", {batch:,} images"


def _lenet(_: Any) -> Iterator[Shape]:
    for stage in STAGES:
        if isinstance(stage.problem, Conv):
            for batch in _LENET_BATCHES:
                yield Shape(f"{stage.name}{images_of(batch)}", stage.problem, batch)


def _network(layers: Any) -> Iterator[Shape]:
    for label, side, channels, maps, k, stride, groups, count in layers:
        problem = Conv(side, side, channels, maps, k, k, stride, k // 2, groups=groups)
        yield Shape(label, problem, BATCH, count=count)


# How the rows of a suite in shapes.json are read; those of the others are a network's layers.
_READERS: dict[str, Callable[[Any], Iterator[Shape]]] = {
    **dict.fromkeys(("pascal-single", "pascal-multi"), _pascal),
    **{"overfeat": _overfeat, "convnet2": _convnet2, "lenet": _lenet},
}


def _suite(name: str, rows: Any = (), **fields: Any) -> Suite:
    given: dict[str, Any] = {"literal": (), "after": (), "says": ""}
    given |= {field: tuple(v) if isinstance(v, list) else v for field, v in fields.items()}
    return Suite(name=name, rows=tuple(_READERS.get(name, _network)(rows)), **given)


SUITES: dict[str, Suite] = {
    name: _suite(name, **fields) for name, fields in data_of("shapes").items()
}
