"""`lenetgpu infer`: classify every image once, and measure the time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.cpu.threads import cpu_name, set_threads
from lenetgpu.files import assets
from lenetgpu.files.output import LabelWriter
from lenetgpu.files.reading import MemorySource, Source
from lenetgpu.files.source import open_source, read_early
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab.console import Tally
from lenetgpu.lab.mistakes import MistakeRecorder
from lenetgpu.measure import timing
from lenetgpu.measure.outcome import FEW, Outcome, Progress, Request
from lenetgpu.net.engine import Engine
from lenetgpu.net.runners import CpuRunner
from lenetgpu.network import IMAGE_SHAPE

if TYPE_CHECKING:
    from lenetgpu.measure.roofline import Ceilings
    from lenetgpu.measure.trace import Tracer

_GPU_BUDGET_S, _CPU_BUDGET_S = 0.5, 2.0
_GPU_LEAST, _CPU_LEAST = 10, 5
_PROFILE_REPEATS = {"cuda": 20, "cpu": 5}
WHOLE_BYTES = 256 << 20  # images of up to this many bytes are read completely before the first pass


def infer(
    request: Request,
    progress: Progress | None = None,
    output: Path | None = None,
    source: Source | None = None,
) -> Outcome:
    """Classify the data set, or `source`; `progress(done, total)` counts images over all passes.

    Labels go to `output` as they become available, with scores if requested. After the first
    labelled image, Ctrl-C ends the run with a partial outcome; before that, or at a second
    Ctrl-C, KeyboardInterrupt is raised and nothing is written. Raises LenetError for bad input.
    """
    engine = Engine(request)
    set_threads(request.threads)
    with ExitStack() as stack:
        with engine.phases.timed("load"):
            if source is None:
                data = request.data or assets.default_digits()
                source = read_early(open_source(data, request.skip, request.limit))
                source = request.orientation.source(source)
            stack.enter_context(source)
        request.check_labels(source.labels, source.source)
        if request.each and len(source) <= FEW:
            engine.request = replace(request, scores=True)
        engine.start(source.dtype, len(source))
        run = _Run(engine, source, progress)
        if not gc.isenabled():  # see __main__.py
            gc.freeze()
            gc.enable()
        writer = None
        if output is not None:
            writer = LabelWriter(output, len(source), request.scores, request.skip)
            stack.enter_context(writer)
        run.writer = MistakeRecorder(source, writer) if request.mistakes else writer
        run.run()
        run.write()
        return run.outcome()


class _Run:
    """The state of a run, updated as it proceeds, so that Ctrl-C preserves finished work.

    `images` (N, 28, 28, 1) are in host memory, page-locked on a GPU; None if they are read
    during the computation. The first `done` entries of `labels` (N,) int32 and `scores` (N, 10)
    are valid. Samples of repeated passes are in milliseconds.
    """

    writer: LabelWriter | MistakeRecorder | None = None
    tracer: Tracer | None = None
    limits: Ceilings | None = None
    done, interrupted = 0, False

    def __init__(self, engine: Engine, source: Source, progress: Progress | None) -> None:
        self.engine, self.request, self.source = engine, engine.request, source
        self.compute: list[float] = []
        self.end_to_end: list[float] = []
        self.rows: list[timing.StepTiming] = []
        self.tally, request, count = Tally(len(source), progress), engine.request, len(source)
        self.runner = engine.runner(source.dtype, count, request.scored)
        self.runner.first = source.selection.start
        small = count * prod(IMAGE_SHAPE) * (1 if source.dtype == "uint8" else 4) <= WHOLE_BYTES
        in_memory = small or isinstance(source, MemorySource) or request.timing or request.trace
        self.images = None
        with engine.phases.timed("load"):
            self.labels, self.scores = self.runner.results(count, request.scored and in_memory)
            if in_memory:
                self.images = self.runner.whole(source, self.labels, self.scores)
        profiled = (_PROFILE_REPEATS[engine.device] + 1) * request.timing
        self._extra_passes = profiled + request.trace  # passes after the repeated ones

    def run(self) -> None:
        """Run all passes, or those before Ctrl-C."""
        gpu, request = self.engine.gpu, self.request
        name, device = gpu.name if gpu else cpu_name(), self.engine.device
        try:
            if gpu is None:
                self._on_cpu()
            else:
                self._on_gpu(gpu)
            if request.roofline:
                from lenetgpu.measure.document import stage_rows
                from lenetgpu.measure.roofline import above, ceilings, confirmed

                self.limits = ceilings(device, name)
                if above(stage_rows(self.rows, len(self.source), self.limits)):
                    self.limits = confirmed(device, self.limits)
        except KeyboardInterrupt:
            if not self.done:
                raise
            self.interrupted = True
            if request.roofline and self.limits is None:
                from lenetgpu.measure.roofline import known

                self.limits = known(device, name)

    def write(self) -> None:
        """Write the labels not yet written, and move the file into place."""
        if self.writer is None:
            return
        left, wanted = slice(self.writer.done, self.done), self.writer.with_scores
        if left.start < left.stop:
            self.writer.write(self.labels[left], self.scores[left] if wanted else None)
        self.writer.close(len(self.source) if self.interrupted else None)

    def outcome(self) -> Outcome:
        """Return the outcome; its times are of the repeated passes, or of the labelling pass."""
        engine, request, n = self.engine, self.request, self.done
        schedule, truth = engine.schedule(self.source.dtype), self.source.labels
        resident, first = engine.gpu is None and self.images is not None, [engine.phases["first"]]
        whole = self.compute if resident else self.end_to_end
        few = request.each and len(self.source) <= FEW
        return Outcome(
            request=request,
            data=self.source.source,
            truth=None if truth is None else truth[:n],
            weights=engine.weights,
            plan=engine.plan,
            gpu=engine.gpu,
            why_device=engine.why,
            labels=self.labels[:n],
            scores=self.scores[:n] if request.scores and self.scores is not None else None,
            compute=timing.summarise(self.compute or (first if resident else [])),
            end_to_end=timing.summarise(whole or first),
            phases=engine.phases,
            rows=self.rows,
            limits=self.limits,
            trace=[] if self.tracer is None else self.tracer.events(),
            requested=len(self.source),
            interrupted=self.interrupted,
            repeated=bool(whole),
            streams=schedule.streams,
            chunk=self.runner.chunk,
            zero_copy=schedule.zero_copy,
            model=schedule.model,
            streamed=self.images is None,
            notes=[*engine.notes, *self.runner.notes, *self._looks()],
            images=self._pixels() if few else None,
            mistakes=self.writer.found(n) if isinstance(self.writer, MistakeRecorder) else None,
        )

    def _looks(self) -> list[str]:
        """Return notes on the images' orientation, unless most labels are right."""
        truth = self.source.labels
        right = truth is not None and (self.labels[: self.done] == truth[: self.done]).mean() > 0.5
        return [] if right else self.request.orientation.notes(self.source)

    def _classify(self) -> float:
        """Run the labelling pass and return its seconds; finished labels survive Ctrl-C."""
        phases = self.engine.phases
        with phases.timed("first"):
            if self.images is None:
                self.runner.run_source(self.source, self._deliver, self.tally.passed)
            else:
                try:
                    self.runner.run(self.images, self.labels, self.scores, self.tally.passed)
                finally:
                    self.done = self.runner.done
        return phases["first"] / 1e3

    def _deliver(self, labels: Any, scores: Any) -> None:
        self.labels[self.done : self.done + len(labels)] = labels
        try:
            if self.writer is not None:
                self.writer.write(labels, scores if self.writer.with_scores else None)
            self.done += len(labels)
        finally:  # Ctrl-C: labels in the file count as done
            self.done = max(self.done, 0 if self.writer is None else self.writer.done)

    def _pixels(self) -> Any:
        import numpy as np

        in_memory = isinstance(self.images, np.ndarray)
        return self.images if in_memory else self.source.whole().images

    def _passes(self, pass_s: float, budget_s: float, least: int) -> tuple[float, int, int]:
        """Return (budget in seconds, first pass included, least, most) of the repeated passes."""
        requested = self.request.repeat
        if requested or not self.request.timing:
            return 0.0, requested, requested
        return max(0.0, budget_s - pass_s), least, timing.MOST

    def _sampled(self, measure: Callable[[], float]) -> Callable[[], float]:

        def sample() -> float:
            took = measure()
            self.tally.passed()
            return took

        return sample

    def _again(self, spare: Any) -> Callable[[], float]:
        """Return a timed pass over all images that discards its labels."""

        def run() -> None:
            if self.images is None:
                self.runner.run_source(self.source, lambda labels, scores: None)
            else:
                self.runner.run(self.images, spare)

        return self._sampled(lambda: timing.cpu_ms(run))

    def _trace(self, on_gpu: bool, spare: Any) -> None:
        from lenetgpu.measure.trace import Tracer

        self.tracer = Tracer(on_gpu)
        self.runner.run(self.images, spare, on_chunk=self.tally.passed, mark=self.tracer.mark)

    def _on_cpu(self) -> None:
        import numpy as np

        assert isinstance(self.runner, CpuRunner)
        pipeline, spare = self.runner.pipeline, np.empty(len(self.source), np.int32)
        self.tally.expect(1 + self._passes(0.0, 0.0, _CPU_LEAST)[1] + self._extra_passes)
        first_s = self._classify()
        budget_s, least, most = self._passes(first_s, _CPU_BUDGET_S, _CPU_LEAST)
        if most:
            self.tally.expect(timing.expected(first_s, budget_s, least, most) + self._extra_passes)
        if self.images is None:
            timing.repeat(self._again(spare), budget_s, least, most, self.end_to_end)
            return
        compute = self._sampled(lambda: timing.time_compute(pipeline, self.images))
        timing.repeat(compute, budget_s, least, most, self.compute)
        self.tally.expect(self._extra_passes)
        if self.request.timing:
            repeats = _PROFILE_REPEATS["cpu"]
            timing.profile(pipeline, self.images, repeats, self.rows, self.tally.passed)
        if self.request.trace:
            self._trace(False, spare)

    def _on_gpu(self, gpu: Gpu) -> None:
        resident = self.images is not None
        budget_s, least, most = self._passes(0.0, _GPU_BUDGET_S, _GPU_LEAST)
        kinds, warm = 1 + resident, 1 if least and resident else 0
        self.tally.expect(1 + warm + kinds * least + self._extra_passes)
        first_s = self._classify()
        spare, self.labels = self.labels, self.labels.copy()  # later passes write no results
        if most:
            again = timing.expected(first_s, budget_s, least, most)
            self.tally.expect(warm + kinds * again + self._extra_passes)
            if resident:
                self._compute_on_gpu(gpu, (budget_s, least, most))
            timing.repeat(self._again(spare), budget_s, least, most, self.end_to_end)
            self.tally.expect(self.request.trace)
        if self.request.trace:
            self._trace(True, spare)

    def _compute_on_gpu(self, gpu: Gpu, passes: tuple[float, int, int]) -> None:
        """Time passes from images on the GPU to labels on it and, if requested, each stage."""
        import cupy

        engine, n = self.engine, len(self.source)
        with engine.phases.timed("copy"):
            pipeline = engine.whole_pipeline(self.source.dtype, n)
            resident = cupy.empty((n, *IMAGE_SHAPE), self.source.dtype)
            resident.set(self._pixels())
        compute = self._sampled(lambda: timing.time_compute(pipeline, resident))
        compute()
        timing.repeat(compute, *passes, self.compute)
        if self.request.timing:
            from lenetgpu.measure.power import watch_steps

            repeats = _PROFILE_REPEATS["cuda"]
            timing.profile(pipeline, resident, repeats, self.rows, self.tally.passed)
            watch_steps(self.rows, pipeline, resident, gpu)
