"""Compare lenetgpu's public calls and commands with bare copies, its own kernels and PyTorch.

Rows (`--where`), of 10,000 digits to labels; a CPU has `pageable` and `one`. `bus`: bare copies of
page-locked images to the GPU. `pinned`, `pageable`, `floats`: page-locked uint8, NumPy uint8, NumPy
float32. `device`, `queued`: images on the GPU until labels can be read, a call of 50 queued ones.
`one`: a NumPy image (28, 28). `infer`, `classify`: processes; the latter reads 16 M images (12.5 GB
in `--folder`), then 200,000. Labels are compared with float64 before anything is timed. Rounds are
interleaved in balanced order, calls timed one by one. A peer counts by its best mode.

    python scripts/peers.py                     # every row of this device
    python scripts/peers.py --device cpu --json docs/measured/cpu-2-cores/peers.json
"""

import json
import shutil
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import scale

from lenetgpu import LeNet, LenetError
from lenetgpu.arrays import cupy
from lenetgpu.check.reference import reference_scores
from lenetgpu.files import assets
from lenetgpu.files.convert import convert_weights
from lenetgpu.files.models.layouts import to_torch
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import Gpu, driver_gpus
from lenetgpu.gpu.graph import Graph, TorchGraph
from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.measure.document import head, plan_json
from lenetgpu.measure.rounds import interleave, why
from lenetgpu.measure.timing import cpu_ms
from lenetgpu.plan import choose_device
from lenetgpu.store import write_atomically

OURS, BUS, KERNELS = "lenetgpu", "bus", "kernels"
LIMITS = (BUS, KERNELS)  # makers of what nothing can be faster than
WHERE = (BUS, "pinned", "pageable", "floats", "device", "queued", "one", "infer", "classify")
CPU_WHERE = ("pageable", "one")
COPY_OF = {"pinned": "uint8", "pageable": "uint8", "floats": "float32", "infer": "uint8"}
PEER_OF = {"int8": "fp16"}
MOST_FLIPS = 25  # of 10,000 labels
LOADS: list[dict[str, Any]] = [{}, {"precision": "fp16"}, {"precision": "int8"}, {"latency": True}]
CPU_LOADS: list[dict[str, Any]] = [{}, {"plan": "tiled"}, {"plan": "unrolled"}, {"plan": "fft"}]
MODES = {"eager": None, "graph": None, "compile": "default", "reduce-overhead": "reduce-overhead",
         "max-autotune": "max-autotune"}  # fmt: skip  # of torch.compile
QUEUED, GRAPHED, ONES = 50, 20, 200
SAMPLE_MS, LONG_MS, MOST_PASSES = 10.0, 30.0, 500
REST_S = 0.005  # the persistent kernel ends 2 ms after its last image
ROUNDS = {"infer": 7, "classify": 3}
JOBS = (16_000_000, 200_000)  # images of `classify`
Run = Callable[[], Any]
say = partial(click.echo, err=True)


@dataclass
class Candidate:
    """A way to label images: `run` is timed, and `wait` after it; a process returns its ms."""

    name: str
    maker: str
    precision: str
    where: str
    run: Run
    wait: Run | None = None
    labels: Run | None = None  # None: what `run` returns
    facts: dict[str, Any] = field(default_factory=dict)
    each: int = 1  # calls in a run
    found: dict[str, list[float]] = field(default_factory=dict)  # figures that a process reports
    calls: list[float] = field(default_factory=list)  # ms of every call
    samples: list[float] = field(default_factory=list)  # medians of rounds

    def once(self) -> Any:
        for _ in range(self.each if self.where == "queued" else 1):
            found = self.run()
        return found if self.wait is None else (found, self.wait())[0]


def ones(name: str, maker: str, precision: str, images: Any, label: Any) -> Candidate:
    labels = lambda: [int(label(image)) for image in images[:ONES]]  # noqa: E731
    run = partial(label, images[0])
    return Candidate(name, maker, precision, "one", run, None, labels, {"images": 1})


def torch_net(torch: Any, weights: Weights, device: str, precision: str, mode: str | None) -> Any:
    """Return a PyTorch function from images (N, 1, 28, 28) to labels (N,), compiled if `mode`."""
    F, half = torch.nn.functional, precision == "fp16"
    dtype = torch.float16 if half else torch.float32
    planar = to_torch(weights.tensors)
    tensors = {name: torch.from_numpy(w).to(device, dtype) for name, w in planar.items()}
    for name in ("conv1.weight", "conv2.weight") if half else ():
        tensors[name] = tensors[name].contiguous(memory_format=torch.channels_last)

    def forward(x: Any) -> Any:
        x = x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)
        if half:
            x = x.contiguous(memory_format=torch.channels_last)
        for name in ("conv1.weight", "conv2.weight"):
            x = F.avg_pool2d(F.relu(F.conv2d(x, tensors[name])), 2)
        x = F.relu(F.linear(x.flatten(1), tensors["fc1.weight"]))
        return F.linear(x, tensors["fc2.weight"]).argmax(1)

    if mode is None:
        return forward
    code = forward.__code__.replace()  # torch.compile caches by code object
    own = types.FunctionType(code, forward.__globals__, "net", None, forward.__closure__)
    return torch.compile(own, mode=mode)


def torch_candidates(
    weights: Weights, images: Any, where: list[str], device: str, modes: list[str]
) -> Iterator[Candidate]:
    """Yield PyTorch on NumPy `images` (N, 28, 28) at each place, in these modes."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for precision in ("fp32", "fp16") if device == "cuda" else ("fp32",):
        for mode in modes:
            net, name = None, f"torch {mode} {precision}"
            for place in where:
                if MODES[mode] and place in ("floats", "one"):  # compiled anew for type and shape
                    continue
                try:
                    net = net or torch_net(torch, weights, device, precision, MODES[mode])
                    yield torch_one(torch, net, name, precision, place, images, device)
                except Exception as error:  # a peer that cannot run is named, not hidden
                    say(f"{name}, {place}: {why(error)}")


def torch_one(
    torch: Any, net: Any, name: str, precision: str, place: str, images: Any, device: str
) -> Candidate:
    array = images[:1].copy() if place == "one" else images
    host = torch.from_numpy(array).reshape(-1, 1, 28, 28)
    host = host.float() / 255 if place == "floats" else host
    host = host.pin_memory() if device == "cuda" and place in ("pinned", "one") else host
    x = host.to(device)
    out: list[Any] = []

    def call() -> Any:
        with torch.inference_mode():
            return net(x)

    def labels() -> Any:
        if device == "cuda":
            x.copy_(host, non_blocking=True)
        return run().cpu()

    def one(image: Any) -> Any:
        host.copy_(torch.from_numpy(image).reshape(host.shape))
        return labels()

    call()
    graph: Any = TorchGraph(lambda: out.append(call()), 1) if " graph " in name else None
    run = call if graph is None else lambda: graph.launch() or out[-1]
    if place == "one":
        return ones(name, "torch", precision, images, one)
    if place not in ("device", "queued"):
        return Candidate(name, "torch", precision, place, labels)
    wait, each = torch.cuda.synchronize, QUEUED if place == "queued" else 1
    return Candidate(name, "torch", precision, place, run, wait, each=each)


def onnx_candidates(weights: Weights, images: Any, folder: Path) -> Iterator[Candidate]:
    """Yield ONNX Runtime on the CPU, in one batch, in cache-sized batches, and for one image."""
    import onnxruntime

    convert_weights(Path(weights.source), folder / "net.onnx")
    session = onnxruntime.InferenceSession(folder / "net.onnx", providers=["CPUExecutionProvider"])

    def run(images: Any, each: int = 1) -> Any:
        x = images.reshape(-1, 1, 28, 28).astype(np.float32) / 255
        parts = [{session.get_inputs()[0].name: x[lo : lo + each]} for lo in range(0, len(x), each)]
        return np.concatenate([session.run(None, part)[0].argmax(1) for part in parts])

    for words, each in (("", len(images)), (" in batches of 100", 100)):
        whole = partial(run, images, each)
        yield Candidate(f"onnxruntime{words}", "onnxruntime", "fp32", "pageable", whole)
    yield ones("onnxruntime", "onnxruntime", "fp32", images, lambda image: run(image)[0])


def gpu_places(images: Any, gpu: Gpu) -> Iterator[tuple[str, str, Any, Run | None]]:
    """Yield (place, kind of array, images there, function that waits for labels on the GPU)."""
    cupy.cuda.Device(gpu.index).use()
    for place, array in ("pinned", images), ("floats", images.astype(np.float32) / np.float32(255)):
        locked = pinned_empty(array.shape, array.dtype)
        locked[...] = array
        yield BUS, "", locked, None
        yield place, "", locked if place == "pinned" else array, None
    there = [("CuPy array", cupy.asarray(images), cupy.cuda.get_current_stream().synchronize)]
    with suppress(ImportError, AssertionError, RuntimeError):  # or without CUDA
        import torch

        torch.cuda.set_device(gpu.index)
        there.append(("PyTorch tensor", torch.from_numpy(images).cuda(), torch.cuda.synchronize))
    yield from ((place, *one) for place in ("device", "queued") for one in there)


def our_candidates(
    images: Any, weights: Path | None, device: str, gpu: Gpu | None
) -> Iterator[Candidate]:
    """Yield each `LeNet.load` at each place, the bare copies and the kernels alone."""
    places: list[tuple[str, str, Any, Run | None]] = [("pageable", "", images, None)]
    places += [] if gpu is None else gpu_places(images, gpu)
    yield from (bare_copy(array) for place, _, array, _ in places if place == BUS)
    for options in CPU_LOADS if gpu is None else LOADS:
        words = ", ".join(f"{key}={value!r}" for key, value in options.items()).replace("'", '"')
        name, precision = f"LeNet.load({words})", options.get("precision", "fp32")
        try:
            net = LeNet.load(weights, device=device, **options)
            yield ones(name, OURS, precision, images, net)
            for place, kind, array, wait in places if "latency" not in options else ():
                if (place, kind) == ("device", "CuPy array"):
                    yield kernels(net, name, precision, array)
                facts = {"plan": plan_json(net.plan), "ran": net.plan.precision}
                run, each = partial(net, array), QUEUED if place == "queued" else 1
                words = f"{name}, {kind}" if kind else name
                if place != BUS:
                    yield Candidate(words, OURS, precision, place, run, wait, None, facts, each)
        except (LenetError, RuntimeError) as error:
            say(f"{name}: {why(error)}")


def kernels(net: LeNet, name: str, precision: str, images: Any) -> Candidate:
    """Return the kernels that `net` runs, alone: a CUDA graph of GRAPHED passes of its pipeline."""
    pipeline, pixels = net._engine.whole_pipeline("uint8", len(images), False), images[..., None]
    pipeline.run(pixels)
    graph = Graph(lambda: pipeline.run(pixels), GRAPHED)
    run, wait = graph.launch_alone, graph.stream.synchronize
    return Candidate(f"kernels of {name}", KERNELS, precision, KERNELS, run, wait, each=GRAPHED)


def bare_copy(images: Any) -> Candidate:
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
    copy, kind, at = runtime.memcpyAsync, runtime.memcpyHostToDevice, images.ctypes.data
    held, dtype = cupy.empty(images.shape, images.dtype), images.dtype.name
    run = lambda: copy(held.data.ptr, at, images.nbytes, kind, stream.ptr)  # noqa: E731
    return Candidate(f"bare copy of {dtype} images", BUS, dtype, BUS, run, stream.synchronize)


def processes(
    images: Any, where: list[str], scratch: Path, data: list[str], options: list[str]
) -> Iterator[Candidate]:
    """Yield `infer` on `data`, and `classify` on files of `images` repeated, with workers too."""
    n = len(images)
    if "infer" in where:
        words = ["infer", *data, "--batch", "10000", *options]
        yield process("infer", "", words, scratch / "labels.npy", n, images=n)
    for job in JOBS if "classify" in where else ():
        count = scale.FILES * n * max(1, job // (scale.FILES * n))
        read, need, free = scratch / str(job), 8e-7 * count, shutil.disk_usage(scratch).free / 1e9
        if free < need:
            say(f"classify: {count:,} images need {need:.1f} GB in --folder, found {free:.1f} GB")
            continue
        read.mkdir()
        scale.make(read, count, scale.FILES, images)
        more = " --workers 2" if job == JOBS[-1] else " --workers cuda" * (len(driver_gpus()) > 1)
        for workers in dict.fromkeys(("", more)):
            words = ["classify", str(read), "--out", str(scratch / "out"), *options]
            words += workers.split()
            yield process("classify", workers, words, scratch / "out", n, images=count)


def process(where: str, more: str, words: list[str], out: Path, n: int, **facts: Any) -> Candidate:
    """Return a process that labels `n` images, once or repeatedly, into `out` if checked."""
    found: dict[str, list[float]] = {}

    def run(*to: str) -> float:
        shutil.rmtree(out, ignore_errors=True)
        begun = time.perf_counter()
        program = [sys.executable, "-m", "lenetgpu", *words, *to, "--no-progress", "--json", "-"]
        document = scale.run(program, 0, "")
        ms, job = 1e3 * (time.perf_counter() - begun), document.get("this_run")
        figures = {"wall_ms": ms, "images_per_second": job["images_per_second"]} if job else {
            "pass_ms": document["timing_ms"]["end_to_end"]["median"]}  # fmt: skip
        for key, value in figures.items():
            found.setdefault(key, []).append(value)
        return 1e3 * float(job["seconds"]) if job else ms

    def labels() -> Any:
        run(*(["--output", str(out)] if where == "infer" else []))
        found.clear()
        parts = [out] if where == "infer" else sorted(out.glob("part-*.npy"))
        copies = np.concatenate([np.load(part) for part in parts]).reshape(-1, n)
        return copies[(copies != copies[0]).any(1).argmax()]  # the first unlike the first, if any

    facts["workers"] = more.strip()
    name = f"lenetgpu {where}{more}, {facts['images']:,} images"
    return Candidate(name, OURS, "fp32", where, run, None, labels, facts, found=found)


def check(candidates: list[Candidate], expected: Any, right: Any) -> list[Candidate]:
    """Return the candidates whose labels match float64 except for a few near ties."""
    passed = [candidate for candidate in candidates if candidate.maker in LIMITS]
    for candidate in (candidate for candidate in candidates if candidate.maker not in LIMITS):
        try:
            found = candidate.labels() if candidate.labels else candidate.once()
            found = found.cpu() if hasattr(found, "cpu") else found
            labels = found.get() if hasattr(found, "get") else np.asarray(found)
        except Exception as error:
            say(f"{candidate.name}, {candidate.where}: {why(error)}")
            continue
        n, flips = len(labels), int((labels != expected[: len(labels)]).sum())
        candidate.facts |= {"flips": flips, "judged": n}
        if right is not None:
            candidate.facts["correct"] = int((labels == right[:n]).sum())
        if 10_000 * flips <= MOST_FLIPS * n:
            passed.append(candidate)
        else:
            say(f"{candidate.name}: WRONG, {flips} of {n} labels differ; not timed")
    return passed


def measure(candidates: list[Candidate], rounds: int) -> None:
    """Run interleaved rounds; in each, a candidate's calls fill SAMPLE_MS milliseconds."""

    def sample(timed: Candidate, passes: int, warmup: int) -> float:
        if timed.where in ROUNDS:
            calls = [float(timed.run())]
        else:
            call = timed.once if timed.wait else timed.run
            cpu_ms(call, warmup)
            calls = [cpu_ms(call) / timed.each for _ in range(passes)]
        time.sleep(REST_S * (timed.where == "one"))
        timed.calls += calls
        return float(np.median(calls))

    entries = []
    for timed in candidates:
        took = LONG_MS if timed.where in ROUNDS else cpu_ms(timed.once, 2) / 2
        passes = 1 if took >= LONG_MS else max(3, min(MOST_PASSES, round(SAMPLE_MS / took)))
        warmup = 0 if passes == 1 else max(3, passes // 2)
        entries.append((partial(sample, timed, passes, warmup), timed.samples))
    most = {id(timed.samples): ROUNDS.get(timed.where, rounds) for timed in candidates}
    interleave(entries, rounds, enough=lambda samples: len(samples) >= most[id(samples)])


def summary(candidates: list[Candidate]) -> list[dict[str, Any]]:
    """Return a row each, over the best peer, the bare copy, the kernels, or no workers."""
    medians = {id(timed): float(np.median(timed.calls)) for timed in candidates}
    copies = {t.precision: medians[id(t)] for t in candidates if t.maker == BUS}
    alone = {t.precision: medians[id(t)] for t in candidates if t.maker == KERNELS}
    jobs = {t.facts["images"]: medians[id(t)] for t in candidates if t.facts.get("workers") == ""}
    peers = [t for t in candidates if t.maker not in (OURS, *LIMITS)]
    rows = []
    for timed in candidates:
        ms, (p05, p95, p99) = medians[id(timed)], np.percentile(timed.calls, [5, 95, 99])
        row = {
            "name": timed.name, "maker": timed.maker, "precision": timed.precision,
            "where": timed.where, "median_ms": ms, "p05_ms": float(p05), "p95_ms": float(p95),
            "p99_ms": float(p99), "calls": len(timed.calls), "samples_ms": timed.samples,
            **timed.facts, **{key: float(np.median(each)) for key, each in timed.found.items()},
        }  # fmt: skip
        like = timed.where, PEER_OF.get(timed.precision, timed.precision)
        same = [(medians[id(t)], t.name) for t in peers if (t.where, t.precision) == like]
        if timed.maker == OURS and same:
            best, name = min(same)
            row |= {"peer": name, "peer_ms": best, "times_faster": best / ms}
        if copy := copies.get(COPY_OF.get(timed.where, "")):
            row["over_copy"] = row.get("pass_ms", ms) / copy
        own = alone.get(timed.precision) if timed.where in ("device", "queued") else None
        if own and timed.maker == OURS:
            row |= {"over_kernels": ms / own, "beyond_us": 1e3 * (ms - own)}
        if timed.facts.get("workers") and (job := jobs.get(timed.facts["images"])):
            row["times_alone"] = job / ms
        rows.append(row)
    return sorted(rows, key=lambda row: ((*WHERE, KERNELS).index(row["where"]), row["median_ms"]))


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="images; default: the shipped digits")
@click.option("--weights", "weight_file", type=click.Path(path_type=Path))
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda")
@click.option("--where", multiple=True, type=click.Choice(WHERE), help="rows; all")
@click.option("--images", "most", default=10_000, help="the first so many")
@click.option("--rounds", default=15, show_default=True)
@click.option("--quick", is_flag=True, help="no torch.compile")
@click.option("--autotune", is_flag=True, help="max-autotune too, which takes minutes")
@click.option("--folder", type=click.Path(path_type=Path), default="/dev/shm", help="for images")
@click.option("--json", "target", type=click.Path(path_type=Path))
def main(
    data: Path | None, weight_file: Path | None, device: str, where: tuple[str, ...],
    most: int, rounds: int, quick: bool, autotune: bool, folder: Path, target: Path | None,
) -> None:  # fmt: skip
    """Time lenetgpu and its peers through public calls and commands."""
    try:
        gpu, _ = choose_device(device)
        weights = load_weights(weight_file or assets.default_weights())
        dataset = load_dataset(data or assets.default_digits())
    except LenetError as error:
        say(f"peers: error: {error}")
        sys.exit(2)
    images = np.ascontiguousarray(dataset.images[:most]).reshape(-1, 28, 28)
    expected = reference_scores(images[..., None], weights)[1]
    every, kind = (CPU_WHERE, "cpu") if gpu is None else (WHERE, "cuda")
    rows = list(where or every)
    called = [place for place in rows if place in every and place not in (BUS, *ROUNDS)]
    wanted = ["eager", "graph", "compile", "reduce-overhead"] if gpu else ["eager", "compile"]
    modes = [m for m in wanted + ["max-autotune"] * autotune if not (quick and MODES[m])]
    source = [str(data)] * bool(data) + ["--limit", str(most)] * (most < len(dataset.images))
    options = ["--device", device] + ["--weights", str(weight_file)] * bool(weight_file)
    parent, absent = folder if {*rows} & {*ROUNDS} else None, []
    with tempfile.TemporaryDirectory(prefix="lenetgpu-peers-", dir=parent) as name:
        scratch = Path(name)
        called_or_copied = {*rows} - {"classify"}
        ours = our_candidates(images, weight_file, device, gpu)
        candidates = list(ours) if called_or_copied else []
        peers = {"PyTorch": torch_candidates(weights, images, called, kind, modes)}
        if gpu is None:
            peers["ONNX Runtime"] = onnx_candidates(weights, images, scratch)
        for peer, found in peers.items():
            try:
                candidates += found
            except (ImportError, LenetError) as error:
                absent.append({"name": peer, "why": why(error)})
        candidates += processes(images, rows, scratch, source, options)
        candidates = [one for one in candidates if one.where in (*rows, *LIMITS)]
        candidates = check(candidates, expected, dataset.labels)
        measure(candidates, rounds)
    results, torch = summary(candidates), sys.modules.get("torch")
    for row in results:
        more = [f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, float)]
        click.echo(f"{row['where']:8} {row['name']:46} {row['median_ms']:9.4f} ms "
                   f"p99 {row['p99_ms']:9.4f}  {', '.join(more[4:])}")  # fmt: skip
    if target is not None:
        document = head("peers", gpu) | {
            "images": len(images), "data": Path(dataset.source).name,
            "weights": Path(weights.source).name, "quick": quick, "public": True,
            "torch": torch and str(torch.__version__), "rows": results, "not_measured": absent,
        }  # fmt: skip
        write_atomically(target, (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
