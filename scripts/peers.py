"""lenetgpu beside PyTorch (and JAX where it is) on one GPU: same images, weights, run.

Every contestant takes device-resident images and leaves labels on the device. All are checked
against a float64 reference, then timed in rounds of random order; a sample is many passes between
two CUDA events. The peer's best figure at a precision counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import cupy
import numpy as np
import torch
from contestants import (
    OURS,
    Contestant,
    Net,
    allow_tf32,
    jax_contestants,
    our_contestants,
    our_graph,
    torch_contestants,
)

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.graph import Graph
from lenetgpu.measure.document import head
from lenetgpu.measure.rounds import Entry, interleave
from lenetgpu.measure.timing import cpu_ms, gpu_ms
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve

SAMPLE_MS = 10.0
LEAST_PASSES, MOST_PASSES = 5, 200
SCALES = (1, 10, 100)
PEER_OF = {"fp32": "fp32", "fp16x3": "fp32", "fp16": "fp16", "int8": "fp16"}


def check(contestants: list[Contestant], weights: Weights, images: Any, labels: Any) -> None:
    """Fill each contestant's facts: right labels, flips and logit error against float64."""
    with torch.inference_mode():
        net = Net(weights).cuda().double()
        x = torch.tensor(images).cuda().permute(0, 3, 1, 2).double() / 255
        parts = [net.scores(x[lo : lo + 1000]) for lo in range(0, len(x), 1000)]
        truth = torch.cat(parts).cpu().numpy()
    expected = truth.argmax(1)
    for one in contestants:
        allow_tf32(one.precision == "tf32")
        with torch.inference_mode():
            found = one.labels()
            one.facts["flips"] = int((found != expected).sum())
            if labels is not None:
                one.facts["correct"] = int((found == labels).sum())
            if one.scores is not None:
                error = np.abs(one.scores().astype(np.float64) - truth)
                one.facts["max_logit_error"] = float(error.max())
                one.facts["relative_error"] = float(error.max() / np.abs(truth).max())


def _sample(one: Contestant) -> float:
    """Milliseconds of a pass; JAX, on its own stream, by the host's clock."""
    allow_tf32(one.precision == "tf32")
    if one.maker == "jax":

        def passes() -> None:
            for _ in range(one.passes):
                out = one.run()
            out.block_until_ready()

        return cpu_ms(passes) / one.passes
    return gpu_ms(one.run, one.passes) / one.passes


def measure(contestants: list[Contestant], rounds: int) -> None:
    """As many passes a sample as fill it, then interleaved rounds."""
    with torch.inference_mode():
        for one in contestants:
            _sample(one)
            wanted = round(SAMPLE_MS / _sample(one))
            one.passes = max(LEAST_PASSES, min(MOST_PASSES, wanted))
        entries: list[Entry] = [
            (lambda one=one: _sample(one), one.samples)  # type: ignore[misc]
            for one in contestants
        ]
        interleave(entries, rounds)


def summary(contestants: list[Contestant]) -> list[dict[str, Any]]:
    """A row per contestant with its median, spread and the ratio to the peer's best."""
    rows = []
    medians = {one.name: float(np.median(one.samples)) for one in contestants}
    best: dict[str, tuple[float, str]] = {}
    for one in contestants:
        if one.maker != "lenetgpu" and one.right:
            now = (medians[one.name], one.name)
            best[one.precision] = min(best.get(one.precision, now), now)
    for one in contestants:
        p05, p95 = np.percentile(one.samples, [5, 95])
        row = {
            "name": one.name, "maker": one.maker, "precision": one.precision,
            "median_ms": medians[one.name], "p05_ms": float(p05), "p95_ms": float(p95),
            "samples_ms": one.samples, **one.facts,
        }  # fmt: skip
        peer = best.get(PEER_OF.get(one.precision, ""))
        if one.maker == "lenetgpu" and peer is not None:
            row |= {"peer": peer[1], "peer_ms": peer[0], "times_faster": peer[0] / row["median_ms"]}
        rows.append(row)
    return sorted(rows, key=lambda row: row["median_ms"])


def scaling(weights: Weights, images: Any, gpu: Gpu, rounds: int) -> list[dict[str, Any]]:
    """Time per image of the fused plans, replayed, from one data set to a hundred of it."""
    rows = []
    tiled = cupy.concatenate([cupy.asarray(images)] * SCALES[-1])
    for name in OURS:
        plan = resolve(name, "cuda", gpu=gpu)
        pipeline = Pipeline(plan, weights, len(tiled))
        pipeline.with_scores = False
        medians = {}
        for scale in SCALES:
            part = tiled[: scale * len(images)]
            graph = our_graph(pipeline, part)

            def replay(g: Graph = graph) -> None:
                g.launch()

            one = Contestant(name, "lenetgpu", "", replay, lambda: None)
            one.passes = max(2, SCALES[-1] // (2 * scale))
            _sample(one)
            medians[len(part)] = float(np.median([_sample(one) for _ in range(rounds)]))
        for n, ms in medians.items():
            rows.append({"plan": name, "images": n, "median_ms": ms, "ns_per_image": 1e6 * ms / n})
    return rows


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="images; default: the shipped digits")
@click.option("--weights", "weight_file", type=click.Path(path_type=Path))
@click.option("--rounds", default=30, show_default=True)
@click.option("--quick", is_flag=True, help="no torch.compile")
@click.option("--json", "target", type=click.Path(path_type=Path))
def main(
    data: Path | None, weight_file: Path | None, rounds: int, quick: bool, target: Path | None
) -> None:
    """Time lenetgpu beside its peers and print the ratios."""
    try:
        gpu = gpu_device.require_gpu(0)
    except LenetError as error:
        click.echo(f"peers: error: {error}", err=True)
        sys.exit(2)
    gpu_device.activate(gpu)
    weights = load_weights(weight_file or assets.default_weights())
    dataset = load_dataset(data or assets.default_digits())
    images = np.ascontiguousarray(dataset.images)
    cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream).use()
    scales = scaling(weights, images, gpu, 5)
    cupy.get_default_memory_pool().free_all_blocks()
    with torch.inference_mode():
        contestants = our_contestants(weights, images, gpu)
        contestants += torch_contestants(weights, images, click.echo, not quick)
        contestants += jax_contestants(weights, images, click.echo)
        check(contestants, weights, images, dataset.labels)
        for one in contestants:
            if not one.right:
                click.echo(f"{one.name}: WRONG, {one.facts['flips']} labels differ; not timed")
        contestants = [one for one in contestants if one.right]
        measure(contestants, rounds)
    rows = summary(contestants)
    click.echo(f"{gpu.name}, torch {torch.__version__}, {len(images):,} images")
    for row in rows:
        ratio = f"{row['times_faster']:.2f}x {row['peer']}" if "times_faster" in row else ""
        click.echo(
            f"{row['name']:40} {row['median_ms']:8.4f} ms ({row['p05_ms']:.4f} to "
            f"{row['p95_ms']:.4f})  right {row.get('correct', '-')}  flips {row['flips']}  "
            f"error {row.get('relative_error', float('nan')):.1e}  {ratio}"
        )
    for row in scales:
        click.echo(f"{row['plan']:8} {row['images']:9,} images {row['ns_per_image']:7.2f} ns each")
    if target is not None:
        document = head("peers", gpu) | {
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "images": len(images),
            "data": Path(dataset.source).name,
            "weights": Path(weights.source).name,
            "rows": rows,
            "scaling": scales,
        }
        target.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
