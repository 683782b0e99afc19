"""The main job: images in, labels and an account of the time out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lenetgpu.check.verify import verify_once
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.device import choose_device
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import Dataset, load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.choice import choose
from lenetgpu.measure.outcome import TRANSFERS, Outcome, Request
from lenetgpu.measure.roofline import ceilings
from lenetgpu.measure.timing import StepTiming, profile, repeat, summarise, time_compute
from lenetgpu.measure.trace import CpuTracer, GpuTracer, TraceEvent
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline, default_chunk
from lenetgpu.plan import AUTO, Plan, resolve

_GPU_BUDGET_S, _CPU_BUDGET_S = 0.5, 2.0
_GPU_LEAST, _CPU_LEAST = 10, 1
_PROFILE_REPEATS = {"cuda": 20, "cpu": 1}

Progress = Callable[[int], None]


class _Clock:
    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        elapsed = (time.perf_counter() - start) * 1e3
        self.phases[name] = self.phases.get(name, 0.0) + elapsed


@dataclass
class _Job:
    """What a run is given, and the clock of its phases."""

    request: Request
    gpu: Gpu | None
    plan: Plan
    weights: Weights
    dataset: Dataset
    clock: _Clock
    progress: Progress | None

    @property
    def batch(self) -> int:
        return min(self.request.batch, len(self.dataset))

    @property
    def dtype(self) -> str:
        return str(self.dataset.images.dtype)

    def pipeline(self, size: int, chunk: int | None) -> Pipeline:
        """For passes of up to `size` images; scores only where they are asked for."""
        request = self.request
        made = Pipeline(self.plan, self.weights, size, self.dtype, chunk, request.transfers)
        made.with_scores = request.scores
        return made


@dataclass
class _Ran:
    """Labels, scores where asked, samples in milliseconds, and what was profiled and traced."""

    labels: Any
    scores: Any
    compute: list[float]
    end_to_end: list[float]
    rows: list[StepTiming]
    events: list[TraceEvent] = field(default_factory=list)


def _check(request: Request) -> None:
    """LenetError unless the request's numbers and words are ones that can be run."""
    counts = {"--batch": request.batch, "--limit": request.limit, "--chunk": request.chunk}
    for option, count in counts.items():
        if count is not None and count < 1:
            raise LenetError(f"{option}: expected at least 1 image, found {count}")
    if request.streams < 1:
        raise LenetError(f"--streams: expected at least 1, found {request.streams}")
    if request.min_accuracy is not None and not 0 <= request.min_accuracy <= 1:
        raise LenetError(
            f"--min-accuracy: expected a share from 0 to 1, found {request.min_accuracy:g}"
        )
    if request.transfers not in TRANSFERS:
        raise LenetError(
            f"--transfers: expected {' or '.join(TRANSFERS)}, found {request.transfers!r}"
        )


def infer(request: Request, progress: Progress | None = None) -> Outcome:
    """Classify the data set as the request says; `progress(count)` is called as images pass.

    Raises LenetError for bad input, before anything is computed.
    """
    _check(request)
    clock = _Clock()
    gpu, why = choose_device(request.device, request.plan)
    if request.streams > 1 and gpu is None:
        raise LenetError(f"--streams {request.streams}: expected a GPU, found device cpu ({why})")
    device = "cpu" if gpu is None else "cuda"
    plan = resolve(request.plan, device, request.overrides, request.precision, gpu)
    with clock.phase("load"):
        weights = load_weights(request.weights or assets.default_weights())
        dataset = load_dataset(request.data or assets.default_digits()).head(request.limit)
    if request.min_accuracy is not None and dataset.labels is None:
        raise LenetError(f"--min-accuracy: expected labels in {dataset.source}, found none")
    job = _Job(request, gpu, plan, weights, dataset, clock, progress)
    if gpu is not None:
        _wake(job, gpu)
    ran = _run_cpu(job) if gpu is None else _run_gpu(job, gpu)
    limits = ceilings(device, gpu.name if gpu else cpu_name()) if request.roofline else None
    return Outcome(
        request=request,
        dataset=dataset,
        weights=weights,
        plan=job.plan,
        gpu=gpu,
        why_device=why,
        labels=ran.labels,
        scores=ran.scores,
        compute=summarise(ran.compute),
        end_to_end=summarise(ran.end_to_end),
        phases=clock.phases,
        rows=ran.rows,
        limits=limits,
        trace=ran.events,
    )


def _wake(job: _Job, gpu: Gpu) -> None:
    """Make `gpu` current, and let plan `auto` choose on it."""
    with job.clock.phase("import"):
        import cupy  # noqa: F401
    with job.clock.phase("context"):
        gpu_device.activate(gpu)
    if job.request.plan == AUTO and not job.request.overrides:
        with job.clock.phase("choose"):
            job.plan = choose(gpu, job.plan.precision, job.batch)


def _run_cpu(job: _Job) -> _Ran:
    import numpy as np

    request, clock, progress = job.request, job.clock, job.progress
    with clock.phase("import"):
        import numba  # noqa: F401
    images, batch = job.dataset.images, job.batch
    with clock.phase("compile"):
        pipeline = job.pipeline(batch, request.chunk)
        pipeline.run(images[:1])
    labels = np.empty(len(images), np.int32)
    scores = np.empty((len(images), 10), np.float32) if request.scores else None
    last = pipeline.steps[-1]

    def passed(step: Any, output: Any) -> None:
        if step is last and progress is not None:
            progress(len(output))

    start = time.perf_counter()
    for lo in range(0, len(images), batch):
        part = images[lo : lo + batch]
        labels[lo : lo + batch] = pipeline.run(part, passed if progress else None)
        if scores is not None:
            scores[lo : lo + batch] = pipeline.scores(len(part))
    first = (time.perf_counter() - start) * 1e3
    clock.phases["first"] = first
    compute = repeat(
        lambda: time_compute(pipeline, images), _CPU_BUDGET_S, _CPU_LEAST, first=[first]
    )
    if len(compute) > 1:
        compute = compute[1:]
    rows = profile(pipeline, images, _PROFILE_REPEATS["cpu"]) if request.timing else []
    tracer = CpuTracer()
    if request.trace:
        tracer.mark(0, None)
        for lo in range(0, len(images), batch):
            pipeline.run(images[lo : lo + batch], lambda step, _: tracer.mark(0, step.name))
    return _Ran(labels, scores, compute, compute, rows, tracer.events())


def _check_memory(batch: int, plan: Plan) -> None:
    """LenetError where the largest activations of an unfused plan do not fit."""
    if any(slot.variant.raw_images for slot in plan.slots):
        return
    largest = max(
        slot.problem.in_shape[0] * slot.problem.in_shape[1] * slot.problem.in_shape[2]
        for slot in plan.slots
        if len(slot.problem.in_shape) == 3
    )
    needed, free = 2 * 4 * min(batch, default_chunk("cuda")) * largest, gpu_device.free_bytes()
    if needed > free:
        raise LenetError(
            f"--batch {batch}: expected at most {free * batch // needed} images for the GPU's "
            f"{free / 2**30:.1f} GiB of free memory, found {batch}; take a smaller --batch"
        )


def _run_gpu(job: _Job, gpu: Gpu) -> _Ran:
    request, clock, batch = job.request, job.clock, job.batch
    with clock.phase("import"):
        import cupy

        from lenetgpu.check.warmup import compile_plan
        from lenetgpu.streaming import Streamer, host_results, pinned_copy
    _check_memory(batch, job.plan)
    size, chunk = batch, request.chunk
    if request.streams > 1:
        size = min(batch, request.chunk or -(-batch // (2 * request.streams)))
        chunk = None
    passes = {min(images, chunk or default_chunk("cuda")) for images in (size, batch)}
    with clock.phase("compile"):
        for images in passes:
            compile_plan(job.plan, images)
    with clock.phase("verify"):
        for images in passes:
            verify_once(job.plan, gpu.name, job.dtype, images)
    with clock.phase("load"):
        streamer = Streamer(lambda images: job.pipeline(images, chunk), size, request.streams)
        pipeline = job.pipeline(batch, chunk)
        images = pinned_copy(job.dataset.images)
        labels, scores = host_results(len(images), request.scores)
    with clock.phase("first"):
        streamer.run(images, labels, scores, job.progress)
    found = labels.copy()
    with clock.phase("copy"):
        resident = cupy.empty((len(images), *IMAGE_SHAPE), job.dtype)
        resident.set(images)

    def end_to_end() -> float:
        start = time.perf_counter()
        streamer.run(images, labels)
        return (time.perf_counter() - start) * 1e3

    time_compute(pipeline, resident)
    compute = repeat(lambda: time_compute(pipeline, resident), _GPU_BUDGET_S, _GPU_LEAST)
    whole = repeat(end_to_end, _GPU_BUDGET_S, _GPU_LEAST)
    rows = profile(pipeline, resident, _PROFILE_REPEATS["cuda"]) if request.timing else []
    tracer = GpuTracer()
    if request.trace:
        streamer.run(images, labels, mark=tracer.mark)
    return _Ran(found, scores, compute, whole, rows, tracer.events())
