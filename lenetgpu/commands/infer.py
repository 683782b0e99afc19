"""The main job: images in, labels and an account of the time out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
from lenetgpu.measure.document import stage_rows
from lenetgpu.measure.outcome import Outcome, Progress, Request
from lenetgpu.measure.power import watch_steps
from lenetgpu.measure.roofline import Ceilings, above, ceilings, confirmed, known
from lenetgpu.measure.timing import (
    StepTiming,
    expected,
    profile,
    repeat,
    summarise,
    time_compute,
)
from lenetgpu.measure.trace import CpuTracer, GpuTracer
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline, default_chunk
from lenetgpu.plan import AUTO, Plan, resolve
from lenetgpu.show.progress import Tally

if TYPE_CHECKING:
    from lenetgpu.streaming import Streamer

_GPU_BUDGET_S, _CPU_BUDGET_S = 0.5, 2.0
_GPU_LEAST, _CPU_LEAST, _CPU_LEAST_TIMED = 10, 1, 5
_WARM_BELOW_S = 10.0
"""A CPU's first pass that took longer is not followed by a warm one, but for stage times."""
_PROFILE_REPEATS = {"cuda": 20, "cpu": 5}
_clock = time.perf_counter


class _Clock:
    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = _clock()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + (_clock() - start) * 1e3


@dataclass
class _Job:
    """What a run is given, and the clock of its phases."""

    request: Request
    gpu: Gpu | None
    plan: Plan
    weights: Weights
    dataset: Dataset
    clock: _Clock
    tally: Tally

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
    """What there is of a run, filled as it goes, so that Ctrl-C leaves what was done.

    `labels` (N,) int32 and `scores` (N, 10), of which the first `done` are there; samples of warm
    passes in milliseconds.
    """

    labels: Any = None
    scores: Any = None
    done: int = 0
    compute: list[float] = field(default_factory=list)
    end_to_end: list[float] = field(default_factory=list)
    rows: list[StepTiming] = field(default_factory=list)
    tracer: CpuTracer | GpuTracer | None = None
    limits: Ceilings | None = None
    interrupted: bool = False


def infer(request: Request, progress: Progress | None = None) -> Outcome:
    """Classify the data set as the request says; `progress` is told how many images have passed.

    Ctrl-C ends it with what there is, as soon as one image is classified; before that, and when it
    comes a second time, KeyboardInterrupt is raised. LenetError for bad input, before anything is
    computed.
    """
    request.check()
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
    job = _Job(request, gpu, plan, weights, dataset, clock, Tally(len(dataset), progress))
    if gpu is not None:
        _wake(job, gpu)
    ran = _Ran()
    name = gpu.name if gpu else cpu_name()
    try:
        if gpu is None:
            _run_cpu(job, ran)
        else:
            _run_gpu(job, gpu, ran)
        if request.roofline:
            ran.limits = ceilings(device, name)
            if above(stage_rows(ran.rows, len(dataset), ran.limits)):
                ran.limits = confirmed(device, ran.limits)
    except KeyboardInterrupt:
        if not ran.done:
            raise
        ran.interrupted = True
        if request.roofline and ran.limits is None:
            ran.limits = known(device, name)
    return _outcome(job, ran, why)


def _outcome(job: _Job, ran: _Ran, why: str) -> Outcome:
    """Times of the warm passes, or of the first where there was no other."""
    first, n = [job.clock.phases["first"]], ran.done
    whole = ran.end_to_end if job.gpu is not None else ran.compute
    return Outcome(
        request=job.request,
        dataset=job.dataset.head(n),
        weights=job.weights,
        plan=job.plan,
        gpu=job.gpu,
        why_device=why,
        labels=ran.labels[:n],
        scores=None if ran.scores is None else ran.scores[:n],
        compute=summarise(ran.compute if job.gpu is not None else ran.compute or first),
        end_to_end=summarise(whole or first),
        phases=job.clock.phases,
        rows=ran.rows,
        limits=ran.limits,
        trace=[] if ran.tracer is None else ran.tracer.events(),
        asked=len(job.dataset),
        interrupted=ran.interrupted,
        cold=not whole,
    )


def _wake(job: _Job, gpu: Gpu) -> None:
    """Make `gpu` current, and let plan `auto` choose on it."""
    with job.clock.phase("import"):
        import cupy  # noqa: F401
    with job.clock.phase("context"):
        gpu_device.activate(gpu)
    if job.request.plan == AUTO and not job.request.overrides:
        with job.clock.phase("choose"):
            job.plan = choose(gpu, job.plan.precision, job.batch, job.weights, job.dtype)


def _run_cpu(job: _Job, ran: _Ran) -> None:
    import numpy as np

    request, clock, tally = job.request, job.clock, job.tally
    with clock.phase("import"):
        import numba  # noqa: F401
    images, batch = job.dataset.images, job.batch
    with clock.phase("compile"):
        pipeline = job.pipeline(batch, request.chunk)
        pipeline.run(images[:1])
    ran.labels = np.empty(len(images), np.int32)
    ran.scores = np.empty((len(images), CLASSES), np.float32) if request.scores else None
    repeats = _PROFILE_REPEATS["cpu"]
    later = (repeats + 1) * request.timing + request.trace
    least = _CPU_LEAST_TIMED if request.timing else _CPU_LEAST
    tally.expect(1 + least + later)
    first_s = _classify_cpu(job, pipeline, ran) / 1e3
    if first_s > _WARM_BELOW_S and not request.timing:
        least = 0
    budget_s = max(0.0, _CPU_BUDGET_S - first_s)
    tally.expect(expected(first_s, budget_s, least) + later)

    def compute() -> float:
        took = time_compute(pipeline, images)
        tally.passed()
        return took

    repeat(compute, budget_s, least, samples=ran.compute)
    tally.expect(later)
    if request.timing:
        profile(pipeline, images, repeats, ran.rows, tally.passed)
    if request.trace:
        ran.tracer = tracer = CpuTracer()
        tracer.mark(0, None)
        for lo in range(0, len(images), batch):
            pipeline.run(images[lo : lo + batch], lambda step, _: tracer.mark(0, step.name))
            tally.passed(len(images[lo : lo + batch]))


def _classify_cpu(job: _Job, pipeline: Pipeline, ran: _Ran) -> float:
    """The first pass: labels and scores into `ran`, and its milliseconds.

    What was through when something raises is kept.
    """
    images, last, through = job.dataset.images, pipeline.steps[-1], 0
    start = _clock()

    def passed(step: Any, output: Any) -> None:
        nonlocal through
        if step is last:
            job.clock.phases["first"] = (_clock() - start) * 1e3
            through += len(output)
            job.tally.passed(len(output))

    for lo in range(0, len(images), pipeline.batch):
        try:
            pipeline.run(images[lo : lo + pipeline.batch], passed)
        finally:
            ran.labels[lo:through] = pipeline.labels[: through - lo]
            if ran.scores is not None:
                ran.scores[lo:through] = pipeline.scores(through - lo)
            ran.done = through
    return job.clock.phases["first"]


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


def _run_gpu(job: _Job, gpu: Gpu, ran: _Ran) -> None:
    request, clock, batch, tally = job.request, job.clock, job.batch, job.tally
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
        labels, ran.scores = host_results(len(images), request.scores)
    _classify_gpu(job, streamer, images, labels, ran)
    with clock.phase("copy"):
        resident = cupy.empty((len(images), *IMAGE_SHAPE), job.dtype)
        resident.set(images)

    def compute() -> float:
        took = time_compute(pipeline, resident)
        tally.passed()
        return took

    def end_to_end() -> float:
        start = _clock()
        streamer.run(images, labels)
        took = (_clock() - start) * 1e3
        tally.passed()
        return took

    compute()
    repeat(compute, _GPU_BUDGET_S, _GPU_LEAST, samples=ran.compute)
    repeat(end_to_end, _GPU_BUDGET_S, _GPU_LEAST, samples=ran.end_to_end)
    later = _later_on_gpu(request)
    tally.expect(later)
    if request.timing:
        profile(pipeline, resident, _PROFILE_REPEATS["cuda"], ran.rows, tally.passed)
        watch_steps(ran.rows, pipeline, resident, gpu)
    if request.trace:
        ran.tracer = tracer = GpuTracer()
        streamer.run(images, labels, on_chunk=tally.passed, mark=tracer.mark)


def _later_on_gpu(request: Request) -> int:
    """Passes after those that are repeated: of the stages, and the traced one."""
    return (_PROFILE_REPEATS["cuda"] + 1) * request.timing + request.trace


def _classify_gpu(job: _Job, streamer: Streamer, images: Any, labels: Any, ran: _Ran) -> None:
    """The first pass: a copy of the labels into `ran`, which later passes do not write."""
    later = _later_on_gpu(job.request)
    job.tally.expect(2 + 2 * _GPU_LEAST + later)
    start = _clock()
    try:
        with job.clock.phase("first"):
            streamer.run(images, labels, ran.scores, job.tally.passed)
    finally:
        ran.labels, ran.done = labels.copy(), streamer.done
    again = expected(_clock() - start, _GPU_BUDGET_S, _GPU_LEAST)
    job.tally.expect(1 + 2 * again + later)
