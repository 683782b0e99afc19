"""One image in host memory to its label in host memory: ours beside PyTorch with a CUDA graph.

Every call has another digit and its label is looked at. Calls are timed one by one by the host's
clock, in interleaved rounds of many; medians and 99th percentiles are of all calls but the first of
a round, which wakes whoever slept while others had their turn.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from beside import (
    OURS,
    WEIGHTS,
    Contestant,
    missing,
    options,
    summary,
    torch_version,
    without,
    write,
)

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.measure.rounds import interleave
from lenetgpu.measure.timing import cpu_ms
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve

RESIDENT = "lenetgpu/stages/fused/resident/resident.cu"
IMAGES, LEAST_CALLS = 1000, 2000
PLANS = ("fp32", "fp16x3", "fp16", "int8")
Label = Callable[[Any], int]
Say = Callable[[str], None]
Way = tuple[str, str, str, Label, Any]
"""(name, maker, plan or precision, image (28, 28, 1) uint8 to label, what is kept alive)."""


def _pipeline(name: str, weights: Weights, gpu: Gpu, size: int) -> Pipeline:
    made = Pipeline(resolve(name, "cuda", gpu=gpu), weights, size)
    made.with_scores = False
    return made


def _streamed(make: Callable[[int], Pipeline]) -> tuple[Label, Any]:
    """A streamer's recorded pass over one page-locked image, which is written before."""
    from lenetgpu.net.streaming import Streamer, host_results

    streamer, image = Streamer(make, 1), pinned_empty((1, 28, 28, 1), "uint8")
    labels, _ = host_results(1, False)

    def label(pixels: Any) -> int:
        image[0] = pixels
        streamer.run(image, labels)
        return int(labels[0])

    return label, streamer


def _recorded(make: Callable[[int], Pipeline]) -> tuple[Label, Any]:
    from lenetgpu.net.streaming import OneImage

    made = OneImage(make)
    return made.label, made


def _resident(weights: Weights) -> tuple[Label, Any]:
    from lenetgpu.stages.fused.resident import Resident

    made = Resident(weights)
    return made.label, made


def _once(weights: Weights) -> tuple[Label, Any]:
    from lenetgpu.stages.fused.resident import Once

    made = Once(weights)
    return made.label, made


def _face(name: str, weight_file: Path | None, **how: Any) -> tuple[Label, Any]:
    from lenetgpu import LeNet

    net = LeNet.load(weight_file, plan=name, device="cuda", batch=1, **how)
    return lambda pixels: int(net(pixels[:, :, 0])), net


def ours(weights: Weights, weight_file: Path | None, gpu: Gpu, say: Say) -> Iterator[Way]:
    """Every way of ours that is there: recorded passes, the resident kernel, LeNet."""
    tried: list[tuple[str, str, Callable[[], tuple[Label, Any]]]] = []
    for name in PLANS:
        make = partial(_pipeline, name, weights, gpu)
        tried.append((f"{name}, recorded", name, partial(_recorded, make)))
    make = partial(_pipeline, "fp16", weights, gpu)
    tried += [
        ("fp16, Streamer", "fp16", partial(_streamed, make)),
        ("fp16, LeNet", "fp16", partial(_face, "fp16", weight_file)),
        ("fp16, LeNet(latency=True)", "fp16", partial(_face, "fp16", weight_file, latency=True)),
        ("fp16, resident", "fp16", partial(_resident, weights)),
        ("by default, LeNet", "fp32", partial(_face, "auto", weight_file)),
        ("resident, launched for one", "fp32", partial(_once, weights)),
    ]
    for words, plan, build in tried:
        try:
            label, kept = build()
        except (LenetError, ImportError, TypeError) as error:
            say(f"{OURS} {words}: not there: {error}")
            continue
        yield f"{OURS} {words}", OURS, plan, label, kept


def theirs(weights: Weights, image: Any, deep: bool, say: Say) -> Iterator[Way]:
    """PyTorch's graphs of one image."""
    from torch_host import contenders

    for name, precision, net in contenders(weights, image[None], ("fp16", "fp32"), deep, say):
        yield name, "torch", precision, net.label, net


class Calls:
    """A way that is called with one digit after another; keeps times and wrong labels."""

    def __init__(self, way: Way, images: Any, truth: Any) -> None:
        self.name, self.maker, self.precision, self.label, self.kept = way
        self.images, self.truth = images, truth
        self.calls: list[float] = []
        self.blocks: list[float] = []
        self.flips = self.next = 0
        self.found = -1

    def _call(self, image: Any) -> None:
        self.found = self.label(image)

    def block(self, count: int) -> float:
        """The median milliseconds of `count` calls, all kept, behind one that is not."""
        lo = len(self.calls)
        self.label(self.images[self.next % len(self.images)])
        for _ in range(count):
            at = self.next % len(self.images)
            self.next += 1
            self.calls.append(cpu_ms(partial(self._call, self.images[at])))
            self.flips += self.found != self.truth[at]
        return float(np.median(self.calls[lo:]))

    def contestant(self) -> Contestant:
        """Its row's facts; the samples are the medians of blocks."""
        one = Contestant(self.name, self.maker, self.precision, lambda: None, lambda: None)
        one.samples = self.blocks
        p50, p99 = np.percentile(self.calls, [50, 99])
        one.facts |= {
            "calls": len(self.calls),
            "flips": int(self.flips),
            "judged": len(self.calls),
            "call_median_ms": float(p50),
            "call_p99_ms": float(p99),
            "call_worst_ms": max(self.calls),
        }
        if self.maker == OURS:
            one.facts["plan"] = self.precision
            stays = re.search("resident|latency|default", self.name)
            one.facts["sources"] = [RESIDENT] if stays else []
        return one


def measure(ways: list[Calls], rounds: int, each: int, say: Say) -> list[Contestant]:
    """Blocks of calls in interleaved rounds, after one that is not kept; the right ones."""
    for way in ways:
        way.block(each)
        way.calls.clear()
    interleave([(partial(way.block, each), way.blocks) for way in ways], rounds)
    found = [way.contestant() for way in ways]
    for one in found:
        if not one.right:
            say(f"{one.name}: WRONG, {one.facts['flips']} of {one.facts['judged']} differ")
    return [one for one in found if one.right]


def _say(rows: list[dict[str, Any]], say: Say) -> None:
    for row in rows:
        peer = f"{row['times_faster']:.2f}x {row['peer']}" if "times_faster" in row else ""
        say(
            f"{row['name']:48} {1e3 * row['call_median_ms']:7.1f} us, "
            f"p99 {1e3 * row['call_p99_ms']:7.1f}  flips {row['flips']}  {peer}"
        )


@click.command()
@WEIGHTS
@options(
    40,
    "no torch.compile, as few calls as are asked for",
    click.option("--calls", default=100, show_default=True, help="calls in a round"),
)
def main(
    weight_file: Path | None, rounds: int, calls: int, quick: bool, target: Path | None
) -> None:
    """Time one image, host to label, beside PyTorch."""
    if rounds * calls < LEAST_CALLS and not quick:
        click.echo(f"--rounds: expected {LEAST_CALLS} calls, found {rounds * calls}", err=True)
        sys.exit(2)
    try:
        gpu = gpu_device.require_gpu(0)
        gpu_device.activate(gpu)
        weights = load_weights(weight_file or assets.default_weights())
    except LenetError as error:
        click.echo(f"one_image: error: {error}", err=True)
        sys.exit(2)
    from lenetgpu.check.truth import reference_scores

    dataset = load_dataset(assets.default_digits())
    images = np.ascontiguousarray(dataset.images[:IMAGES])
    truth = reference_scores(images, weights)[1]
    made = list(ours(weights, weight_file, gpu, click.echo))
    absent = missing("cuda")
    if lacking := without("torch"):
        absent = missing("cuda", [], {"PyTorch": lacking})
    else:
        made += theirs(weights, images[0], not quick, click.echo)
    contestants = measure([Calls(way, images, truth) for way in made], rounds, calls, click.echo)
    rows = summary(contestants)
    click.echo(f"{gpu.name}, one image, {rounds * calls:,} calls each")
    _say(rows, click.echo)
    facts = {
        "images": 1,
        "data": Path(dataset.source).name,
        "weights": Path(weights.source).name,
        "quick": quick,
        "torch": torch_version(),
        "rows": rows,
        "not_measured": absent,
    }
    write(target, "one", gpu, facts)


if __name__ == "__main__":
    main()
