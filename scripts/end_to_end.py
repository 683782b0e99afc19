"""Images in page-locked host memory to labels in host memory, beside the bare copy and PyTorch.

Ours are warm passes of `lenetgpu.net.streaming` over the same arrays, replayed as one CUDA graph,
of
pixels and of packed images: streams and chunks chosen by its model, as `infer` has them, which runs
once and replays nothing. The bare copy is one of the pixels to the device, waited for. All are
checked against float64, then timed by the host's clock in interleaved rounds, a sample of several
passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from beside import (
    DATA,
    OURS,
    PLANS,
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
from lenetgpu.files.packed.records import pack
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.measure.rounds import interleave
from lenetgpu.measure.timing import cpu_ms
from lenetgpu.net.streaming import (
    Streamer,
    host_results,
    packed_images,
    pinned_copy,
    schedule_for,
)
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve

SAMPLE_MS, MOST_PASSES = 5.0, 50
MANY, MANY_ROUNDS = 1_000_000, 9
BUS, COPY = "bus", "bare copy to the device"
Say = Callable[[str], None]


def pinned_times(images: Any, count: int) -> Any:
    """The first `count` of `images` over and over, in page-locked memory."""
    held = pinned_empty((count, *images.shape[1:]), images.dtype)
    for lo in range(0, count, len(images)):
        part = held[lo : lo + len(images)]
        part[...] = images[: len(part)]
    return held


def bare_copy(images: Any) -> Contestant:
    """One copy of `images` to the device, from call to end."""
    import cupy

    runtime = cupy.cuda.runtime
    stream, there = cupy.cuda.Stream(non_blocking=True), cupy.empty(images.shape, images.dtype)
    ends = there.data.ptr, images.ctypes.data, images.nbytes, runtime.memcpyHostToDevice

    def run() -> None:
        runtime.memcpyAsync(*ends, stream.ptr)
        stream.synchronize()

    def same() -> Any:
        there.fill(0)
        run()
        return (there.get() == images).reshape(len(images), -1).all(1)

    return Contestant(COPY, BUS, "", run, same, keep=(there, images))


def packed_of(images: Any) -> Any:
    """The same images as packed records (docs/packed.md), in page-locked memory."""
    payload, lengths = pack(np.asarray(images))
    offsets = np.append(0, lengths.cumsum(dtype=np.int64)).astype(np.uint32)
    return packed_images(pinned_copy(payload), pinned_copy(offsets))


def ours(
    weights: Weights, images: Any, gpu: Gpu, say: Say, packed: bool = False
) -> Iterator[Contestant]:
    """The fused plans, each with the streams and chunks that the model chooses for `images`."""
    taken = packed_of(images) if packed else images
    size = taken.payload.nbytes // len(images) if packed else None
    for name in PLANS:
        try:
            plan = resolve(name, "cuda", gpu=gpu)
            chosen = schedule_for(plan, weights, gpu, "uint8", len(images), image_bytes=size)
        except LenetError as error:
            say(f"{OURS} {name}: {error}")
            continue
        make = partial(_pipeline, plan, weights)
        streamer = Streamer(
            make, chosen.chunk, chosen.streams, taper=chosen.taper, zero_copy=chosen.zero_copy
        )
        labels, _ = host_results(len(images), False)

        def run(streamer: Streamer = streamer, labels: Any = labels) -> None:
            streamer.run(taken, labels)

        def answer(run: Callable[[], None] = run, labels: Any = labels) -> Any:
            for _ in range(3):  # launched, recorded, replayed
                labels.fill(-1)
                run()
            return labels.copy()

        words = f"{OURS} {name}{', packed' if packed else ''}"
        one = Contestant(words, OURS, name, run, answer, keep=(streamer, labels, taken))
        one.facts |= {"plan": name, "streams": streamer.streams, "chunk": streamer.chunk}
        one.facts |= {"taper": streamer.taper, "zero_copy": streamer.zero_copy}
        one.facts |= {"predicted_ms": chosen.predicted_ms}
        yield one


def _pipeline(plan: Any, weights: Weights, size: int) -> Pipeline:
    made = Pipeline(plan, weights, size)
    made.with_scores = False
    return made


def theirs(weights: Weights, images: Any, deep: bool, say: Say) -> Iterator[Contestant]:
    """PyTorch, in every way of torch_host.py."""
    from torch_host import contenders

    for name, precision, net in contenders(weights, images, ("fp16", "fp32"), deep, say):
        yield Contestant(name, "torch", precision, net.run, net.answer, keep=(net,))


def check(contestants: list[Contestant], truth: Any, say: Say) -> list[Contestant]:
    """Those whose labels are float64's but for a few, and the copy of the right bytes."""
    right = []
    for one in contestants:
        found = one.labels()
        wrong = ~found if one.maker == BUS else found != truth
        one.facts |= {"flips": int(wrong.sum()), "judged": len(found)}
        if one.right:
            right.append(one)
        else:
            say(f"{one.name}: WRONG, {one.facts['flips']} of {len(found)} differ; not timed")
    return right


def measure(contestants: list[Contestant], rounds: int) -> None:
    """As many passes a sample as fill it, then interleaved rounds; milliseconds of a pass."""
    for one in contestants:
        cpu_ms(one.run)
        one.passes = max(1, min(MOST_PASSES, round(SAMPLE_MS / cpu_ms(one.run))))

    def sample(one: Contestant) -> float:
        return cpu_ms(one.run, one.passes) / one.passes

    interleave([(partial(sample, one), one.samples) for one in contestants], rounds)


def rows_of(contestants: list[Contestant]) -> list[dict[str, Any]]:
    """A row each, with the median of its ratios to the bare copy of the same round."""
    copy = next(one for one in contestants if one.maker == BUS)
    samples = {one.name: np.array(one.samples) / np.array(copy.samples) for one in contestants}
    rows = summary(contestants)
    return [row | {"over_copy": float(np.median(samples[row["name"]]))} for row in rows]


def many(weights: Weights, images: Any, gpu: Gpu, truth: Any, say: Say) -> list[dict[str, Any]]:
    """MANY images from host memory: our plans and the bare copy."""
    held = pinned_times(images, MANY)
    labels = np.resize(truth, MANY)
    contestants = check([bare_copy(held), *ours(weights, held, gpu, say)], labels, say)
    measure(contestants, MANY_ROUNDS)
    return rows_of(contestants)


def _say(rows: list[dict[str, Any]], say: Say) -> None:
    for row in rows:
        how = f"{row['streams']} x {row['chunk']:,}" if "chunk" in row else ""
        peer = f"{row['times_faster']:.2f}x {row['peer']}" if "times_faster" in row else ""
        say(
            f"{row['name']:44} {row['median_ms']:8.4f} ms ({row['p05_ms']:.4f} to "
            f"{row['p95_ms']:.4f})  {row['over_copy']:.3f}x the copy  {how}  {peer}"
        )


@click.command()
@DATA
@WEIGHTS
@options(30, "no torch.compile")
def main(
    data: Path | None, weight_file: Path | None, rounds: int, quick: bool, target: Path | None
) -> None:
    """Time lenetgpu from host memory to labels beside the bare copy and PyTorch."""
    try:
        gpu = gpu_device.require_gpu(0)
        gpu_device.activate(gpu)
        weights = load_weights(weight_file or assets.default_weights())
        dataset = load_dataset(data or assets.default_digits())
    except LenetError as error:
        click.echo(f"end_to_end: error: {error}", err=True)
        sys.exit(2)
    images = pinned_times(np.ascontiguousarray(dataset.images), len(dataset))
    absent = missing("cuda")
    contestants = [bare_copy(images), *ours(weights, images, gpu, click.echo)]
    contestants += ours(weights, images, gpu, click.echo, packed=True)
    if lacking := without("torch"):
        from lenetgpu.check.truth import reference_scores

        absent = missing("cuda", [], {"PyTorch": lacking})
        truth = reference_scores(images, weights)[1]
    else:
        from torch_host import true_labels

        truth = true_labels(weights, images)
        contestants += theirs(weights, images, not quick, click.echo)
    contestants = check(contestants, truth, click.echo)
    measure(contestants, rounds)
    rows = rows_of(contestants)
    click.echo(f"{gpu.name}, {len(images):,} images")
    _say(rows, click.echo)
    more = many(weights, images, gpu, truth, click.echo)
    click.echo(f"{MANY:,} images")
    _say(more, click.echo)
    facts = {
        "images": len(images),
        "bytes": images.nbytes,
        "data": Path(dataset.source).name,
        "weights": Path(weights.source).name,
        "quick": quick,
        "torch": torch_version(),
        "rows": rows,
        "many": {"images": MANY, "bytes": MANY * images[0].nbytes, "rows": more},
        "not_measured": absent,
    }
    write(target, "end-to-end", gpu, facts)


if __name__ == "__main__":
    main()
