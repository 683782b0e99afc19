"""Candidates of a comparison: a variant on its stage, or a whole plan.

Each is built, checked against float64, then sampled on request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lenetgpu.check.feed import Feed, Images
from lenetgpu.check.judge import (
    Checked,
    Verdict,
    check_variant,
    excusable_flips,
    first_bad_stage,
    judge,
    largest_difference,
    same_bytes,
    settle,
)
from lenetgpu.check.truth import Truth, random_input, reference
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.launch import Launch, record
from lenetgpu.measure.timing import SAMPLE_MS, Replays, cpu_ms, gpu_ms, time_compute
from lenetgpu.network import SPANS, STAGE_NAMES, STAGES, Span, Stage
from lenetgpu.pipeline import CPU_CHUNK, Pipeline
from lenetgpu.stages import Variant
from lenetgpu.stages.mounted import Mounted, array_module

_RANDOM_IMAGES = 33
_FLUSH_BYTES = 256 << 20
_SLOW_S, _SLOW_PLAN_S, _SAMPLE_S = 1.0, 3.0, 1.0
"""Seconds of a pass on a CPU above which a sample takes fewer images, and what it takes then."""
_MAX_LAUNCHES = 64
FURTHER = (False, False, False, True)
"""Calls after the rounds, each on other images: is the output poisoned before? In a row of those
where it is not, a call that leaves last run's answer shows, whichever it leaves out."""


class Skip(Exception):  # noqa: N818
    """A candidate is left out, for the reason given."""


class Flusher:
    """Overwrites more memory than the L2 cache holds, so that the next launch finds it cold."""

    def __init__(self) -> None:
        import cupy

        self._buffer = cupy.empty(_FLUSH_BYTES, cupy.uint8)

    def __call__(self) -> None:
        """Queue the overwriting on the current stream."""
        self._buffer.fill(1)


class Bench(ABC):
    """A candidate's work: checked, then sampled.

    `problem` is None for a whole plan. `once` is set by the check where one sample is all the time
    that it is worth. A sample does the work of `scaled_from` images `passes` times, in the way that
    `method` and `note` tell; `launched` is what one pass launches on a GPU.
    """

    problem: Any = None
    once = False
    passes = 1
    method = note = ""
    _flush: Flusher | None = None
    _checked: Checked | None = None

    def __init__(self, images: int) -> None:
        self.images = self.scaled_from = images
        self.launched: list[Launch] = []

    def use_cold_cache(self, flush: Flusher) -> None:
        """Call `flush` before every timed call; of whole plans nothing is flushed."""
        self._flush = flush

    @abstractmethod
    def check(self) -> Checked:
        """Compare with the float64 reference."""

    @abstractmethod
    def sample(self) -> float:
        """One time in milliseconds for all images."""

    @abstractmethod
    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """What passes all images for about so long without a pause, and how often it does."""

    @abstractmethod
    def recheck(self) -> Checked:
        """Compare once more, after the samples: their outputs, what they claim, what they left."""


def stage_of(name: str) -> Stage | Span:
    """The stage called `name`, or the span written with +."""
    units: tuple[Stage | Span, ...] = (*STAGES, *SPANS)
    return next(unit for unit in units if unit.name == name)


def input_of(name: str, images: Any, stages: dict[str, Any], problem: Any) -> Any:
    """What the stage or span `name` reads of `images`, of float64's `stages`: float32, in NHWC."""
    import numpy as np

    at = STAGE_NAMES.index(name.partition("+")[0])
    if at == 0:
        return images.astype(np.float32) / np.float32(255 if images.dtype == np.uint8 else 1)
    x = stages[STAGE_NAMES[at - 1]].astype(np.float32)
    return x.reshape(len(x), *problem.in_shape)


def _scaled_from(work: Callable[[int], Any], images: int, slow_s: float) -> int:
    """Images of a sample on a CPU: all, or fewer where `work` takes too long by its first ones."""
    few = min(CPU_CHUNK, images)
    work(few)
    seconds = cpu_ms(partial(work, few)) / 1e3
    if seconds * images / few <= slow_s:
        return images
    return max(few, int(few * _SAMPLE_S / seconds) // few * few)


class FedBench(Bench):
    """Buffers of a variant's timed calls, and checks of what calls like them leave there."""

    def _begin(self, mounted: Mounted, feed: Feed, weights: Sequence[Any]) -> None:
        self._mounted, self._feed = mounted, feed
        self._weights_held = [(held, held.copy()) for held in weights]
        self._caught = ""

    def _settle_stream(self) -> None:
        """Let the current stream end: a graph has one of its own."""
        if self._mounted.on_gpu:
            self._mounted.arrays.cuda.get_current_stream().synchronize()

    def _left(self, run: Callable[[], Any], call: tuple[Any, Any, int], poisoned: bool) -> Verdict:
        """Judge all that `run` leaves, whose last call is `call`.

        On a CPU, nothing may change a pause later.
        """
        if poisoned:
            self._mounted.poison(self._feed.y)
        self._settle_stream()
        run()
        early = None if self._mounted.on_gpu else self._feed.y.copy()
        verdict = self._feed.judged(call, self._mounted.variant.precision)
        if early is not None:
            settle(self._mounted)
            if not same_bytes(early, self._feed.y):
                self._catch("writes its output after it has returned")
        return self._blamed(verdict)

    def _left_again(
        self, runs: Iterable[tuple[Callable[[], Any], tuple[Any, Any, int], bool]]
    ) -> Verdict:
        """The first wrong verdict of `_left`, each on images that changed, or the last."""
        for run, call, poisoned in runs:
            self._feed.images.renew(self._feed.chunk)
            verdict = self._left(run, call, poisoned)
            if not verdict.passed:
                off = verdict.note or f", error {verdict.error:.1e}"
                self._catch(f"what calls after its samples left is wrong{off}")
                break
        return self._blamed(verdict)

    def answer(self, x: Any, slots: Any) -> Any:
        """Outputs of `slots` (host), in NHWC, after calls as timed on host images `x` in turn."""
        import numpy as np

        self._feed.images.load(self._mounted.input(x))
        found = []
        for call in self._feed.calls:
            inside = slots[(slots >= call[2]) & (slots < call[2] + len(call[1]))] - call[2]
            if len(inside):
                self._call(call)
                found.append(self._mounted.found(call[1][self._mounted.arrays.asarray(inside)]))
        return np.concatenate(found)

    def _call(self, call: tuple[Any, Any, int]) -> None:
        """One call as it is timed."""
        raise NotImplementedError

    def output(self, x: Any) -> Any:
        """What one run on host images `x` leaves in a poisoned output, a host copy in NHWC."""
        y = self._feed.y[: len(x)]
        self._mounted.poison(y)
        self._mounted.run(self._mounted.input(x), y)
        return self._mounted.found(y)

    def _catch(self, sentence: str) -> None:
        self._caught = self._caught or sentence

    def _blamed(self, verdict: Verdict) -> Verdict:
        """`verdict`, or a wrong one: who wrote its input, its weights or beside its output?"""
        for held, kept in self._weights_held:
            if not same_bytes(held, kept):
                held[...] = kept
                self._catch("changes its weights")
        if self._mounted.trespassed():
            self._catch("writes outside its output")
        if not self._feed.images.intact:
            self._feed.images.restore()
            self._catch("changes its input")
        return replace(verdict, passed=False, note=f", {self._caught}") if self._caught else verdict


class StageBench(FedBench):
    """One variant on one stage (or span), fed with the float64 chain's real activations.

    `n` images are timed; the check's activations are repeated to fill them, and change places
    before each later check. `layouts` (reads, writes) are the variant's first ones unless named.
    """

    def __init__(
        self,
        variant: Variant,
        unit: Stage | Span,
        n: int,
        facts: Truth,
        layouts: tuple[str, str] | None = None,
    ) -> None:
        import numpy as np

        super().__init__(n)
        self.variant, self.unit, self._truth = variant, unit, facts
        if layouts is None:
            self.problem = variant.laid_out(unit.problem)
            if isinstance(self.problem, str):
                raise ValueError(f"{variant.full_name} refuses {unit.problem}: {self.problem}")
        else:
            self.problem = replace(unit.problem, reads=layouts[0], writes=layouts[1])
        self._gpu = variant.needs.device == "cuda"
        self._weights = [facts.weights[name] for name in unit.weights]
        x = input_of(unit.name, facts.images, facts.stages, self.problem)
        self._few = np.ascontiguousarray(x)
        chunk = n if self._gpu else min(n, CPU_CHUNK)
        mounted = Mounted(variant, self.problem, self._weights, chunk)
        self._weight = next(iter(self._weights), None)
        self._expected = reference(variant.kind, self._few, self._weight, self.problem)
        images = Images(mounted.input(self._few), n)
        y = mounted.output(chunk)
        self._begin(mounted, Feed(images, n, y, self.problem, chunk, self._expected), self._weights)
        self._one_ms, self._probed = 1.0, False

    @property
    def input(self) -> Any:
        """The activations the variant reads, on its device, in its layout."""
        return self._feed.images.array

    def check(self) -> Checked:
        """Fresh random input, then real activations carried on to labels in float64."""
        import numpy as np

        rng = np.random.default_rng()
        kind, problem = self.variant.kind, self.problem
        x, w = random_input(kind, problem, _RANDOM_IMAGES, rng)
        verdict = check_variant(self.variant, problem, x, w, reference(kind, x, w, problem))
        if verdict.passed:
            verdict = check_variant(self.variant, problem, self._few, self._weight, self._expected)
        found = self._output()
        if verdict.passed:
            verdict = judge(found, self._expected[: len(found)], self.variant.precision)
        verdict = self._blamed(verdict)
        flips = int((self._labels_from(found) != self._truth.labels[: len(found)]).sum())
        largest = largest_difference(found, self._expected[: len(found)])
        self._checked = Checked(verdict, largest, flips, len(found), self._bad(verdict))
        return self._checked

    def _bad(self, verdict: Verdict) -> str | None:
        return None if verdict.passed else self.unit.name.split("+")[-1]

    def recheck(self) -> Checked:
        """All that passes like the timed ones leave, each on other images, is judged again."""
        assert self._checked is not None, "checked first"
        calls = self._feed.calls
        twice = [calls[turn // 2 % len(calls)] for turn in range(len(FURTHER))]
        further = zip(twice, FURTHER, strict=True)
        runs = [(partial(self._call, call), call, poisoned) for call, poisoned in further]
        sampled = calls[-(-self.scaled_from // self._feed.chunk) - 1]
        verdict = self._left_again([*runs, (self.sample, sampled, False)])
        return replace(self._checked, verdict=verdict, first_bad=self._bad(verdict))

    def _call(self, call: tuple[Any, Any, int]) -> None:
        self._mounted.run(call[0], call[1])

    def _output(self) -> Any:
        """What the variant as it is timed makes of the check's activations, or the first ones."""
        import numpy as np

        parts, n = [], min(len(self._few), self.images)
        for x, y, lo in self._feed.calls:
            if lo < n:
                self._mounted.poison(y)
                self._mounted.run(x, y)
                parts.append(self._mounted.found(y[: n - lo]))
        return np.concatenate(parts)

    def _labels_from(self, x: Any) -> Any:
        """Float64's labels of outputs `x`."""
        for stage in STAGES[STAGE_NAMES.index(self.unit.name.split("+")[-1]) + 1 :]:
            w = None if stage.weight is None else self._truth.weights[stage.weight]
            x = reference(stage.kind, x.reshape(len(x), *stage.problem.in_shape), w, stage.problem)
        return x

    def sample(self) -> float:
        """Milliseconds for all images; on a CPU, slow variants take fewer and are scaled."""
        if not self._probed:
            self._probe()
            self._probed = True
        if not self._gpu:
            elapsed = cpu_ms(partial(self._chunks, self.scaled_from))
            return elapsed * self.images / self.scaled_from
        if self._flush is not None:
            self._flush()
        self._settle_stream()
        return gpu_ms(self._launch, self.passes) / self.passes

    def _probe(self) -> None:
        """Choose, by first calls, how often a sample launches it, or of how many images it is."""
        if not self._gpu:
            self.scaled_from = _scaled_from(self._chunks, self.images, _SLOW_S)
            return
        with record() as self.launched:
            self._launch()
        self._one_ms = gpu_ms(self._launch)
        if self._flush is None:
            self.passes = max(1, min(_MAX_LAUNCHES, int(SAMPLE_MS / max(self._one_ms, 1e-4))))

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Launches one after the other on a GPU; on a CPU, one sample."""
        if not self._gpu:
            return self.sample, 1
        times = max(1, round(milliseconds / max(self._one_ms, 1e-3)))
        return partial(gpu_ms, self._launch, times), times

    def _launch(self) -> None:
        self._call(self._feed.calls[0])

    def run(self, times: int) -> int:
        """Do what a sample does so many times without a clock, until the end of it."""
        for _ in range(times):
            if self._gpu:
                self._launch()
            else:
                self._chunks(self.scaled_from)
        self._settle_stream()
        return times

    def _chunks(self, n: int) -> None:
        for call in self._feed.calls[: -(-n // self._feed.chunk)]:
            self._call(call)


class PlanBench(Bench):
    """A whole pipeline, images on its device to labels on it.

    On a GPU a pass is a CUDA graph where it can be recorded, so that what a host takes to launch
    it, which differs from process to process, is not in its time.
    """

    def __init__(self, pipeline: Pipeline, images: Any, facts: Truth) -> None:
        import numpy as np

        super().__init__(len(images))
        self.pipeline, self._truth = pipeline, facts
        self._gpu = pipeline.plan.device == "cuda"
        self._probed = False
        self._replays: Replays | None = None
        self._arrays = array_module(pipeline.plan.device)
        self.input = self._arrays.array(images)
        """The images, on the plan's device."""
        self._which = np.arange(min(len(facts.images), self.images))

    def check(self) -> Checked:
        """Scores and labels of real digits against float64, buffers poisoned first."""
        which = self._which[: self.pipeline.batch]
        n = len(which)
        self.pipeline.poison()
        self.pipeline.with_scores = True
        labels = self._labels(self.pipeline.run(self.input[:n]))
        found, expected = self.pipeline.scores(n), self._truth.stages["fc2"][which]
        self.pipeline.with_scores = False
        verdict = judge(found, expected, self.pipeline.plan.precision)
        flips = int((labels != self._truth.labels[which]).sum())
        if verdict.passed and self._wrong(labels, which):
            verdict = replace(verdict, passed=False, note=f", {flips} labels differ")
        bad = None
        if not verdict.passed:
            few = self._truth.images[:n]
            place = first_bad_stage(self.pipeline, few, self._truth.weights)
            bad = place[0] if place else "labels"
        return Checked(verdict, largest_difference(found, expected), flips, n, bad)

    def _labels(self, labels: Any) -> Any:
        return labels.get() if self._gpu else labels.copy()

    def _wrong(self, labels: Any, which: Any) -> bool:
        """Whether labels of images `which` differ where float64's scores leave no doubt."""
        scores = self._truth.stages["fc2"][which]
        excused = excusable_flips(scores, self.pipeline.plan.precision)
        return bool(((labels != self._truth.labels[which]) & ~excused).any())

    def recheck(self) -> Checked:
        """`check` on images that have changed places, and the labels that a sample leaves."""
        import numpy as np

        n = len(self._which)
        self._which = np.roll(self._which, np.random.default_rng().integers(1, max(2, n)))
        self.input[:n] = self._arrays.asarray(self._truth.images[self._which])
        self.sample()
        left = self._labels(self.pipeline.labels[: min(n, self.scaled_from)])
        checked = self.check()
        several = self.scaled_from > self.pipeline.batch  # of which `left` is the last pass's
        if several or not checked.verdict.passed or not self._wrong(left, self._which[: len(left)]):
            return checked
        wrong = replace(checked.verdict, passed=False, note=", what its timed passes left is wrong")
        return replace(checked, verdict=wrong)

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Passes one after the other on a GPU; on a CPU, one sample."""
        if not self._gpu:
            return self.sample, 1
        times = max(1, round(milliseconds / max(self.sample(), 1e-3)))
        if self._replays is not None:
            return partial(self._replays.total, times), times
        return partial(gpu_ms, partial(self._pass, self.input), times), times

    def sample(self) -> float:
        """Milliseconds for all images; slow CPU plans take fewer images and are scaled."""
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
        """A graph of one pass; where a step cannot be recorded, passes are launched."""
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
