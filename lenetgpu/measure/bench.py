"""Benchmark candidates: a variant on its stage, or a whole plan.

Each candidate is built, checked against the float64 reference output, and then sampled on request.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check import judge as checks
from lenetgpu.check.judge import Checked, Verdict, check_variant, judge, same_bytes
from lenetgpu.check.reference import Reference, random_input, reference
from lenetgpu.check.timed_calls import Images, TimedCalls
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.launch import Launch, record
from lenetgpu.measure.timing import SAMPLE_MS, Replays, cpu_ms, gpu_ms, time_compute
from lenetgpu.network import SPANS, STAGE_NAMES, STAGES, Span, Stage
from lenetgpu.pipeline import CPU_CHUNK, Pipeline
from lenetgpu.stages import Variant
from lenetgpu.stages.prepared import PreparedKernel, array_module

_RANDOM_IMAGES = 33
_FLUSH_BYTES = 256 << 20
# Seconds. A CPU pass above _SLOW_S (a plan's above _SLOW_PLAN_S) is sampled on fewer images, for
# about _SAMPLE_S.
_SLOW_S, _SLOW_PLAN_S, _SAMPLE_S = 1.0, 3.0, 1.0
_MAX_LAUNCHES = 64
# Calls after the rounds, each on new images; True if the output is poisoned first, which would
# hide that a variant leaves the previous output.
FURTHER = (False, False, False, True)

Call = tuple[Any, Any, int]  # input, output, and the number of the first image
Flush = Callable[[], Any]


class Skip(Exception):  # noqa: N818
    """Exception that leaves a candidate out; its text is the reason."""


def flusher() -> Flush:
    """Return a function that queues a write of more memory than the L2 cache holds."""
    return partial(cupy.empty(_FLUSH_BYTES, cupy.uint8).fill, 1)


class Bench(ABC):
    """A candidate's work, checked and then sampled."""

    problem: Any = None  # None for a whole plan
    once = False  # the time budget allows only one sample
    passes = 1  # of `scaled_from` images in a sample
    method = note = ""  # of sampling
    _flush: Flush | None = None
    _checked: Checked | None = None

    def __init__(self, images: int) -> None:
        self.images = self.scaled_from = images
        self.launched: list[Launch] = []  # by one pass

    def use_cold_cache(self, flush: Flush) -> None:
        """Call `flush` before every timed call; whole plans ignore it."""
        self._flush = flush

    @abstractmethod
    def check(self) -> Checked:
        """Compare with the float64 reference output."""

    @abstractmethod
    def sample(self) -> float:
        """Return one time in milliseconds for all images."""

    @abstractmethod
    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Return work that takes about `milliseconds` without a pause, and its passes."""

    @abstractmethod
    def recheck(self) -> Checked:
        """Check again after sampling: outputs, claimed times and memory around the buffers."""


def stage_of(name: str) -> Stage | Span:
    """Return the stage called `name`, or the span, written with +."""
    units: tuple[Stage | Span, ...] = (*STAGES, *SPANS)
    return next(unit for unit in units if unit.name == name)


def input_of(name: str, images: Any, stages: dict[str, Any], problem: Any) -> Any:
    """Return the float32 NHWC input of stage or span `name`, from `images` or float64 `stages`."""
    at = STAGE_NAMES.index(name.partition("+")[0])
    if at == 0:
        return images.astype(np.float32) / np.float32(255 if images.dtype == np.uint8 else 1)
    x = stages[STAGE_NAMES[at - 1]].astype(np.float32)
    return x.reshape(len(x), *problem.in_shape)


def _scaled_from(work: Callable[[int], Any], images: int, slow_s: float) -> int:
    """Return the images of a CPU sample: all, or fewer if `work` is too slow on the first ones."""
    few = min(CPU_CHUNK, images)
    work(few)
    seconds = cpu_ms(partial(work, few)) / 1e3
    if seconds * images / few <= slow_s:
        return images
    return max(few, int(few * _SAMPLE_S / seconds) // few * few)


class FedBench(Bench):
    """Input and output buffers of a variant's timed calls, and checks of their contents."""

    def _begin(self, prepared: PreparedKernel, timed: TimedCalls, weights: Sequence[Any]) -> None:
        self._prepared, self._timed = prepared, timed
        self._weight_copies = [(array, array.copy()) for array in weights]
        self._violation = ""

    def _settle_stream(self) -> None:
        """Wait for the current stream; a graph runs on a stream of its own."""
        if self._prepared.on_gpu:
            self._prepared.arrays.cuda.get_current_stream().synchronize()

    def _judge_run(self, run: Callable[[], Any], call: Call, poisoned: bool) -> Verdict:
        """Judge the output of `run`, whose last call is `call`; on a CPU also after a pause."""
        if poisoned:
            self._prepared.poison(self._timed.y)
        self._settle_stream()
        run()
        early = None if self._prepared.on_gpu else self._timed.y.copy()
        verdict = self._timed.judged(call, self._prepared.variant.precision)
        if early is not None:
            checks.settle(self._prepared)
            if not same_bytes(early, self._timed.y):
                self._report("writes its output after it has returned")
        return self._ruled(verdict)

    def _judge_runs(self, runs: Iterable[tuple[Callable[[], Any], Call, bool]]) -> Verdict:
        """Return the first failed verdict of `_judge_run`, each on new images, or the last one."""
        for run, call, poisoned in runs:
            self._timed.images.renew(self._timed.chunk)
            verdict = self._judge_run(run, call, poisoned)
            if not verdict.passed:
                off = verdict.note or f", error {verdict.error:.1e}"
                self._report(f"leaves a wrong output after its samples{off}")
                break
        return self._ruled(verdict)

    def answer(self, x: Any, slots: Any) -> Any:
        """Return NHWC outputs of `slots` (host array) of timed calls on host images `x`, cycled."""
        self._timed.images.load(self._prepared.input(x))
        found = []
        for call in self._timed.calls:
            _, y, first = call
            inside = slots[(slots >= first) & (slots < first + len(y))] - first
            if len(inside):
                self._call(call)
                found.append(self._prepared.found(y[self._prepared.arrays.asarray(inside)]))
        return np.concatenate(found)

    def _call(self, call: Call) -> None:
        raise NotImplementedError

    def output(self, x: Any) -> Any:
        """Return a host copy (NHWC) of the output of one run on host images `x`, poisoned first."""
        y = self._timed.y[: len(x)]
        self._prepared.poison(y)
        self._prepared.run(self._prepared.input(x), y)
        return self._prepared.found(y)

    def _report(self, violation: str) -> None:
        self._violation = self._violation or violation

    def _ruled(self, verdict: Verdict) -> Verdict:
        """Return `verdict`, failed if the variant broke a rule; restore its weights and input."""
        for weights, copy in self._weight_copies:
            if not same_bytes(weights, copy):
                weights[...] = copy
                self._report("changes its weights")
        if self._prepared.wrote_outside():
            self._report("writes outside its output")
        if not self._timed.images.intact:
            self._timed.images.restore()
            self._report("changes its input")
        note = f", {self._violation}"
        return replace(verdict, passed=False, note=note) if self._violation else verdict


class StageBench(FedBench):
    """One variant on one stage (or span), on `n` real activations from the float64 chain."""

    def __init__(
        self,
        variant: Variant,
        unit: Stage | Span,
        n: int,
        facts: Reference,
        layouts: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(n)
        self.variant, self.unit, self._reference = variant, unit, facts
        self._last_stage = unit.name.split("+")[-1]
        if layouts is None:
            self.problem = variant.laid_out(unit.problem)
            if isinstance(self.problem, str):
                raise ValueError(f"{variant.full_name} refuses {unit.problem}: {self.problem}")
        else:
            self.problem = replace(unit.problem, reads=layouts[0], writes=layouts[1])
        self._gpu = variant.needs.device == "cuda"
        weights = [facts.weights[name] for name in unit.weights]
        x = input_of(unit.name, facts.images, facts.stages, self.problem)
        self._few = np.ascontiguousarray(x)
        chunk = n if self._gpu else min(n, CPU_CHUNK)
        prepared = PreparedKernel(variant, self.problem, weights, chunk)
        self._weight = next(iter(weights), None)
        self._expected = reference(variant.kind, self._few, self._weight, self.problem)
        images = Images(prepared.input(self._few), n)
        timed = TimedCalls(images, n, prepared.output(chunk), self.problem, chunk, self._expected)
        self._begin(prepared, timed, weights)
        self._launch_ms, self._probed = 1.0, False

    @property
    def input(self) -> Any:
        """Activations that the variant reads, on its device, in its layout."""
        return self._timed.images.array

    def check(self) -> Checked:
        """Check on fresh random input, then on real activations, followed to labels in float64."""
        kind, problem = self.variant.kind, self.problem
        x, w = random_input(kind, problem, _RANDOM_IMAGES, np.random.default_rng())
        verdict = check_variant(self.variant, problem, x, w, reference(kind, x, w, problem))
        if verdict.passed:
            verdict = check_variant(self.variant, problem, self._few, self._weight, self._expected)
        found = self._output()
        if verdict.passed:
            verdict = judge(found, self._expected[: len(found)], self.variant.precision)
        verdict = self._ruled(verdict)
        labels = found  # that float64 computes from these outputs
        for stage in STAGES[STAGE_NAMES.index(self._last_stage) + 1 :]:
            w = None if stage.weight is None else self._reference.weights[stage.weight]
            x = labels.reshape(len(found), *stage.problem.in_shape)
            labels = reference(stage.kind, x, w, stage.problem)
        flips = int((labels != self._reference.labels[: len(found)]).sum())
        largest = checks.largest_difference(found, self._expected[: len(found)])
        bad = None if verdict.passed else self._last_stage
        self._checked = Checked(verdict, largest, flips, len(found), bad)
        return self._checked

    def recheck(self) -> Checked:
        """Judge the outputs of further calls like the timed ones, each on other images."""
        assert self._checked is not None, "checked first"
        calls = self._timed.calls
        twice = [calls[turn // 2 % len(calls)] for turn in range(len(FURTHER))]
        further = zip(twice, FURTHER, strict=True)
        runs = [(partial(self._call, call), call, poisoned) for call, poisoned in further]
        sampled = calls[-(-self.scaled_from // self._timed.chunk) - 1]
        verdict = self._judge_runs([*runs, (self.sample, sampled, False)])
        bad = None if verdict.passed else self._last_stage
        return replace(self._checked, verdict=verdict, first_bad=bad)

    def _call(self, call: Call) -> None:
        self._prepared.run(call[0], call[1])

    def _output(self) -> Any:
        """Return outputs, computed as timed, of the check's activations or of the first ones."""
        parts, n = [], min(len(self._few), self.images)
        for x, y, first in self._timed.calls:
            if first < n:
                self._prepared.poison(y)
                self._prepared.run(x, y)
                parts.append(self._prepared.found(y[: n - first]))
        return np.concatenate(parts)

    def sample(self) -> float:
        """Return milliseconds for all images; on a CPU, slow variants take fewer and are scaled."""
        if not self._probed:
            self._probed = True
            self._probe()
        if not self._gpu:
            return cpu_ms(partial(self._chunks, self.scaled_from)) * self.images / self.scaled_from
        if self._flush is not None:
            self._flush()
        self._settle_stream()
        return gpu_ms(self._launch, self.passes) / self.passes

    def _probe(self) -> None:
        """Choose the launches per sample (GPU) or the images per sample (CPU) from first calls."""
        if not self._gpu:
            self.scaled_from = _scaled_from(self._chunks, self.images, _SLOW_S)
            return
        with record() as self.launched:
            self._launch()
        self._launch_ms = gpu_ms(self._launch)
        if self._flush is None:
            self.passes = max(1, min(_MAX_LAUNCHES, int(SAMPLE_MS / max(self._launch_ms, 1e-4))))

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Return back-to-back launches on a GPU, and their number; on a CPU, one sample."""
        if not self._gpu:
            return self.sample, 1
        times = max(1, round(milliseconds / max(self._launch_ms, 1e-3)))
        return partial(gpu_ms, self._launch, times), times

    def _launch(self) -> None:
        self._call(self._timed.calls[0])

    def run(self, times: int) -> int:
        """Make `times` passes without a clock, wait for them, and return `times`."""
        for _ in range(times):
            if self._gpu:
                self._launch()
            else:
                self._chunks(self.scaled_from)
        self._settle_stream()
        return times

    def _chunks(self, n: int) -> None:
        for call in self._timed.calls[: -(-n // self._timed.chunk)]:
            self._call(call)


class PlanBench(Bench):
    """A pipeline, from images on its device to labels; on a GPU as a CUDA graph if possible."""

    def __init__(self, pipeline: Pipeline, images: Any, facts: Reference) -> None:
        super().__init__(len(images))
        self.pipeline, self._reference = pipeline, facts
        self._gpu = pipeline.plan.device == "cuda"
        self._probed = False
        self._replays: Replays | None = None
        self._arrays = array_module(pipeline.plan.device)
        self.input = self._arrays.array(images)  # the images, on the plan's device
        self._which = np.arange(min(len(facts.images), self.images))

    def check(self) -> Checked:
        """Compare scores and labels of real digits with float64; buffers are poisoned first."""
        which = self._which[: self.pipeline.batch]
        n, images = len(which), self._reference.images
        self.pipeline.poison()
        self.pipeline.with_scores = True
        labels = self._labels(self.pipeline.run(self.input[:n]))
        found, expected = self.pipeline.scores(n), self._reference.stages["fc2"][which]
        self.pipeline.with_scores = False
        verdict = judge(found, expected, self.pipeline.plan.arithmetic)
        flips = int((labels != self._reference.labels[which]).sum())
        if verdict.passed and self._wrong(labels, which):
            verdict = replace(verdict, passed=False, note=f", {flips} labels differ")
        bad = None
        if not verdict.passed:
            bad = checks.first_bad_stage(self.pipeline, images[:n], self._reference.weights)
            bad = bad or "labels"
        return Checked(verdict, checks.largest_difference(found, expected), flips, n, bad)

    def _labels(self, labels: Any) -> Any:
        return labels.get() if self._gpu else labels.copy()

    def _wrong(self, labels: Any, which: Any) -> bool:
        """Return True if labels of images `which` differ where float64's scores are unambiguous."""
        which = which[: len(labels)]
        scores = self._reference.stages["fc2"][which]
        excused = checks.excusable_flips(scores, self.pipeline.plan.arithmetic)
        return bool(((labels != self._reference.labels[which]) & ~excused).any())

    def recheck(self) -> Checked:
        """Repeat `check` on rotated images, and judge the labels that a sample leaves."""
        n = len(self._which)
        self._which = np.roll(self._which, np.random.default_rng().integers(1, max(2, n)))
        self.input[:n] = self._arrays.asarray(self._reference.images[self._which])
        self.sample()
        labels = self._labels(self.pipeline.labels[: min(n, self.scaled_from)])
        checked = self.check()
        last_pass = self.scaled_from > self.pipeline.batch  # `labels` are of other images
        if last_pass or not checked.verdict.passed or not self._wrong(labels, self._which):
            return checked
        wrong = replace(checked.verdict, passed=False, note=", its timed passes leave wrong labels")
        return replace(checked, verdict=wrong)

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Return back-to-back passes on a GPU, and their number; on a CPU, one sample."""
        if not self._gpu:
            return self.sample, 1
        times = max(1, round(milliseconds / max(self.sample(), 1e-3)))
        if self._replays is not None:
            return partial(self._replays.total, times), times
        return partial(gpu_ms, partial(self._pass, self.input), times), times

    def sample(self) -> float:
        """Return milliseconds for all images; slow CPU plans take fewer images and are scaled."""
        if not self._probed:
            self._probed = True
            if self._gpu:
                self._record()
            else:
                self.scaled_from = _scaled_from(self._time, self.images, _SLOW_PLAN_S)
        if self._replays is None:
            elapsed = self._time(self.scaled_from)
        else:
            self._arrays.cuda.get_current_stream().synchronize()
            elapsed = self._replays.sample()
        return elapsed * self.images / self.scaled_from

    def _record(self) -> None:
        """Record a graph of one pass; if a step cannot be recorded, launch the passes instead."""
        work = partial(self._pass, self.input)
        work()
        try:
            self._replays = Replays(Graph(work, 1), 1)
        except RuntimeError as error:
            self.method, self.note = "launched passes", f"no graph, launches counted in: {error}"
            return
        self._replays.once()
        self._replays.fill()
        self.method, self.passes = "replayed passes", self._replays.passes

    def _pass(self, images: Any) -> None:
        for lo in range(0, len(images), self.pipeline.batch):
            self.pipeline.run(images[lo : lo + self.pipeline.batch])

    def _time(self, n: int) -> float:
        return time_compute(self.pipeline, self.input[:n])
