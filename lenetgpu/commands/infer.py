"""The main job: images in, labels and an account of the time out, each image once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lenetgpu.cpu.threads import cpu_name
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import Dataset, load_dataset
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.document import stage_rows
from lenetgpu.measure.outcome import Outcome, Progress, Request
from lenetgpu.measure.power import watch_steps
from lenetgpu.measure.roofline import Ceilings, above, ceilings, confirmed, known
from lenetgpu.measure.timing import (
    MOST,
    Phases,
    StepTiming,
    cpu_ms,
    expected,
    profile,
    repeat,
    summarise,
    time_compute,
)
from lenetgpu.measure.trace import CpuTracer, GpuTracer
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline
from lenetgpu.running.engine import Engine
from lenetgpu.running.runners import CpuRunner, GpuRunner
from lenetgpu.show.progress import Tally

_GPU_BUDGET_S, _CPU_BUDGET_S = 0.5, 2.0
_GPU_LEAST, _CPU_LEAST = 10, 5
_PROFILE_REPEATS = {"cuda": 20, "cpu": 5}


@dataclass
class _Job:
    """What a run is given: its images in host memory, on a GPU page-locked, and what runs them."""

    engine: Engine
    dataset: Dataset
    tally: Tally
    runner: CpuRunner | GpuRunner
    images: Any

    @property
    def request(self) -> Request:
        return self.engine.request

    @property
    def batch(self) -> int:
        return min(self.request.batch, len(self.dataset))

    @property
    def dtype(self) -> str:
        return str(self.dataset.images.dtype)

    @property
    def later(self) -> int:
        """Passes after those that are repeated: of the stages, and the traced one."""
        stages = (_PROFILE_REPEATS[self.engine.device] + 1) * self.request.timing
        return stages + self.request.trace

    def passes(self, pass_s: float, budget_s: float, least: int) -> tuple[float, int, int]:
        """(budget, least, most) of the passes that are repeated: as many as asked, or none.

        Stages take as many beside them as fit into `budget_s`, with the first pass in it.
        """
        asked = self.request.repeat
        if asked or not self.request.timing:
            return 0.0, asked, asked
        return max(0.0, budget_s - pass_s), least, MOST


@dataclass
class _Ran:
    """What there is of a run, filled as it goes, so that Ctrl-C leaves what was done.

    `labels` (N,) int32 and `scores` (N, 10), of which the first `done` are there; samples of
    repeated passes in milliseconds.
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
    phases = Phases()
    engine = Engine(request, phases)
    with phases.timed("load"):
        dataset = load_dataset(request.data or assets.default_digits()).head(request.limit)
    if request.min_accuracy is not None and dataset.labels is None:
        raise LenetError(f"--min-accuracy: expected labels in {dataset.source}, found none")
    dtype, batch = str(dataset.images.dtype), min(request.batch, len(dataset))
    engine.start(dtype, batch)
    runner = engine.runner(dtype, batch)
    with phases.timed("load"):
        images = runner.place(dataset.images)
    job = _Job(engine, dataset, Tally(len(dataset), progress), runner, images)
    ran, gpu = _Ran(), engine.gpu
    name = gpu.name if gpu else cpu_name()
    try:
        if gpu is None:
            _run_cpu(job, ran)
        else:
            _run_gpu(job, gpu, ran)
        if request.roofline:
            ran.limits = ceilings(engine.device, name)
            if above(stage_rows(ran.rows, len(dataset), ran.limits)):
                ran.limits = confirmed(engine.device, ran.limits)
    except KeyboardInterrupt:
        if not ran.done:
            raise
        ran.interrupted = True
        if request.roofline and ran.limits is None:
            ran.limits = known(engine.device, name)
    return _outcome(job, ran)


def _outcome(job: _Job, ran: _Ran) -> Outcome:
    """Times of the repeated passes, or of the one that labelled where there was no other.

    On a GPU that one has no compute time of its own: its copies lie under its kernels.
    """
    engine, n = job.engine, ran.done
    on_cpu, first = engine.gpu is None, [engine.phases["first"]]
    whole = ran.compute if on_cpu else ran.end_to_end
    truth = job.dataset.labels
    return Outcome(
        request=job.request,
        data=job.dataset.source,
        truth=None if truth is None else truth[:n],
        weights=engine.weights,
        plan=engine.plan,
        gpu=engine.gpu,
        why_device=engine.why,
        labels=ran.labels[:n],
        scores=None if ran.scores is None else ran.scores[:n],
        compute=summarise(ran.compute or (first if on_cpu else [])),
        end_to_end=summarise(whole or first),
        phases=engine.phases,
        rows=ran.rows,
        limits=ran.limits,
        trace=[] if ran.tracer is None else ran.tracer.events(),
        asked=len(job.dataset),
        interrupted=ran.interrupted,
        repeated=bool(whole),
    )


def _classify(job: _Job, labels: Any, ran: _Ran) -> float:
    """The pass that labels, its results into `ran`: its seconds. What is done stays there."""
    phases = job.engine.phases
    try:
        with phases.timed("first"):
            job.runner.run(job.images, labels, ran.scores, job.tally.passed)
    finally:
        ran.labels, ran.done = labels, job.runner.done
    return phases["first"] / 1e3


def _sampled(job: _Job, measure: Callable[[], float]) -> Callable[[], float]:
    """`measure`, which tells the tally that all images have passed once more."""

    def sample() -> float:
        took = measure()
        job.tally.passed()
        return took

    return sample


def _run_cpu(job: _Job, ran: _Ran) -> None:
    import numpy as np

    assert isinstance(job.runner, CpuRunner)
    n, pipeline = len(job.images), job.runner.pipeline
    ran.scores = np.empty((n, CLASSES), np.float32) if job.request.scores else None
    _, least, _ = job.passes(0.0, 0.0, _CPU_LEAST)
    job.tally.expect(1 + least + job.later)
    first_s = _classify(job, np.empty(n, np.int32), ran)
    budget_s, least, most = job.passes(first_s, _CPU_BUDGET_S, _CPU_LEAST)
    if most:
        job.tally.expect(expected(first_s, budget_s, least, most) + job.later)
    compute = _sampled(job, lambda: time_compute(pipeline, job.images))
    repeat(compute, budget_s, least, most, ran.compute)
    job.tally.expect(job.later)
    if job.request.timing:
        profile(pipeline, job.images, _PROFILE_REPEATS["cpu"], ran.rows, job.tally.passed)
    if job.request.trace:
        ran.tracer = tracer = CpuTracer()
        spare = np.empty(n, np.int32)
        job.runner.run(job.images, spare, on_chunk=job.tally.passed, mark=tracer.mark)


def _run_gpu(job: _Job, gpu: Gpu, ran: _Ran) -> None:
    from lenetgpu.streaming import host_results

    labels, ran.scores = host_results(len(job.images), job.request.scores)
    _, least, _ = job.passes(0.0, 0.0, _GPU_LEAST)
    warm = 1 if least else 0
    job.tally.expect(1 + warm + 2 * least + job.later)
    first_s = _classify(job, labels, ran)
    budget_s, least, most = job.passes(0.0, _GPU_BUDGET_S, _GPU_LEAST)
    spare, _ = host_results(len(job.images), False)  # later passes do not write the labels
    if most:
        again = expected(first_s, budget_s, least, most)
        job.tally.expect(warm + 2 * again + job.later)
        pipeline, resident = _on_the_gpu(job)
        compute = _sampled(job, lambda: time_compute(pipeline, resident))
        compute()
        repeat(compute, budget_s, least, most, ran.compute)
        whole = _sampled(job, lambda: cpu_ms(lambda: job.runner.run(job.images, spare)))
        repeat(whole, budget_s, least, most, ran.end_to_end)
        job.tally.expect(job.later)
        if job.request.timing:
            repeats = _PROFILE_REPEATS["cuda"]
            profile(pipeline, resident, repeats, ran.rows, job.tally.passed)
            watch_steps(ran.rows, pipeline, resident, gpu)
    if job.request.trace:
        ran.tracer = tracer = GpuTracer()
        job.runner.run(job.images, spare, on_chunk=job.tally.passed, mark=tracer.mark)


def _on_the_gpu(job: _Job) -> tuple[Pipeline, Any]:
    """A pipeline for passes of a batch, and the images in the GPU's memory."""
    import cupy

    with job.engine.phases.timed("copy"):
        pipeline = job.engine.pipeline(job.dtype, job.batch, job.engine.sizes(job.batch)[1])
        resident = cupy.empty((len(job.images), *IMAGE_SHAPE), job.dtype)
        resident.set(job.images)
    return pipeline, resident
