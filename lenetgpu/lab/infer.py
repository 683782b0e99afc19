"""The main job: images in, labels and an account of the time out, each image once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.cpu.threads import cpu_name, set_threads
from lenetgpu.files import assets
from lenetgpu.files.early import read_early
from lenetgpu.files.output import LabelWriter, open_labels
from lenetgpu.files.source import MemorySource, Source, open_source
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab.console import Tally
from lenetgpu.lab.mistakes import Noting
from lenetgpu.measure.outcome import FEW, Outcome, Progress, Request
from lenetgpu.measure.timing import (
    MOST,
    StepTiming,
    cpu_ms,
    expected,
    profile,
    repeat,
    summarise,
    time_compute,
)
from lenetgpu.net.engine import Engine
from lenetgpu.net.runners import CpuRunner, GpuRunner
from lenetgpu.network import IMAGE_SHAPE

if TYPE_CHECKING:
    from lenetgpu.measure.roofline import Ceilings
    from lenetgpu.measure.trace import CpuTracer, GpuTracer

_GPU_BUDGET_S, _CPU_BUDGET_S = 0.5, 2.0
_GPU_LEAST, _CPU_LEAST = 10, 5
_PROFILE_REPEATS = {"cuda": 20, "cpu": 5}
WHOLE_BYTES = 256 << 20
"""Images of up to so many bytes are read whole before they are computed, more of them meanwhile."""


@dataclass
class _Job:
    """What a run is given: its images and what runs them; the writer of labels where there is one.

    `images` (N, 28, 28, 1) in host memory, on a GPU page-locked; None where they are read from
    `source` while they are computed.
    """

    engine: Engine
    source: Source
    tally: Tally
    runner: CpuRunner | GpuRunner
    images: Any
    writer: LabelWriter | Noting | None = None

    @property
    def request(self) -> Request:
        return self.engine.request

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

    def pixels(self) -> Any:
        """The images (N, 28, 28, 1) as pixels in host memory."""
        import numpy as np

        held = isinstance(self.images, np.ndarray)
        return self.images if held else self.source.whole().images

    def run(self, labels: Any) -> None:
        """A pass over all images whose labels are for nobody."""
        if self.images is None:
            self.runner.run_source(self.source, lambda labels, scores: None)
        else:
            self.runner.run(self.images, labels)


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


def infer(
    request: Request,
    progress: Progress | None = None,
    output: Path | None = None,
    source: Source | None = None,
) -> Outcome:
    """Classify the data set as the request says; `progress` is told how many images have passed.

    The images are those of `source` where it is given. Labels, with scores where they are wanted,
    go to `output` where there is one, as they come. Ctrl-C ends it with what there is, once one
    image is classified; before that, and when it comes again, KeyboardInterrupt is raised, nothing
    written. LenetError for bad input, before anything is computed but what only large files show.
    """
    engine = Engine(request)
    set_threads(request.threads)
    with ExitStack() as stack:
        with engine.phases.timed("load"):
            if source is None:
                data = request.data or assets.default_digits()
                source = read_early(open_source(data, request.skip, request.limit))
            stack.enter_context(source)
        request.check_labels(source.labels, source.source)
        if request.each and len(source) <= FEW:
            engine.request = replace(request, scores=True)
        engine.start(source.dtype, len(source))
        job = _job(engine, source, progress)
        if not gc.isenabled():  # see __main__.py
            gc.freeze()
            gc.enable()
        writer = None
        if output is not None:
            writer = open_labels(output, len(source), request.scores, request.skip)
            stack.enter_context(writer)
        job.writer = Noting(source, writer) if request.mistakes else writer
        ran = _ran(job)
        _write(job, ran)
        return _outcome(job, ran)


def _job(engine: Engine, source: Source, progress: Progress | None) -> _Job:
    """Everything made ready, and what is read before it is computed read."""
    request = engine.request
    runner = engine.runner(source.dtype, len(source), request.scored)
    runner.first = source.chosen.start
    size, images = len(source) * prod(IMAGE_SHAPE) * (1 if source.dtype == "uint8" else 4), None
    if isinstance(source, MemorySource) or size <= WHOLE_BYTES or request.timing or request.trace:
        with engine.phases.timed("load"):
            images = runner.whole(source)
    return _Job(engine, source, Tally(len(source), progress), runner, images)


def _ran(job: _Job) -> _Ran:
    """All passes, or what there is of them when Ctrl-C ended them."""
    ran, gpu, request = _Ran(), job.engine.gpu, job.request
    name, device = gpu.name if gpu else cpu_name(), job.engine.device
    try:
        if gpu is None:
            _run_cpu(job, ran)
        else:
            _run_gpu(job, gpu, ran)
        if request.roofline:
            from lenetgpu.measure.document import stage_rows
            from lenetgpu.measure.roofline import above, ceilings, confirmed

            ran.limits = ceilings(device, name)
            if above(stage_rows(ran.rows, len(job.source), ran.limits)):
                ran.limits = confirmed(device, ran.limits)
    except KeyboardInterrupt:
        if not ran.done:
            raise
        ran.interrupted = True
        if request.roofline and ran.limits is None:
            from lenetgpu.measure.roofline import known

            ran.limits = known(device, name)
    return ran


def _outcome(job: _Job, ran: _Ran) -> Outcome:
    """Times of the repeated passes, or of the one that labelled where there was no other.

    On a GPU that one has no compute time of its own: its copies lie under its kernels.
    """
    engine, n, feed = job.engine, ran.done, job.engine.feed(job.source.dtype)
    on_cpu, first = engine.gpu is None, [engine.phases["first"]]
    compute = ran.compute or (first if on_cpu and job.images is not None else [])
    whole = ran.compute if on_cpu and job.images is not None else ran.end_to_end
    truth = job.source.labels
    return Outcome(
        request=job.request,
        data=job.source.source,
        truth=None if truth is None else truth[:n],
        weights=engine.weights,
        plan=engine.plan,
        gpu=engine.gpu,
        why_device=engine.why,
        labels=ran.labels[:n],
        scores=ran.scores[:n] if job.request.scores and ran.scores is not None else None,
        compute=summarise(compute),
        end_to_end=summarise(whole or first),
        phases=engine.phases,
        rows=ran.rows,
        limits=ran.limits,
        trace=[] if ran.tracer is None else ran.tracer.events(),
        asked=len(job.source),
        interrupted=ran.interrupted,
        repeated=bool(whole),
        streams=feed.streams,
        chunk=job.runner.chunk,
        zero_copy=feed.zero_copy,
        model=feed.model,
        streamed=job.images is None,
        notes=[*engine.notes, *job.runner.notes],
        images=job.pixels() if job.request.each and len(job.source) <= FEW else None,
        mistakes=job.writer.found(n) if isinstance(job.writer, Noting) else None,
    )


def _classify(job: _Job, ran: _Ran) -> float:
    """The pass that labels, its results into `ran`: its seconds. What is done stays there.

    Images that are read meanwhile have labels written meanwhile; their scores go nowhere else.
    """
    scored, phases = job.request.scored and job.images is not None, job.engine.phases
    ran.labels, ran.scores = job.runner.results(len(job.source), scored)

    def deliver(labels: Any, scores: Any) -> None:
        ran.labels[ran.done : ran.done + len(labels)] = labels
        try:
            if job.writer is not None:
                job.writer.write(labels, scores if job.writer.with_scores else None)
            ran.done += len(labels)
        finally:  # Ctrl-C: what is in the file is done
            ran.done = max(ran.done, 0 if job.writer is None else job.writer.done)

    with phases.timed("first"):
        if job.images is None:
            job.runner.run_source(job.source, deliver, job.tally.passed)
        else:
            try:
                job.runner.run(job.images, ran.labels, ran.scores, job.tally.passed)
            finally:
                ran.done = job.runner.done
    return phases["first"] / 1e3


def _write(job: _Job, ran: _Ran) -> None:
    """The labels that were not written meanwhile, and the file to its place."""
    if job.writer is None:
        return
    left, wanted = slice(job.writer.done, ran.done), job.writer.with_scores
    if left.start < left.stop:
        job.writer.write(ran.labels[left], ran.scores[left] if wanted else None)
    job.writer.close(len(job.source) if ran.interrupted else None)


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
    pipeline, spare = job.runner.pipeline, np.empty(len(job.source), np.int32)
    _, least, _ = job.passes(0.0, 0.0, _CPU_LEAST)
    job.tally.expect(1 + least + job.later)
    first_s = _classify(job, ran)
    budget_s, least, most = job.passes(first_s, _CPU_BUDGET_S, _CPU_LEAST)
    if most:
        job.tally.expect(expected(first_s, budget_s, least, most) + job.later)
    if job.images is None:
        whole = _sampled(job, lambda: cpu_ms(lambda: job.run(spare)))
        repeat(whole, budget_s, least, most, ran.end_to_end)
        return
    compute = _sampled(job, lambda: time_compute(pipeline, job.images))
    repeat(compute, budget_s, least, most, ran.compute)
    job.tally.expect(job.later)
    if job.request.timing:
        profile(pipeline, job.images, _PROFILE_REPEATS["cpu"], ran.rows, job.tally.passed)
    if job.request.trace:
        from lenetgpu.measure.trace import CpuTracer

        ran.tracer = tracer = CpuTracer()
        job.runner.run(job.images, spare, on_chunk=job.tally.passed, mark=tracer.mark)


def _run_gpu(job: _Job, gpu: Gpu, ran: _Ran) -> None:
    _, least, _ = job.passes(0.0, 0.0, _GPU_LEAST)
    resident = job.images is not None
    kinds, warm = 1 + resident, 1 if least and resident else 0
    job.tally.expect(1 + warm + kinds * least + job.later)
    first_s = _classify(job, ran)
    budget_s, least, most = job.passes(0.0, _GPU_BUDGET_S, _GPU_LEAST)
    spare, _ = job.runner.results(len(job.source), False)  # later passes do not write the labels
    if most:
        again = expected(first_s, budget_s, least, most)
        job.tally.expect(warm + kinds * again + job.later)
        if resident:
            _compute_on_gpu(job, gpu, ran, (budget_s, least, most))
        whole = _sampled(job, lambda: cpu_ms(lambda: job.run(spare)))
        repeat(whole, budget_s, least, most, ran.end_to_end)
        job.tally.expect(job.request.trace)
    if job.request.trace:
        from lenetgpu.measure.trace import GpuTracer

        ran.tracer = tracer = GpuTracer()
        job.runner.run(job.images, spare, on_chunk=job.tally.passed, mark=tracer.mark)


def _compute_on_gpu(job: _Job, gpu: Gpu, ran: _Ran, passes: tuple[float, int, int]) -> None:
    """Passes from images on the GPU to labels there, and where asked stage by stage."""
    import cupy

    engine, n = job.engine, len(job.source)
    with engine.phases.timed("copy"):
        pipeline = engine.whole_pipeline(job.source.dtype, n)
        resident = cupy.empty((n, *IMAGE_SHAPE), job.source.dtype)
        resident.set(job.pixels())
    compute = _sampled(job, lambda: time_compute(pipeline, resident))
    compute()
    repeat(compute, *passes, ran.compute)
    if job.request.timing:
        from lenetgpu.measure.power import watch_steps

        repeats = _PROFILE_REPEATS["cuda"]
        profile(pipeline, resident, repeats, ran.rows, job.tally.passed)
        watch_steps(ran.rows, pipeline, resident, gpu)
