"""Compare lenetgpu with PyTorch, JAX and ONNX Runtime through their public calls.

lenetgpu runs as `LeNet.load(plan=...)(images)`. Images are on the GPU, in page-locked or pageable
host memory, or come one at a time; without a GPU everything runs on the CPU. Labels are compared
with float64 before anything is timed. Rounds are interleaved in balanced order; the host clock runs
from the call until the labels can be read. A peer counts by its best mode at a precision.

    python scripts/peers.py                     # every location of images on this device
    python scripts/peers.py --where one         # single images
    python scripts/peers.py --device cpu --json docs/measured/cpu-2-cores/peers.json
"""

import importlib.util
import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np

from lenetgpu import LeNet, LenetError
from lenetgpu.check.reference import reference_scores
from lenetgpu.files import assets
from lenetgpu.files.convert import convert_weights
from lenetgpu.files.models.layouts import rows_by_channel
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.document import head
from lenetgpu.measure.rounds import interleave
from lenetgpu.measure.timing import cpu_ms
from lenetgpu.plan import NAMED, choose_device
from lenetgpu.store import write_atomically

OURS, BUS = "lenetgpu", "bus"
WHERE = ("device", "pinned", "pageable", "one")
PEER_OF = {"fp16x3": "fp32", "int8": "fp16"}
MOST_FLIPS = 25  # of 10,000 labels
GPU_PLANS = ("fp32", "fp16x3", "fp16x3_winograd", "fp16", "fp16_winograd", "int8", "int8_sparse")
CPU_PLANS = ("fp32", "tiled", "unrolled", "fft")
MODES = {  # how PyTorch runs: mode of torch.compile, and whether a CUDA graph is replayed
    "eager": (None, False),
    "graph": (None, True),
    "compile": ("default", False),
    "reduce-overhead": ("reduce-overhead", False),
    "max-autotune": ("max-autotune", False),
}
SAMPLE_MS, MOST_PASSES, ONES = 10.0, 100, 200
Say = Callable[[str], None]


@dataclass
class Candidate:
    """One way to classify images: `run` classifies all, `labels` also returns NumPy labels."""

    name: str
    maker: str
    precision: str
    where: str
    run: Callable[[], Any]
    labels: Callable[[], Any]
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    passes: int = 1


def planar(weights: Weights) -> dict[str, Any]:
    """Return the weights for NCHW: filters (M, C, R, S), fc1's rows in C, H, W order."""
    tensors = {name: weights[name].transpose(3, 2, 0, 1) for name in ("conv1", "conv2")}
    tensors |= {"fc1": rows_by_channel(weights["fc1"]), "fc2": weights["fc2"]}
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def torch_net(weights: Weights, device: str, dtype: Any, last: bool, mode: str | None) -> Any:
    """Return a PyTorch function from images (N, 1, 28, 28) to labels (N,), ready to compile."""
    import torch
    import torch.nn.functional as F

    tensors = {k: torch.tensor(v).to(device, dtype) for k, v in planar(weights).items()}
    if last:
        for name in ("conv1", "conv2"):
            tensors[name] = tensors[name].contiguous(memory_format=torch.channels_last)

    def forward(x: Any) -> Any:
        x = x.to(dtype) / 255
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        for name in ("conv1", "conv2"):
            x = F.avg_pool2d(F.relu(F.conv2d(x, tensors[name])), 2)
        return (F.relu(x.flatten(1) @ tensors["fc1"]) @ tensors["fc2"]).argmax(1)

    if mode is None:
        return forward
    code = forward.__code__.replace()
    own = types.FunctionType(code, forward.__globals__, "net", None, forward.__closure__)
    return torch.compile(own, mode=mode)


def torch_candidates(
    weights: Weights, images: Any, where: str, deep: bool, say: Say
) -> Iterator[Candidate]:
    """Yield PyTorch in every supported mode, precision and memory format."""
    import torch

    gpu = where != "cpu"
    device = "cuda" if gpu else "cpu"
    if gpu:
        torch.backends.cudnn.benchmark = True
    batch = images[:1] if where == "one" else images
    host = torch.from_numpy(np.ascontiguousarray(batch)).reshape(-1, 1, 28, 28)
    host = host.pin_memory() if where in ("pinned", "one") else host
    precisions = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
    for precision, dtype in precisions.items() if gpu else [("fp32", torch.float32)]:
        for words, (mode, graphed) in MODES.items():
            if (graphed and not gpu) or (mode and not deep):
                continue
            for last in (False, True):
                name = f"torch {words} {precision} {'channels_last' if last else 'contiguous'}"
                allow = precision == "tf32"
                try:
                    yield _torch_one(weights, host, device, where, name, dtype, last, allow)
                except Exception as error:  # a peer that cannot run is named, not hidden
                    say(f"{name}: cannot run: {str(error).partition(chr(10))[0][:120]}")


def _torch_one(
    weights: Weights, host: Any, device: str, where: str, name: str, dtype: Any, last: bool,
    tf32: bool,
) -> Candidate:  # fmt: skip
    import torch

    words = name.split()[1]
    mode, graphed = MODES[words]
    net = torch_net(weights, device, dtype, last, mode)
    on_device = host.to(device)

    def allow() -> None:
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32

    allow()
    replay, out = None, None
    with torch.inference_mode():
        if graphed:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3):
                    net(on_device)
            torch.cuda.synchronize()
            replay = torch.cuda.CUDAGraph()
            with torch.cuda.graph(replay):
                out = net(on_device)

    def forward() -> Any:
        allow()
        with torch.inference_mode():
            if where not in ("device", "cpu"):
                on_device.copy_(host, non_blocking=True)
            if replay is not None:
                replay.replay()
                return out
            return net(on_device)

    def one(image: Any) -> int:
        host.copy_(torch.from_numpy(image).reshape(host.shape))
        return int(forward())

    def run() -> None:
        labels = forward()
        if where == "device":
            torch.cuda.synchronize()
        else:
            labels.cpu()

    run()
    if where == "one":
        return _ones(name, "torch", name.split()[2], one)
    return Candidate(name, "torch", name.split()[2], where, run, lambda: forward().cpu().numpy())


# digits of this run (N, 28, 28) uint8, for candidates that take single images
IMAGES: dict[str, Any] = {}


def _ones(name: str, maker: str, precision: str, label: Callable[[Any], int]) -> Candidate:
    few = IMAGES["all"][:ONES]

    def labels() -> Any:
        return np.array([label(image) for image in few])

    return Candidate(name, maker, precision, "one", labels, labels, passes=1)


def our_candidates(images: Any, weights: Path, where: str, say: Say) -> Iterator[Candidate]:
    """Yield `LeNet` with each plan of this device, and the bare copy for host arrays."""
    device = "cpu" if where == "cpu" else "cuda"
    plans = CPU_PLANS if device == "cpu" else GPU_PLANS
    given: Any = images
    if where == "device":
        import cupy

        given = cupy.asarray(images)
    elif where == "pinned":
        import cupyx

        given = cupyx.empty_pinned(images.shape, images.dtype)
        given[...] = images
    if where in ("pinned", "pageable"):
        yield _bare_copy(given, where)
    ways = [(f"{OURS} {name}", {"plan": name}) for name in plans if device in NAMED[name]]
    if where == "one":
        ways = [(f"{OURS}, default", {"plan": "auto"}),
                (f"{OURS}, latency=True", {"plan": "auto", "latency": True}), *ways]  # fmt: skip
    for name, options in ways:
        try:
            batch = 1 if where == "one" else len(images)
            net = LeNet.load(weights, device=device, batch=batch, **options)
        except LenetError as error:
            say(f"{name}: {error}")
            continue
        precision = net.plan.precision

        def labels(net: LeNet = net) -> Any:
            result = net(given)
            return result.get() if hasattr(result, "get") else np.asarray(result)

        def run(net: LeNet = net) -> None:
            net(given)
            if where == "device":
                cupy.cuda.runtime.deviceSynchronize()

        if where == "one":
            yield _ones(name, OURS, precision, lambda image, net=net: int(net(image)))
        else:
            candidate = Candidate(name, OURS, precision, where, run, labels)
            candidate.facts["plan"] = options["plan"]
            yield candidate


def _bare_copy(images: Any, where: str) -> Candidate:
    import cupy

    on_device = cupy.empty(images.shape, images.dtype)
    stream = cupy.cuda.Stream(non_blocking=True)

    def run() -> None:
        on_device.set(images, stream=stream)
        stream.synchronize()

    return Candidate("bare copy to the device", BUS, "", where, run, lambda: None)


def onnx_candidates(weights: Path, images: Any) -> Iterator[Candidate]:
    """Yield ONNX Runtime on the CPU, in one batch and in cache-sized batches."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "net.onnx"
        convert_weights(weights, target)
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    x = np.ascontiguousarray(images.reshape(-1, 1, 28, 28).astype(np.float32) / 255)
    entry = session.get_inputs()[0].name
    for words, each in (("", len(x)), (" in batches of 100", 100)):
        parts = [x[lo : lo + each] for lo in range(0, len(x), each)]

        def run(parts: list[Any] = parts) -> Any:
            return np.concatenate([session.run(None, {entry: p})[0].argmax(1) for p in parts])

        yield Candidate(f"onnxruntime{words}", "onnxruntime", "fp32", "cpu", run, run)


def jax_candidates(weights: Weights, images: Any) -> Iterator[Candidate]:
    """Yield JAX's jit on images on the GPU."""
    import jax
    import jax.numpy as jnp

    if jax.devices()[0].platform != "gpu":
        return
    tensors = {k: jnp.asarray(v) for k, v in weights.tensors.items()}
    x = jnp.asarray(images)[..., None]
    for precision, dtype, exact in (("fp32", "float32", "highest"), ("fp16", "float16", "default")):

        def net(x: Any, dtype: str = dtype) -> Any:
            x = x.astype(dtype) / 255
            for name in ("conv1", "conv2"):
                x = jax.lax.conv_general_dilated(
                    x, tensors[name].astype(dtype), (1, 1), "VALID",
                    dimension_numbers=("NHWC", "HWIO", "NHWC"),
                )  # fmt: skip
                n, h, wide, c = x.shape
                x = jax.nn.relu(x).reshape(n, h // 2, 2, wide // 2, 2, c).mean((2, 4))
            x = jax.nn.relu(x.reshape(len(x), -1) @ tensors["fc1"].astype(dtype))
            return (x @ tensors["fc2"].astype(dtype)).argmax(1)

        with jax.default_matmul_precision(exact):
            compiled = jax.jit(net).lower(x).compile()
        run = lambda c=compiled: c(x).block_until_ready()  # noqa: E731
        labels = lambda r=run: np.asarray(r())  # noqa: E731
        yield Candidate(f"jax jit {precision}", "jax", precision, "device", run, labels)


def check(candidates: list[Candidate], expected: Any, right: Any, say: Say) -> list[Candidate]:
    """Return the candidates whose labels match float64 except for a few near ties."""
    passed = []
    for candidate in candidates:
        if candidate.maker == BUS:
            passed.append(candidate)
            continue
        labels = candidate.labels()
        n = len(labels)
        flips = int((labels != expected[:n]).sum())
        candidate.facts |= {"flips": flips, "judged": n}
        if right is not None:
            candidate.facts["correct"] = int((labels == right[:n]).sum())
        if 10_000 * flips <= MOST_FLIPS * n:
            passed.append(candidate)
        else:
            say(f"{candidate.name}: WRONG, {flips} of {n} labels differ; not timed")
    return passed


def measure(candidates: list[Candidate], rounds: int) -> None:
    """Run interleaved rounds; a sample averages the passes that fill SAMPLE_MS milliseconds."""

    def sample(timed: Candidate) -> float:
        return (
            cpu_ms(timed.run, timed.passes) / timed.passes / (ONES if timed.where == "one" else 1)
        )

    for timed in candidates:
        sample(timed)
        timed.passes = max(1, min(MOST_PASSES, round(SAMPLE_MS / cpu_ms(timed.run))))
    interleave([(partial(sample, timed), timed.samples) for timed in candidates], rounds)


def summary(candidates: list[Candidate]) -> list[dict[str, Any]]:
    """Return a row each, fastest first, with ratios to the best peer and the bare copy."""
    medians = {id(timed): float(np.median(timed.samples)) for timed in candidates}
    best: dict[tuple[str, str], tuple[float, str]] = {}
    copies = {timed.where: medians[id(timed)] for timed in candidates if timed.maker == BUS}
    for timed in candidates:
        if timed.maker not in (OURS, BUS):
            key, now = (timed.where, timed.precision), (medians[id(timed)], timed.name)
            best[key] = min(best.get(key, now), now)
    rows = []
    for timed in candidates:
        p05, p95 = np.percentile(timed.samples, [5, 95])
        row = {
            "name": timed.name, "maker": timed.maker, "precision": timed.precision,
            "where": timed.where, "median_ms": medians[id(timed)],
            "p05_ms": float(p05), "p95_ms": float(p95),
            "samples_ms": timed.samples, **timed.facts,
        }  # fmt: skip
        peer = best.get((timed.where, PEER_OF.get(timed.precision, timed.precision)))
        if timed.maker == OURS and peer is not None:
            row |= {"peer": peer[1], "peer_ms": peer[0], "times_faster": peer[0] / row["median_ms"]}
        if timed.where in copies:
            row["over_copy"] = row["median_ms"] / copies[timed.where]
        rows.append(row)
    return sorted(rows, key=lambda row: (row["where"], row["median_ms"]))


def gathered(
    gpu: Gpu | None, weight_file: Path, where: list[str], deep: bool, say: Say
) -> tuple[list[Candidate], list[dict[str, str]]]:
    """Return all candidates, and the unavailable peers with reasons."""
    weights, images = load_weights(weight_file), IMAGES["all"]
    candidates: list[Candidate] = []
    installed = {name: importlib.util.find_spec(name) is not None for name in PEERS}
    for memory in where if gpu is not None else ["cpu"]:
        candidates += our_candidates(images, weight_file, memory, say)
        if installed["torch"]:
            candidates += torch_candidates(weights, images, memory, deep, say)
    if gpu is None and installed["onnxruntime"] and installed["onnx"]:
        candidates += onnx_candidates(weight_file, images)
    if gpu is not None and "device" in where and installed["jax"]:
        candidates += jax_candidates(weights, images)
    absent = [{"name": PEERS[n], "why": "not installed"} for n in PEERS if not installed[n]]
    return candidates, absent


PEERS = {"torch": "PyTorch", "jax": "JAX", "onnx": "ONNX", "onnxruntime": "ONNX Runtime"}


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="images; default: the shipped digits")
@click.option("--weights", "weight_file", type=click.Path(path_type=Path))
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda")
@click.option("--where", multiple=True, type=click.Choice(WHERE), help="where images lie; all")
@click.option("--images", "most", type=int, help="the first so many")
@click.option("--rounds", default=15, show_default=True)
@click.option("--quick", is_flag=True, help="no torch.compile")
@click.option("--json", "target", type=click.Path(path_type=Path))
def main(
    data: Path | None, weight_file: Path | None, device: str, where: tuple[str, ...],
    most: int | None, rounds: int, quick: bool, target: Path | None,
) -> None:  # fmt: skip
    """Time lenetgpu and its peers through public calls."""
    try:
        gpu, _ = choose_device(device)
        weight_file = weight_file or assets.default_weights()
        dataset = load_dataset(data or assets.default_digits())
    except LenetError as error:
        click.echo(f"peers: error: {error}", err=True)
        sys.exit(2)
    IMAGES["all"] = np.ascontiguousarray(dataset.images[:most]).reshape(-1, 28, 28)
    weights = load_weights(weight_file)
    expected = reference_scores(IMAGES["all"][..., None], weights)[1]
    candidates, absent = gathered(
        gpu, weight_file, list(where or WHERE), not quick, partial(click.echo, err=True)
    )
    candidates = check(candidates, expected, dataset.labels, partial(click.echo, err=True))
    measure(candidates, rounds)
    rows = summary(candidates)
    for row in rows:
        peer = f"{row['times_faster']:.2f}x {row['peer']}" if "times_faster" in row else ""
        copy = f"{row['over_copy']:.2f}x the copy" if "over_copy" in row else ""
        click.echo(
            f"{row['where']:8} {row['name']:44} {row['median_ms']:9.4f} ms ({row['p05_ms']:.4f} to "
            f"{row['p95_ms']:.4f})  flips {row.get('flips', '-')}  {copy}  {peer}"
        )
    torch = importlib.util.find_spec("torch") is not None or None
    if target is not None:
        document = head("peers", gpu) | {
            "images": len(IMAGES["all"]), "data": Path(dataset.source).name,
            "weights": Path(weights.source).name, "quick": quick, "public": True,
            "torch": torch and version("torch"), "rows": rows, "not_measured": absent,
        }  # fmt: skip
        write_atomically(target, (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
