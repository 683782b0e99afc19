"""One candidate of a comparison: built, checked against float64, then sampled on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from lenetgpu.check.gates import Gate
from lenetgpu.check.judge import (
    check_variant,
    judge,
    largest_difference,
)
from lenetgpu.check.slots import SPARE, Feed, Slots, windows
from lenetgpu.check.truth import random_input, reference
from lenetgpu.gpu.launch import Launch, record
from lenetgpu.measure.sampling.calls import SAMPLE_MS
from lenetgpu.measure.sampling.facts import Checked, Truth
from lenetgpu.measure.sampling.fed import Fed
from lenetgpu.measure.timing import gpu_ms, idle_gpu_ms
from lenetgpu.network import SPANS, STAGES, Span, Stage
from lenetgpu.pipeline import CPU_CHUNK
from lenetgpu.stages import Variant
from lenetgpu.stages.mounted import Mounted

_RANDOM_IMAGES = 33
_FLUSH_BYTES = 256 << 20
_SLOW_S = 1.0
_MAX_LAUNCHES = 64


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


class StageBench:
    """One variant on one stage (or span), fed with the float64 chain's real activations.

    `n` images are timed; the check's activations are repeated to fill them, and change places
    from sample to sample. `layouts` (reads, writes) are the variant's first ones unless named.
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
        weight = next(iter(self._weights), None)
        self._expected = reference(variant.kind, self._few, weight, self.problem)
        shape = windows(self.problem, n, variant.needs.device)
        self._slots = Slots(mounted.input(self._few), shape.span + SPARE)
        self._y = mounted.output(Feed.outputs(shape, chunk))
        self._chunk = chunk
        feed = Feed(self._slots, self._y, self.problem, shape, chunk, self._expected)
        self._gate = Gate(mounted, self._weights, feed, idle_gpu_ms if self._gpu else None)
        self._fed = Fed(mounted, feed, self._gate)
        self._checked: Checked | None = None
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
        return self._slots.images[: self.images]

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
        verdict = self._gate.verdict(verdict)
        flips = int((self._labels_from(found, last) != self._truth.labels[: len(found)]).sum())
        bad = None if verdict.passed else last
        largest = largest_difference(found, self._expected[: len(found)])
        self._checked = Checked(verdict, largest, flips, len(found), bad)
        return self._checked

    def recheck(self) -> Checked:
        """All that passes like the timed ones leave, each on other images, is judged again.

        On a GPU the events' time is held against the host's, too. Skip where this machine is too
        late to tell.
        """
        assert self._checked is not None, "checked first"
        verdict = self._fed.again()
        if verdict.passed:
            self._gate.repeat(self.sample)
        if self._gpu and self._flush is None and verdict.passed:
            self._fed.agree(self._one_ms)
        verdict = self._gate.verdict(verdict)
        if verdict.passed and self._gate.late:
            raise Skip(self._gate.late)
        bad = None if verdict.passed else _stage_names(self.unit)[-1]
        return replace(self._checked, verdict=verdict, first_bad=bad)

    def _output(self) -> Any:
        """What the variant as it is timed makes of the check's activations, or the first ones."""
        import numpy as np

        parts, n = [], min(len(self._few), self.images)
        for lo in range(0, n, self._chunk):
            y = self._y[: min(self._chunk, n - lo)]
            self._mounted.poison(y)
            self._mounted.run(self._slots.images[lo : lo + len(y)], y)
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

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Launches one after the other on a GPU; on a CPU, one sample."""
        if not self._gpu:
            return self.sample, 1
        times = max(1, round(milliseconds / max(self._one_ms, 1e-3)))
        return partial(gpu_ms, self._fed.launch, times), times

    def _sample_gpu(self) -> float:
        if not self.launched:
            with record() as self.launched:
                self._fed.launch()
            self._one_ms = gpu_ms(self._fed.launch)
            self._launches = max(1, min(_MAX_LAUNCHES, int(SAMPLE_MS / max(self._one_ms, 1e-4))))
        return self._fed.launches(self._launches, self._flush)

    _one_ms = 1.0

    def _sample_cpu(self) -> float:
        if not self._probed:
            few = min(CPU_CHUNK, self.images)
            self._fed.chunks(few)
            seconds = self._fed.chunks(few) / 1e3
            if seconds * self.images / few > _SLOW_S:
                self.scaled_from = max(few, int(few * _SLOW_S / seconds) // few * few)
            self._probed = True
        return self._fed.chunks(self.scaled_from) * self.images / self.scaled_from

    _probed = False
