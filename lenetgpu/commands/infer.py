"""The main job: images in, labels and an account of the time out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from lenetgpu.measure.outcome import TRANSFERS, Outcome, Progress, Request
from lenetgpu.measure.roofline import ceilings
from lenetgpu.measure.timing import StepTiming, profile, repeat, summarise, time_compute
from lenetgpu.measure.trace import CpuTracer, GpuTracer, TraceEvent
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.pipeline import GPU_CHUNK, Pipeline
from lenetgpu.plan import AUTO, Plan, resolve

_GPU_BUDGET_S, _CPU_BUDGET_S = 0.5, 2.0
_GPU_LEAST, _CPU_LEAST = 10, 1
_PROFILE_REPEATS = {"cuda": 20, "cpu": 1}
_Ran = tuple[Any, Any, list[float], list[float], list[StepTiming], list[TraceEvent]]


class _Clock:
    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        elapsed = (time.perf_counter() - start) * 1e3
        self.phases[name] = self.phases.get(name, 0.0) + elapsed


def _compile(plan: Plan) -> None:
    """Compile what the plan launches, so that the pipeline finds it ready."""
    from lenetgpu.check.warmup import compile_all
    from lenetgpu.stages import variants

    for slot in plan.slots:
        if slot.variant.kernels is not None:
            compile_all(slot.variant.kernels(slot.problem))
    for support in variants("scale", "cuda"):
        if support.kernels is not None and not plan.slots[0].variant.raw_images:
            compile_all(support.kernels(None))


def infer(request: Request, progress: Progress | None = None) -> Outcome:
    """Classify the data set as the request says; `progress(count)` is called as images pass.

    Raises LenetError for bad input, before anything is computed.
    """
    if request.batch < 1:
        raise LenetError(f"--batch: expected at least 1 image, found {request.batch}")
    if request.limit is not None and request.limit < 1:
        raise LenetError(f"--limit: expected at least 1 image, found {request.limit}")
    if request.chunk is not None and request.chunk < 1:
        raise LenetError(f"--chunk: expected at least 1 image, found {request.chunk}")
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
    clock = _Clock()
    gpu, why = choose_device(request.device, request.plan)
    if request.streams > 1 and gpu is None:
        raise LenetError(f"--streams {request.streams}: expected a GPU, found device cpu ({why})")
    plan = resolve(
        request.plan,
        "cuda" if gpu else "cpu",
        request.overrides,
        request.precision,
        gpu.compute_capability if gpu else None,
    )
    with clock.phase("load"):
        weights = load_weights(request.weights or assets.default_weights())
        dataset = load_dataset(request.data or assets.default_digits()).head(request.limit)
    if request.min_accuracy is not None and dataset.labels is None:
        raise LenetError(f"--min-accuracy: expected labels in {dataset.source}, found none")
    if gpu is not None:
        with clock.phase("import"):
            import cupy  # noqa: F401
        with clock.phase("context"):
            gpu_device.activate(gpu)
        if request.plan == AUTO and not request.overrides:
            with clock.phase("choose"):
                plan = choose(gpu, plan.precision, min(request.batch, len(dataset)))
    run = _run_cpu if gpu is None else _run_gpu
    labels, scores, compute, end_to_end, rows, events = run(
        request, gpu, plan, weights, dataset, clock, progress
    )
    limits = None
    if request.roofline:
        limits = ceilings(plan.device, gpu.name if gpu else cpu_name())
    return Outcome(
        request, dataset, weights, plan, gpu, why, labels, scores, summarise(compute),
        summarise(end_to_end), clock.phases, rows, limits, events,
    )  # fmt: skip


def _run_cpu(
    request: Request,
    gpu: Gpu | None,
    plan: Plan,
    weights: Weights,
    dataset: Dataset,
    clock: _Clock,
    progress: Progress | None,
) -> _Ran:
    import numpy as np

    with clock.phase("import"):
        import numba  # noqa: F401
    images = dataset.images
    batch = min(request.batch, len(images))
    with clock.phase("compile"):
        pipeline = Pipeline(
            plan, weights, batch, str(images.dtype), request.chunk, request.transfers
        )
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
    return labels, scores, compute, compute, rows, tracer.events()


def _check_memory(batch: int, plan: Plan) -> None:
    """LenetError where the largest activations of an unfused plan do not fit."""
    if any(slot.variant.raw_images for slot in plan.slots):
        return
    largest = max(
        slot.problem.in_shape[0] * slot.problem.in_shape[1] * slot.problem.in_shape[2]
        for slot in plan.slots
        if len(slot.problem.in_shape) == 3
    )
    needed, free = 2 * 4 * min(batch, GPU_CHUNK) * largest, gpu_device.free_bytes()
    if needed > free:
        raise LenetError(
            f"--batch {batch}: expected at most {free * batch // needed} images for the GPU's "
            f"{free / 2**30:.1f} GiB of free memory, found {batch}; take a smaller --batch"
        )


def _run_gpu(
    request: Request,
    gpu: Gpu | None,
    plan: Plan,
    weights: Weights,
    dataset: Dataset,
    clock: _Clock,
    progress: Progress | None,
) -> _Ran:
    assert gpu is not None
    with clock.phase("import"):
        import cupy

        from lenetgpu.streaming import Streamer, host_results, pinned_copy
    batch, dtype = min(request.batch, len(dataset)), str(dataset.images.dtype)
    _check_memory(batch, plan)
    with clock.phase("compile"):
        _compile(plan)
    with clock.phase("verify"):
        verify_once(plan, gpu.name, dtype)

    def make(size: int) -> Pipeline:
        chunk = request.chunk if request.streams == 1 else None
        made = Pipeline(plan, weights, size, dtype, chunk, request.transfers)
        made.with_scores = request.scores
        return made

    with clock.phase("load"):
        size = batch
        if request.streams > 1:
            size = min(batch, request.chunk or -(-batch // (2 * request.streams)))
        streamer = Streamer(make, size, request.streams)
        pipeline = make(batch)
        images = pinned_copy(dataset.images)
        labels, scores = host_results(len(images), request.scores)
    with clock.phase("first"):
        streamer.run(images, labels, scores, progress)
    found = labels.copy()
    with clock.phase("copy"):
        resident = cupy.empty((len(images), *IMAGE_SHAPE), dtype)
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
    return found, scores, compute, whole, rows, tracer.events()
