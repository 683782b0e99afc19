"""One candidate of a comparison: built, checked against float64, then sampled on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from lenetgpu.check.feed import Feed, Images
from lenetgpu.check.judge import (
    Checked,
    Verdict,
    check_variant,
    judge,
    largest_difference,
    same_bytes,
    settle,
)
from lenetgpu.check.truth import Truth, random_input, reference
from lenetgpu.gpu.launch import Launch, record
from lenetgpu.measure.timing import SAMPLE_MS, cpu_ms, gpu_ms
from lenetgpu.network import SPANS, STAGES, Span, Stage
from lenetgpu.pipeline import CPU_CHUNK
from lenetgpu.stages import Variant
from lenetgpu.stages.mounted import Mounted

_RANDOM_IMAGES = 33
_FLUSH_BYTES = 256 << 20
_SLOW_S = 1.0
_MAX_LAUNCHES = 64
FURTHER = (False, False, False, True)
"""Calls after the rounds, each on other images: is the output poisoned before? In a row of those
where it is not, a call that leaves last run's answer shows, whichever it leaves out."""


class Skip(Exception):  # noqa: N818
    """A candidate is left out, for the reason given."""


class Bench(Protocol):
    """What the comparison needs of a candidate.

    `problem` is None for a whole plan. `once` is set by the check where one sample is all the time
    that it is worth.
    """

    images: int
    scaled_from: int
    problem: Any
    launched: list[Launch]

    @property
    def once(self) -> bool:
        """Whether one sample is all the time that it is worth."""
        ...

    @property
    def passes(self) -> int:
        """How often a sample does the work of `scaled_from` images."""
        ...

    def check(self) -> Checked:
        """Compare with the float64 reference."""
        ...

    def sample(self) -> float:
        """One time in milliseconds for all images."""
        ...

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """What passes all images for about so long without a pause, and how often it does."""
        ...

    def recheck(self) -> Checked:
        """Compare once more, after the samples: their outputs, what they claim, what they left."""
        ...


class Flusher:
    """Overwrites more memory than the L2 cache holds, so that the next launch finds it cold."""

    def __init__(self) -> None:
        import cupy

        self._buffer = cupy.empty(_FLUSH_BYTES, cupy.uint8)

    def __call__(self) -> None:
        """Queue the overwriting on the current stream."""
        self._buffer.fill(1)


@runtime_checkable
class Chilled(Protocol):
    """A bench whose samples can find the L2 cache cold."""

    def use_cold_cache(self, flush: Flusher) -> None:
        """Call `flush` before every timed call."""
        ...


def stage_of(name: str) -> Stage | Span:
    """The stage called `name`, or the span written with +."""
    for span in SPANS:
        if span.name == name:
            return span
    return next(stage for stage in STAGES if stage.name == name)


def _stage_names(unit: Stage | Span) -> tuple[str, ...]:
    return unit.stages if isinstance(unit, Span) else (unit.name,)


class FedBench:
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

    once = False

    def __init__(
        self,
        variant: Variant,
        unit: Stage | Span,
        n: int,
        facts: Truth,
        layouts: tuple[str, str] | None = None,
    ) -> None:
        import numpy as np

        self.variant, self.unit, self._truth = variant, unit, facts
        self.images = self.scaled_from = n
        if layouts is None:
            self.problem = variant.laid_out(unit.problem)
            if isinstance(self.problem, str):
                raise ValueError(f"{variant.full_name} refuses {unit.problem}: {self.problem}")
        else:
            self.problem = replace(unit.problem, reads=layouts[0], writes=layouts[1])
        self._gpu = variant.needs.device == "cuda"
        self._weights = [facts.weights[name] for name in unit.weights]
        self._few = np.ascontiguousarray(self._input_of_stage(), np.float32)
        chunk = n if self._gpu else min(n, CPU_CHUNK)
        mounted = Mounted(variant, self.problem, self._weights, chunk)
        self._expected = self.expected_of(self._few)
        images = Images(mounted.input(self._few), n)
        y = mounted.output(chunk)
        self._begin(mounted, Feed(images, n, y, self.problem, chunk, self._expected), self._weights)
        self._checked: Checked | None = None
        self._launches = 1
        self._flush: Flusher | None = None
        self.launched: list[Launch] = []

    def expected_of(self, x: Any) -> Any:
        """Float64's output of host images `x` in NHWC or (N, K)."""
        weight = next(iter(self._weights), None)
        return reference(self.variant.kind, x, weight, self.problem)

    def _input_of_stage(self) -> Any:
        first = _stage_names(self.unit)[0]
        before = [stage.name for stage in STAGES]
        index = before.index(first)
        if index == 0:
            images = self._truth.images
            return images.astype("float32") / (255.0 if images.dtype == "uint8" else 1.0)
        x = self._truth.stages[before[index - 1]]
        return x.reshape(len(x), *self.problem.in_shape)

    @property
    def input(self) -> Any:
        """The activations the variant reads, on its device, in its layout."""
        return self._feed.images.array

    def use_cold_cache(self, flush: Flusher) -> None:
        """Flush the L2 cache before every timed launch."""
        self._flush = flush

    def check(self) -> Checked:
        """Fresh random input, then real activations carried on to labels in float64."""
        import numpy as np

        rng = np.random.default_rng()
        kind, problem = self.variant.kind, self.problem
        x, w = random_input(kind, problem, _RANDOM_IMAGES, rng)
        verdict = check_variant(self.variant, problem, x, w, reference(kind, x, w, problem))
        last = _stage_names(self.unit)[-1]
        if verdict.passed:
            weight = next(iter(self._weights), None)
            verdict = check_variant(self.variant, problem, self._few, weight, self._expected)
        found = self._output()
        if verdict.passed:
            verdict = judge(found, self._expected[: len(found)], self.variant.precision)
        verdict = self._blamed(verdict)
        flips = int((self._labels_from(found, last) != self._truth.labels[: len(found)]).sum())
        bad = None if verdict.passed else last
        largest = largest_difference(found, self._expected[: len(found)])
        self._checked = Checked(verdict, largest, flips, len(found), bad)
        return self._checked

    def recheck(self) -> Checked:
        """All that passes like the timed ones leave, each on other images, is judged again."""
        assert self._checked is not None, "checked first"
        calls = self._feed.calls
        twice = [calls[turn // 2 % len(calls)] for turn in range(len(FURTHER))]
        further = zip(twice, FURTHER, strict=True)
        runs = [(partial(self._call, call), call, poisoned) for call, poisoned in further]
        sampled = calls[-(-self.scaled_from // self._feed.chunk) - 1]
        verdict = self._left_again([*runs, (self.sample, sampled, False)])
        bad = None if verdict.passed else _stage_names(self.unit)[-1]
        return replace(self._checked, verdict=verdict, first_bad=bad)

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

    def _labels_from(self, output: Any, last: str) -> Any:
        names = [stage.name for stage in STAGES]
        x = output
        for stage in STAGES[names.index(last) + 1 :]:
            w = None if stage.weight is None else self._truth.weights[stage.weight]
            x = reference(stage.kind, x.reshape(len(x), *stage.problem.in_shape), w, stage.problem)
        return x

    def sample(self) -> float:
        """Milliseconds for all images; on a CPU, slow variants take fewer and are scaled."""
        return self._sample_gpu() if self._gpu else self._sample_cpu()

    @property
    def passes(self) -> int:
        """How often a sample launches it."""
        return self._launches if self._flush is None else 1

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

    def _sample_gpu(self) -> float:
        if not self.launched:
            with record() as self.launched:
                self._launch()
            self._one_ms = gpu_ms(self._launch)
            self._launches = max(1, min(_MAX_LAUNCHES, int(SAMPLE_MS / max(self._one_ms, 1e-4))))
        if self._flush is not None:
            self._flush()
        self._settle_stream()
        return gpu_ms(self._launch, self.passes) / self.passes

    _one_ms = 1.0

    def _sample_cpu(self) -> float:
        if not self._probed:
            few = min(CPU_CHUNK, self.images)
            self._chunks(few)
            seconds = cpu_ms(partial(self._chunks, few)) / 1e3
            if seconds * self.images / few > _SLOW_S:
                self.scaled_from = max(few, int(few * _SLOW_S / seconds) // few * few)
            self._probed = True
        elapsed = cpu_ms(partial(self._chunks, self.scaled_from))
        return elapsed * self.images / self.scaled_from

    def _chunks(self, n: int) -> None:
        for call in self._feed.calls[: -(-n // self._feed.chunk)]:
            self._call(call)

    _probed = False
