"""Which algorithm for which shape, of what was measured: docs/convolutions.md's tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conv_choices import machine_of, timed
from conv_tables import SHIPS, rounds
from measured import GPU, Document, how_sure, load, there, where

from lenetgpu.dispatch.choose import choices, off_by
from lenetgpu.dispatch.measured import TABLE, Measured, read_table
from lenetgpu.gpu.machines import FULL_NAMES, USUAL, Machine
from lenetgpu.lab.conv.given import taken
from lenetgpu.lab.show.conv_document import geometric_mean, shape_text
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv

GPUS = (GPU, "nvidia-h100-80gb-hbm3")
"""The folders of GPUs on which the suites of convolutions were measured."""
FEW, SMALL = 4, 16
"""Channels and map sides up to which a class is called so."""


@dataclass(frozen=True)
class Class:
    """Convolutions that are alike: in words, and which they are."""

    words: str
    holds: Callable[[Conv, int], bool]


CLASSES = (
    Class("groups and depthwise", lambda p, n: p.groups > 1),
    Class("one channel", lambda p, n: p.C == 1),
    Class("a few channels (an RGB image)", lambda p, n: p.C <= FEW),
    Class("1x1, maps up to 16x16", lambda p, n: p.R == 1 and p.H <= SMALL),
    Class("1x1, larger maps", lambda p, n: p.R == 1),
    Class("3x3, maps up to 16x16, 1 image", lambda p, n: p.R == 3 and p.H <= SMALL and n == 1),
    Class("5x5, maps up to 16x16, 1 image", lambda p, n: p.R == 5 and p.H <= SMALL and n == 1),
    Class("3x3 and 5x5, larger maps, 1 image", lambda p, n: p.R in (3, 5) and n == 1),
    Class("3x3 and 5x5, many images", lambda p, n: p.R in (3, 5)),
    Class("other filters", lambda p, n: True),
)


@dataclass
class Found:
    """What was measured of a class: shapes, wins, ratios to cuDNN of the fastest and of best."""

    shapes: int = 0
    wins: dict[str, int] = field(default_factory=dict)
    fastest: list[float] = field(default_factory=list)
    chosen: list[float] = field(default_factory=list)

    def add(self, case: dict[str, Any], machine: Machine) -> None:
        """One more shape, measured on `machine`."""
        entries = {entry["name"]: entry for entry in case["candidates"]}
        times = timed(case, machine)
        self.shapes += 1
        if len(times) > 1:
            name = min(times, key=times.__getitem__)
            self.wins[name] = self.wins.get(name, 0) + 1
            self.fastest += _speedup(entries[name])
        self.chosen += _speedup(entries.get(SHIPS, {}))


def _speedup(entry: dict[str, Any]) -> list[float]:
    return [entry["speedup"]] if "speedup" in entry else []


def class_of(problem: Conv, images: int) -> Class:
    """The first class that the convolution is of."""
    return next(one for one in CLASSES if one.holds(problem, images))


def _documents(gpu: str) -> list[Document]:
    return [load(gpu, "conv", f"{n}.json") for n in SUITES if there(gpu, "conv", f"{n}.json")]


def _ratio(values: list[float]) -> str:
    mean = geometric_mean(values)
    return "-" if mean is None else f"{mean:.2f}x ({min(values):.2f}x to {max(values):.2f}x)"


def _wins(found: Found) -> str:
    ranked = sorted(found.wins.items(), key=lambda item: -item[1])
    return ", ".join(f"`{name}` {count}" for name, count in ranked) or "not told apart"


def which() -> str:
    """A table a GPU, a row a class: which of best's algorithms won how often, and how far ahead."""
    tables = [_which(documents) for gpu in GPUS if (documents := _documents(gpu))]
    empty = "Not measured yet: `python scripts/measure.py --only conv` on a GPU fills it."
    return "\n\n".join(tables) or empty


def _which(documents: list[Document]) -> str:
    rows: dict[str, Found] = {one.words: Found() for one in CLASSES}
    for document in documents:
        for case in document["cases"]:
            problem = taken(case["shape"]).problem
            rows[class_of(problem, case["images"]).words].add(case, machine_of(document))
    counts = [n for document in documents for n in rounds(document)]
    peers = ", ".join(dict.fromkeys(document["peer"] for document in documents))
    lines = [
        f"{where(*documents)}; {peers}; suites "
        f"{', '.join(document['suite'] for document in documents)}; "
        + how_sure(counts, *documents, of="a shape"),
        "",
        "| convolutions | shapes | take (how often it was the fastest of those that "
        f"`{SHIPS}` may run) | that over cuDNN | `{SHIPS}` over cuDNN, as it chose then |",
        "|---|---:|---|---:|---:|",
    ]
    lines += [
        f"| {words} | {found.shapes} | {_wins(found)} | {_ratio(found.fastest)} "
        f"| {_ratio(found.chosen)} |"
        for words, found in rows.items()
        if found.shapes
    ]
    return "\n".join(lines)


def _shape(problem: Conv, row: Measured, on: str) -> str:
    return f"{shape_text(problem)}, {row.images:,} image{'s' * (row.images > 1)}{on}"


def misses() -> str:
    """How far the model is off the fastest on the convolutions of the table that ships."""
    rows = [(p, row) for (_, p), rows in read_table(TABLE).items() for row in rows]
    devices = sorted({row.device for _, row in rows})
    off = []
    for problem, row in rows:
        options = choices(problem, row.images, FULL_NAMES.get(row.device, USUAL))
        model = next((option.algorithm for option in options if option.algorithm in row.us), "")
        if (times := off_by(model, row)) is not None:
            on = f" on {row.device}" if len(devices) > 1 else ""
            off.append((times, _shape(problem, row, on), model, row))
    off.sort(key=lambda found: -found[0])
    mean = geometric_mean([found[0] for found in off])
    right = sum(found[0] == 1 for found in off)
    dates = sorted({row.date for _, row in rows})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = [
        f"{', '.join(devices)}, {span}: of {len(off)} convolutions of the table that ships, of the "
        f"algorithms that were timed there, the model takes the fastest on {right}; it is "
        f"{mean:.3f}x off in the geometric mean. Where it misses by more than a hundredth:",
        "",
        "| C,H,W,M,K,stride,pad | of them the model takes | us | the fastest | us | off |",
        "|---|---|---:|---|---:|---:|",
    ]
    lines += [
        f"| {shape} | `{model}` | {row.us[model]:,.2f} | `{row.algorithm}` "
        f"| {row.us[row.algorithm]:,.2f} | {times:.2f}x |"
        for times, shape, model, row in off
        if times > 1.01
    ]
    return "\n".join(lines)


BLOCKS = {"which-algorithm": which, "model-misses": misses}
