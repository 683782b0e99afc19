"""lenetgpu beside PyTorch (and JAX where it is) on one GPU: same images, weights, run.

Every contestant takes device-resident images and leaves labels on the device. All are checked
against a float64 reference, then timed in rounds of random order; a sample is many passes between
two CUDA events. The peer's best figure at a precision counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import cupy
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.graph import Graph, TorchGraph
from lenetgpu.measure.document import head
from lenetgpu.measure.rounds import Entry, interleave
from lenetgpu.measure.timing import cpu_ms, gpu_ms
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, resolve

SAMPLE_MS = 10.0
LEAST_PASSES, MOST_PASSES = 5, 200
SCALES = (1, 10, 100)
MOST_FLIPS = 20
TORCH_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
OURS = ("fp32", "fp16x3", "fp16", "int8")  # plans of the precision that they are named after
PEER_OF = {"fp32": "fp32", "fp16x3": "fp32", "fp16": "fp16", "int8": "fp16"}
AUTOTUNED = "max-autotune-no-cudagraphs"
# how a pass is launched: (mode of torch.compile or None, whether it is replayed from a CUDA graph)
MODES: dict[str, tuple[str | None, bool]] = {
    "eager": (None, False),
    "graph": (None, True),
    "compile": ("default", False),
    "compile graph": ("default", True),
    "max-autotune": ("max-autotune", False),
    "max-autotune graph": (AUTOTUNED, True),
}


@dataclass
class Contestant:
    """One way to label the images: `run` queues a pass on the current stream."""

    name: str
    maker: str
    precision: str
    run: Callable[[], Any]
    labels: Callable[[], Any]
    scores: Callable[[], Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    passes: int = 1
    keep: tuple[Any, ...] = ()

    @property
    def right(self) -> bool:
        """Whether its labels are the reference's but for a few that lie near."""
        return self.facts["flips"] <= MOST_FLIPS


class Net(nn.Module):
    """The network in NCHW, without biases; `flatten` order folded into fc1."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        kernels = [torch.tensor(weights[name]).permute(3, 2, 0, 1) for name in ("conv1", "conv2")]
        self.conv1 = nn.Parameter(kernels[0].contiguous(), False)
        self.conv2 = nn.Parameter(kernels[1].contiguous(), False)
        rows = torch.tensor(weights["fc1"]).reshape(4, 4, 64, 128).permute(2, 0, 1, 3)
        self.fc1 = nn.Parameter(rows.reshape(1024, 128).t().contiguous(), False)
        self.fc2 = nn.Parameter(torch.tensor(weights["fc2"]).t().contiguous(), False)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (N, 10) of images (N, 1, 28, 28)."""
        x = F.avg_pool2d(F.relu(F.conv2d(x, self.conv1)), 2)
        x = F.avg_pool2d(F.relu(F.conv2d(x, self.conv2)), 2)
        return F.linear(F.relu(F.linear(x.flatten(1), self.fc1)), self.fc2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Labels (N,) of images (N, 1, 28, 28)."""
        return self.scores(x).argmax(1)


def _allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def _torch_graph(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], Any], torch.Tensor]:
    held: list[torch.Tensor] = []

    def keep() -> None:
        held[:] = [run()]

    return TorchGraph(keep, 1).launch, held[0]


def _own_code(net: Net) -> Callable[[torch.Tensor], torch.Tensor]:
    """`net.forward` with a code object of its own: torch.compile limits recompilations per code."""
    plain = Net.forward
    own = types.FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
    return types.MethodType(own, net)


def _torch_one(weights: Weights, images: Any, precision: str, last: bool, mode: str) -> Contestant:
    dtype = TORCH_TYPES[precision]
    _allow_tf32(precision == "tf32")
    x = (torch.tensor(images).cuda().permute(0, 3, 1, 2).float() / 255).to(dtype).contiguous()
    net = Net(weights).cuda().to(dtype).eval()
    if last:
        x = x.to(memory_format=torch.channels_last)
        for name in ("conv1", "conv2"):
            kernel = getattr(net, name)
            kernel.data = kernel.data.contiguous(memory_format=torch.channels_last)
    compiled, graphed = MODES[mode]
    forward = net.forward if compiled is None else torch.compile(_own_code(net), mode=compiled)
    run: Callable[[], Any] = lambda: forward(x)  # noqa: E731
    run()
    out = None
    if graphed:
        run, out = _torch_graph(run)

    def labels() -> Any:
        if out is None:
            return run().cpu().numpy()
        out.fill_(-1)
        run()
        return out.cpu().numpy()

    order = "channels_last" if last else "contiguous"
    return Contestant(
        f"torch {mode} {precision} {order}", "torch", precision, run, labels,
        (lambda: net.scores(x).float().cpu().numpy()) if mode == "eager" else None,
        keep=(net, x),
    )  # fmt: skip


def torch_contestants(
    weights: Weights, images: Any, say: Callable[[str], None], deep: bool
) -> list[Contestant]:
    """Every mode at each precision and memory format; without `deep`, those that compile not."""
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    found = []
    modes = [mode for mode, (compiled, _) in MODES.items() if deep or compiled is None]
    for precision in TORCH_TYPES:
        for mode in modes:
            for last in (False, True):
                start = time.time()
                try:
                    made = _torch_one(weights, images, precision, last, mode)
                    for _ in range(3):
                        made.run()
                    torch.cuda.synchronize()
                except Exception as error:  # a peer that cannot run is named, not hidden
                    say(f"torch {mode} {precision}: cannot run: {str(error)[:120]}")
                    continue
                found.append(made)
                say(f"{made.name}: ready in {time.time() - start:.0f} s")
    return found


def jax_contestants(weights: Weights, images: Any, say: Callable[[str], None]) -> list[Contestant]:
    """jit at fp32 and fp16 where JAX sees the GPU."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
        import jax.numpy as jnp

        if jax.devices()[0].platform != "gpu":
            return []
    except (ImportError, RuntimeError) as error:
        say(f"jax: {error}")
        return []
    found = []
    tensors = {k: jnp.asarray(v) for k, v in weights.tensors.items()}

    def net(x: Any, w: Any) -> Any:
        for name in ("conv1", "conv2"):
            x = jax.lax.conv_general_dilated(
                x, w[name], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            n, h, wide, c = x.shape
            x = jax.nn.relu(x).reshape(n, h // 2, 2, wide // 2, 2, c).mean((2, 4))
        return (jax.nn.relu(x.reshape(len(x), -1) @ w["fc1"]) @ w["fc2"]).argmax(1)

    for precision, dtype, exact in (("fp32", "float32", "highest"), ("fp16", "float16", "default")):
        with jax.default_matmul_precision(exact):
            x = (jnp.asarray(images, "float32") / 255).astype(dtype)
            w = {k: v.astype(dtype) for k, v in tensors.items()}
            compiled = jax.jit(net).lower(x, w).compile()
        run = lambda c=compiled, a=x, b=w: c(a, b)  # noqa: E731
        labels = lambda r=run: np.asarray(r())  # noqa: E731
        found.append(Contestant(f"jax jit {precision}", "jax", precision, run, labels))
    return found


def _our_graph(pipeline: Pipeline, x: Any) -> Graph:
    pipeline.run(x)
    return Graph(lambda: pipeline.run(x), 1)


def our_contestants(weights: Weights, images: Any, gpu: Gpu) -> list[Contestant]:
    """The fused plans, launched as they are and replayed from a CUDA graph."""
    found = []
    x = cupy.asarray(images)
    for name in OURS:
        if "cuda" not in NAMED[name]:
            continue
        plan = resolve(name, "cuda", gpu=gpu)
        pipeline = Pipeline(plan, weights, len(images))
        pipeline.run(x)
        pipeline.with_scores = False
        graph = _our_graph(pipeline, x)

        def plain(p: Pipeline = pipeline) -> None:
            p.run(x)

        def replay(g: Graph = graph) -> None:
            g.launch()

        def labels(run: Callable[[], None], p: Pipeline = pipeline) -> Any:
            p.poison()
            run()
            return p.labels.get()

        def scores(p: Pipeline = pipeline) -> Any:
            p.poison()
            p.with_scores = True
            p.run(x)
            p.with_scores = False
            return p.scores(len(x))

        for mode, run in (("", plain), (" graph", replay)):
            found.append(
                Contestant(f"lenetgpu {name}{mode}", "lenetgpu", name, run,
                           lambda r=run, check=labels: check(r), scores)
            )  # fmt: skip
    return found


def check(contestants: list[Contestant], weights: Weights, images: Any, labels: Any) -> None:
    """Fill each contestant's facts: right labels, flips and logit error against float64."""
    with torch.inference_mode():
        net = Net(weights).cuda().double()
        x = torch.tensor(images).cuda().permute(0, 3, 1, 2).double() / 255
        parts = [net.scores(x[lo : lo + 1000]) for lo in range(0, len(x), 1000)]
        truth = torch.cat(parts).cpu().numpy()
    expected = truth.argmax(1)
    for one in contestants:
        _allow_tf32(one.precision == "tf32")
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
    _allow_tf32(one.precision == "tf32")
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
            graph = _our_graph(pipeline, part)

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
