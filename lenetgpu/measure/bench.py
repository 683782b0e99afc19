"""One candidate of a comparison: built, checked against float64, then sampled on request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from lenetgpu.check.judge import (
    Verdict,
    check_variant,
    excusable_flips,
    first_bad_stage,
    judge,
    largest_difference,
)
from lenetgpu.check.truth import random_input, reference, reference_stages
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.launch import Launch, record
from lenetgpu.measure.calls import SAMPLE_MS
from lenetgpu.measure.timing import cpu_ms, gpu_ms, time_compute
from lenetgpu.network import SPANS, STAGES, Span, Stage
from lenetgpu.pipeline import CPU_CHUNK, Pipeline
from lenetgpu.stages import Variant
from lenetgpu.stages.mounted import Mounted

CHECK_IMAGES = 500
_RANDOM_IMAGES = 33
_FLUSH_BYTES = 256 << 20
_SLOW_S = 1.0
_MAX_LAUNCHES = 64


@dataclass(frozen=True)
class Checked:
    """Error against float64 on real digits and on fresh random input.

    `largest` is the largest absolute difference, `flips` the labels that differ from float64's
    among `images` (None where there are no labels), `first_bad` the first wrong stage where one is.
    """

    verdict: Verdict
    largest: float
    flips: int | None
    images: int
    first_bad: str | None = None


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


@dataclass(frozen=True)
class Truth:
    """Real digits with the float64 output of every stage, shared by all candidates."""

    images: Any
    weights: Weights
    stages: dict[str, Any]

    @property
    def labels(self) -> Any:
        """Float64's labels."""
        return self.stages["argmax"]


def truth(images: Any, weights: Weights) -> Truth:
    """The float64 truth for the first CHECK_IMAGES of `images`."""
    few = images[:CHECK_IMAGES]
    return Truth(few, weights, reference_stages(few, weights))


class Flusher:
    """Overwrites more memory than the L2 cache holds, so that the next launch finds it cold."""

    def __init__(self) -> None:
        import cupy

        self._buffer = cupy.empty(_FLUSH_BYTES, cupy.uint8)

    def __call__(self) -> None:
        """Queue the overwriting on the current stream."""
        self._buffer.fill(1)


def stage_of(name: str) -> Stage | Span:
    """The stage called `name`, or the span written with +."""
    for span in SPANS:
        if span.name == name:
            return span
    return next(stage for stage in STAGES if stage.name == name)


def _stage_names(unit: Stage | Span) -> tuple[str, ...]:
    return unit.stages if isinstance(unit, Span) else (unit.name,)


class StageBench:
    """One variant on one stage (or span), fed with the float64 chain's real activations.

    `n` images are timed; the check's activations are repeated to fill them. `layouts` (reads,
    writes) are the variant's first ones unless named.
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
        self._mounted = mounted = Mounted(variant, self.problem, self._weights, chunk)
        part = mounted.input(self._few)
        self._x = mounted.arrays.concatenate([part] * -(-n // len(part)))[:n]
        self._y = mounted.output(chunk)
        self._launches = 1
        self._flush: Flusher | None = None
        self.launched: list[Launch] = []

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
        return self._x

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
        weight = next(iter(self._weights), None)
        expected = reference(kind, self._few, weight, problem)
        if verdict.passed:
            verdict = check_variant(self.variant, problem, self._few, weight, expected)
        found = self._output(len(self._few))
        flips = int((self._labels_from(found, last) != self._truth.labels).sum())
        bad = None if verdict.passed else last
        return Checked(verdict, largest_difference(found, expected), flips, len(self._few), bad)

    def _output(self, n: int) -> Any:
        import numpy as np

        parts = []
        for lo in range(0, n, len(self._y)):
            y = self._y[: n - lo]
            self._mounted.poison(y)
            self._mounted.run(self._x[lo : lo + len(y)], y)
            parts.append(self._mounted.found(y))
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

    def _launch(self) -> None:
        self._mounted.run(self._x, self._y)

    def _sample_gpu(self) -> float:
        import cupy

        if not self.launched:
            with record() as self.launched:
                self._launch()
            one = gpu_ms(self._launch)
            self._launches = max(1, min(_MAX_LAUNCHES, int(SAMPLE_MS / max(one, 1e-4))))
        if self._flush is None:
            return gpu_ms(self._launch, self._launches) / self._launches
        self._flush()
        cupy.cuda.get_current_stream().synchronize()
        return gpu_ms(self._launch)

    def _sample_cpu(self) -> float:
        if not self._probed:
            few = min(CPU_CHUNK, self.images)
            self._run_cpu(few)
            seconds = self._run_cpu(few) / 1e3
            if seconds * self.images / few > _SLOW_S:
                self.scaled_from = max(few, int(few * _SLOW_S / seconds) // few * few)
            self._probed = True
        return self._run_cpu(self.scaled_from) * self.images / self.scaled_from

    _probed = False

    def _run_cpu(self, n: int) -> float:
        def run() -> None:
            for lo in range(0, n, len(self._y)):
                part = self._x[lo : min(lo + len(self._y), n)]
                self._mounted.run(part, self._y[: len(part)])

        return cpu_ms(run)


class PlanBench:
    """A whole pipeline, images on its device to labels on it."""

    problem = None
    once = False
    passes = 1

    def __init__(self, pipeline: Pipeline, images: Any, facts: Truth) -> None:
        self.pipeline, self._truth = pipeline, facts
        self.images = self.scaled_from = len(images)
        self.launched: list[Launch] = []
        self._gpu = pipeline.plan.device == "cuda"
        self._probed = False
        if self._gpu:
            import cupy

            self._x = cupy.asarray(images)
        else:
            self._x = images

    @property
    def input(self) -> Any:
        """The images, on the plan's device."""
        return self._x

    def check(self) -> Checked:
        """Scores and labels of real digits against float64, buffers poisoned first."""
        few = self._truth.images[: self.pipeline.batch]
        n = len(few)
        self.pipeline.poison()
        self.pipeline.with_scores = True
        labels = self.pipeline.run(self._x[:n])
        labels = labels.get() if self._gpu else labels.copy()
        found, expected = self.pipeline.scores(n), self._truth.stages["fc2"][:n]
        self.pipeline.with_scores = False
        verdict = judge(found, expected, self.pipeline.plan.precision)
        differ = labels != self._truth.labels[:n]
        flips = int(differ.sum())
        excused = excusable_flips(expected, self.pipeline.plan.precision)
        if verdict.passed and (differ & ~excused).any():
            note = f", {flips} labels differ"
            verdict = Verdict(False, verdict.error, verdict.tolerance, note)
        bad = None
        if not verdict.passed:
            place = first_bad_stage(self.pipeline, few, self._truth.weights)
            bad = place[0] if place else "labels"
        return Checked(verdict, largest_difference(found, expected), flips, n, bad)

    def sample(self) -> float:
        """Milliseconds for all images; slow CPU plans take fewer images and are scaled."""
        if not self._gpu and not self._probed:
            few = min(CPU_CHUNK, self.images)
            time_compute(self.pipeline, self._x[:few])
            seconds = time_compute(self.pipeline, self._x[:few]) / 1e3
            if seconds * self.images / few > 3 * _SLOW_S:
                self.scaled_from = max(few, int(few * _SLOW_S / seconds) // few * few)
            self._probed = True
        elapsed = time_compute(self.pipeline, self._x[: self.scaled_from])
        return elapsed * self.images / self.scaled_from
