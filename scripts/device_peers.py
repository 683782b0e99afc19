"""lenetgpu beside PyTorch (and JAX where it is) on one GPU: same images, weights, run.

Every contestant takes device-resident images and leaves labels on the device. All are checked
against a float64 reference, then timed in rounds of random order; a sample is many passes between
two CUDA events. The peer's best figure at a precision counts.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import cupy
import numpy as np
import torch
from beside import (
    DATA,
    INTERLEAVED,
    OURS,
    PLANS,
    WEIGHTS,
    Contestant,
    missing,
    options,
    scaling,
    summary,
    write,
)
from contestants import (
    ONNX_ON_GPU,
    allow_tf32,
    jax_contestants,
    onnx_contestants,
    our_contestants,
    our_graph,
    torch_contestants,
)
from torch_net import Net

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.rounds import interleave
from lenetgpu.measure.timing import cpu_ms, gpu_ms
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve

SAMPLE_MS = 10.0
LEAST_PASSES, MOST_PASSES = 5, 200
SCALES = (1, 10, 100)


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
            one.facts["judged"] = len(found)
            if labels is not None:
                one.facts["correct"] = int((found == labels).sum())
            if one.scores is not None:
                error = np.abs(one.scores().astype(np.float64) - truth)
                one.facts["max_logit_error"] = float(error.max())
                one.facts["relative_error"] = float(error.max() / np.abs(truth).max())


def _sample(one: Contestant) -> float:
    """Milliseconds of a pass; JAX and ONNX Runtime, on their own streams, by the host's clock."""
    allow_tf32(one.precision == "tf32")
    if one.maker == "onnxruntime":
        torch.cuda.synchronize()
        return cpu_ms(lambda: [one.run() for _ in range(one.passes)]) / one.passes
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
        entries = [(partial(_sample, one), one.samples) for one in contestants]
        interleave(entries, rounds)


def larger_batches(weights: Weights, images: Any, gpu: Gpu) -> list[Contestant]:
    """Our plans on more than once the images, replayed; once is the headline's own contestant."""
    found = []
    many = cupy.concatenate([cupy.asarray(images)] * SCALES[-1])
    for name in PLANS:
        pipeline = Pipeline(resolve(name, "cuda", gpu=gpu), weights, len(many))
        pipeline.with_scores = False
        for scale in SCALES[1:]:
            graph = our_graph(pipeline, many[: scale * len(images)])
            one = Contestant(name, OURS, "", graph.launch, lambda: None)
            one.facts["images"] = scale * len(images)
            one.keep = (many, pipeline)
            found.append(one)
    return found


def shipped_flips(weights: Weights, gpu: Gpu) -> dict[str, int]:
    """Labels unlike float64's on the digits that ship, by plan."""
    digits = load_dataset(assets.default_digits())
    ours = our_contestants(weights, np.ascontiguousarray(digits.images), gpu)
    check(ours, weights, digits.images, digits.labels)
    return {one.precision: one.facts["flips"] for one in ours}


def _peers(weights: Weights, images: Any, deep: bool) -> tuple[list[Contestant], list[Any]]:
    """Everybody else, and who could not be had."""
    found = torch_contestants(weights, images, click.echo, deep)
    jax = jax_contestants(weights, images, click.echo)
    why = {} if jax else {"JAX on the GPU": "not installed there, or it saw no GPU"}
    try:
        onnx, reason = onnx_contestants(weights, images)
    except Exception as error:  # a peer that cannot run is named, not hidden
        onnx, reason = [], f"cannot run: {str(error).partition(chr(10))[0][:120]}"
    if reason is not None:
        click.echo(f"{ONNX_ON_GPU}: {reason}")
        why[ONNX_ON_GPU] = reason
    return found + jax + onnx, missing("cuda", [ONNX_ON_GPU] if onnx else [], why)


def _say(rows: list[dict[str, Any]], scales: list[dict[str, Any]]) -> None:
    for row in rows:
        ratio = f"{row['times_faster']:.2f}x {row['peer']}" if "times_faster" in row else ""
        click.echo(
            f"{row['name']:40} {row['median_ms']:8.4f} ms ({row['p05_ms']:.4f} to "
            f"{row['p95_ms']:.4f})  right {row.get('correct', '-')}  flips {row['flips']}  "
            f"error {row.get('relative_error', float('nan')):.1e}  {ratio}"
        )
    for row in scales:
        click.echo(f"{row['plan']:8} {row['images']:9,} images {row['ns_per_image']:7.2f} ns each")


@click.command()
@DATA
@WEIGHTS
@options(30, "no torch.compile")
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
    with torch.inference_mode():
        flips = shipped_flips(weights, gpu)
        cupy.get_default_memory_pool().free_all_blocks()
        contestants = our_contestants(weights, images, gpu)
        peers, absent = _peers(weights, images, not quick)
        contestants += peers
        check(contestants, weights, images, dataset.labels)
        for one in contestants:
            if not one.right:
                click.echo(f"{one.name}: WRONG, {one.facts['flips']} labels differ; not timed")
        contestants = [one for one in contestants if one.right]
        larger = larger_batches(weights, images, gpu)
        measure(contestants + larger, rounds)
    rows = summary(contestants)
    scales = scaling(rows, larger, len(images))
    click.echo(f"{gpu.name}, torch {torch.__version__}, {len(images):,} images")
    _say(rows, scales)
    facts = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "images": len(images),
        "data": Path(dataset.source).name,
        "weights": Path(weights.source).name,
        "quick": quick,
        "rows": rows,
        "scaling": scales,
        "scaling_is": INTERLEAVED,
        "shipped_flips": flips,
        "not_measured": absent,
    }
    write(target, "peers", gpu, facts)


if __name__ == "__main__":
    main()
