"""Streams and chunks, plan by plan: page-locked images to labels on the host, by every schedule.

For each plan and type of pixels the passes of all schedules, a bare copy of the images and the
kernels alone take turns in balanced rounds. Labels other than those of one pass on the device end
it. The model's schedule, and what it predicts of each, stand beside them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from lenetgpu.check.verify import verify_once
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import Gpu, activate, require_gpu
from lenetgpu.gpu.graph import Graph
from lenetgpu.lab import charts
from lenetgpu.measure.document import head
from lenetgpu.measure.rounds import interleave
from lenetgpu.measure.timing import Replays, cpu_ms, summarise
from lenetgpu.net.streaming import (
    Costs,
    Schedule,
    Streamer,
    best_schedule,
    host_results,
    pinned_copy,
    predicted_ms,
)
from lenetgpu.net.streaming.costs import measure_costs
from lenetgpu.net.streaming.schedule import EVEN, MOST_CHUNK
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan, resolve

PLANS = ("int8", "fp16", "fp16x3", "fp32", "tiled")
TYPES = ("uint8", "float32")
IMAGES, MANY = 10_000, 1_000_000
CHUNKS = (10_000, 5_000, 4_000, 2_500, 2_000, 1_000)
STREAMS = (1, 2, 3, 4, 5, 8)
MANY_CHUNKS, MANY_STREAMS = (40_000, 20_000, 10_000, 5_000), (1, 2, 3)
TAPERED = ((3, 5_000, 2.0), (3, 5_000, 4.0), (3, 4_000, 1 / 2), (3, 4_000, 1 / 4))
"""Streams, images of the largest chunk, and how they rise or fall."""
BARE, KERNELS, AUTO, ZERO_COPY = "bare copy", "kernels", "auto", "zero-copy"


@dataclass
class Way:
    """One thing that is timed: what it is, and its samples in milliseconds."""

    row: dict[str, Any]
    sample: Callable[[], float]
    samples: list[float] = field(default_factory=list)


def pixels(dtype: str, images: Any) -> Any:
    """`images` page-locked, as `dtype`."""
    if dtype == "uint8":
        return pinned_copy(images)
    return pinned_copy(images.astype(np.float32) / np.float32(PIXEL_SCALE))


class Sweep:
    """The ways of one plan and type over `host` images, whose labels are `expected`."""

    def __init__(self, plan: Plan, weights: Weights, host: Any) -> None:
        import cupy

        self.plan, self.weights, self.host = plan, weights, host
        self.dtype, self.n = str(host.dtype), len(host)
        self.resident = cupy.empty(host.shape, host.dtype)
        self.resident.set(host)
        self.whole = self.pipeline(min(self.n, IMAGES))
        self.expected = np.concatenate(
            [
                self.whole.run(self.resident[lo : lo + IMAGES]).get()
                for lo in range(0, self.n, IMAGES)
            ]
        )
        self.costs: Costs = measure_costs(self.pipeline)

    def pipeline(self, size: int) -> Pipeline:
        made = Pipeline(self.plan, self.weights, size, self.dtype, size)
        made.with_scores = False
        return made

    def bare(self) -> Way:
        """One copy of all images to the device, launched and waited for."""
        import cupy

        runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
        ends, size = (self.resident.data.ptr, self.host.ctypes.data), self.host.nbytes

        def copy() -> None:
            runtime.memcpyAsync(*ends, size, runtime.memcpyHostToDevice, stream.ptr)
            stream.synchronize()

        return Way({"way": BARE}, partial(cpu_ms, copy))

    def kernels(self) -> Way:
        """All images on the device to labels on it, recorded where the plan can be."""
        from lenetgpu.measure.timing import time_compute

        try:
            replays = Replays(Graph(lambda: self.whole.run(self.resident), 1), 1)
        except RuntimeError:
            return Way({"way": KERNELS}, lambda: time_compute(self.whole, self.resident))
        replays.once()
        return Way({"way": KERNELS}, replays.sample)

    def schedule(self, wanted: Schedule, name: str = "schedule") -> Way:
        """A schedule, replayed where it can be; LenetError where its labels are wrong."""
        streamer = Streamer(
            self.pipeline, wanted.chunk, wanted.streams, taper=wanted.taper,
            zero_copy=wanted.zero_copy,
        )  # fmt: skip
        labels, _ = host_results(self.n, with_scores=False)
        for _ in range(3):
            labels[:] = -1
            streamer.run(self.host, labels)
            if not (labels == self.expected).all():
                raise LenetError(f"{self.plan.name}: {wanted} gives other labels than one pass")
        row = {
            "way": name,
            "streams": wanted.streams,
            "chunk": streamer.chunk,
            "taper": wanted.taper,
            "zero_copy": wanted.zero_copy,
        }
        row |= {"predicted_ms": wanted.predicted_ms, "not_recorded": streamer.not_recorded}
        return Way(row, partial(cpu_ms, partial(streamer.run, self.host, labels)))

    def grid(self, streams: tuple[int, ...], chunks: tuple[int, ...]) -> list[Schedule]:
        """Every schedule that has a chunk for each stream, and those of one pass that taper."""
        wanted = [(count, chunk, EVEN) for chunk in chunks for count in streams]
        wanted += TAPERED if self.n <= IMAGES else ()
        return [
            Schedule(count, chunk, predicted_ms(self.n, count, chunk, self.costs, taper), taper)
            for count, chunk, taper in wanted
            if taper != EVEN or count <= -(-self.n // chunk)
        ]

    def zero_copy(self) -> Schedule:
        """All images read by the kernels where they lie, as many a pass as a schedule may take."""
        chunk = min(self.n, MOST_CHUNK)
        return Schedule(1, chunk, self.costs.zero_copy_ms(self.n), zero_copy=True)

    def timed(self, schedules: list[Schedule], rounds: int) -> dict[str, Any]:
        """Bare copy, kernels alone of one pass, the model's schedule, zero-copy, `schedules`."""
        ways = [self.bare()] + ([self.kernels()] if self.n <= IMAGES else [])
        ways.append(self.schedule(best_schedule(self.n, self.costs), AUTO))
        ways.append(self.schedule(self.zero_copy(), ZERO_COPY))
        ways += [self.schedule(wanted) for wanted in schedules]
        for way in ways:
            way.sample()
        interleave([(way.sample, way.samples) for way in ways], rounds)
        rows = []
        for way in ways:
            summary = summarise(way.samples)
            rows.append(way.row | {"median_ms": summary.median, "p05_ms": summary.p05,
                                   "p95_ms": summary.p95, "samples": len(way.samples)})  # fmt: skip
        return {
            "plan": self.plan.name,
            "dtype": self.dtype,
            "images": self.n,
            "costs": asdict(self.costs),
            "rows": rows,
        }


def shown(found: dict[str, Any]) -> str:
    """A plan and type in a line: bus, kernels, what the model took, the best and the worst."""
    by = {row["way"]: row for row in found["rows"]}
    grid = [row for row in found["rows"] if row["way"] == "schedule"]
    told = [
        f"{found['plan']} {found['dtype']} {found['images']:,}: bare {by[BARE]['median_ms']:.3f}"
    ]
    if KERNELS in by:
        told.append(f"kernels {by[KERNELS]['median_ms']:.3f}")
    for name, row in [
        (AUTO, by[AUTO]),
        *(
            (word, pick(grid, key=lambda r: r["median_ms"]))
            for word, pick in (("best", min), ("worst", max))
            if grid
        ),
    ]:
        told.append(
            f"{name} {row['streams']}x{row['chunk']:,} {row['median_ms']:.3f} "
            f"(model {row['predicted_ms']:.3f})"
        )
    return ", ".join(told)


def measured(gpu: Gpu, plans: tuple[str, ...], rounds: int, many: bool) -> list[dict[str, Any]]:
    """Every plan and type, said as they come."""
    weights = load_weights(assets.default_weights())
    digits = load_dataset(assets.default_digits()).images[:IMAGES]
    found = []
    for name in plans:
        plan = resolve(name, "cuda", gpu=gpu)
        for dtype in TYPES:
            verify_once(plan, gpu.name, dtype, IMAGES)
            sweep = Sweep(plan, weights, pixels(dtype, digits))
            found.append(sweep.timed(sweep.grid(STREAMS, CHUNKS), rounds))
            click.echo(shown(found[-1]))
    if many:
        host = pinned_copy(np.resize(digits, (MANY, *digits.shape[1:])))
        for name in plans[:2]:
            sweep = Sweep(resolve(name, "cuda", gpu=gpu), weights, host)
            found.append(sweep.timed(sweep.grid(MANY_STREAMS, MANY_CHUNKS), max(3, rounds // 5)))
            click.echo(shown(found[-1]))
    return found


@click.command()
@click.option("--plans", default=",".join(PLANS), show_default=True)
@click.option("--rounds", default=25, show_default=True, type=click.IntRange(1))
@click.option("--many/--not-many", default=True, help="a million images too")
@click.option("--json", "target", type=click.Path(path_type=Path))
@click.option("--picture", type=click.Path(path_type=Path), help="uint8 sweeps as .png or .svg")
def main(plans: str, rounds: int, many: bool, target: Path | None, picture: Path | None) -> None:
    """Time every schedule of streams and chunks on the current GPU."""
    try:
        gpu = require_gpu()
    except LenetError as error:
        click.echo(f"streams_sweep: error: {error}", err=True)
        sys.exit(2)
    activate(gpu)
    document = head("streams", gpu) | {"rounds": rounds}
    document["sweeps"] = measured(gpu, tuple(plans.split(",")), rounds, many)
    if target is not None:
        target.write_text(json.dumps(document, indent=1) + "\n")
    if picture is not None:
        drawn = [s for s in document["sweeps"] if s["dtype"] == "uint8" and s["images"] == IMAGES]
        panes = {f"{s['plan']}, {s['dtype']}: ms": charts.sweep(s["rows"]) for s in drawn}
        title = f"{gpu.name}, {document['date']}: page-locked images to labels"
        charts.save(picture, title, panes, columns=len(panes))


if __name__ == "__main__":
    main()
