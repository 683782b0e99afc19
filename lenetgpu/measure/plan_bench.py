"""A whole plan as a candidate: checked against float64, then sampled on images that change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lenetgpu.check.judge import (
    Checked,
    Verdict,
    excusable_flips,
    first_bad_stage,
    judge,
    largest_difference,
)
from lenetgpu.check.truth import Truth
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.launch import Launch
from lenetgpu.measure.timing import Replays, gpu_ms, time_compute
from lenetgpu.pipeline import CPU_CHUNK, Pipeline
from lenetgpu.stages.mounted import array_module

_SLOW_S = 3.0
_SAMPLE_S = 1.0


class PlanBench:
    """A whole pipeline, images on its device to labels on it.

    On a GPU a pass is a CUDA graph where it can be recorded, so that what a host takes to launch
    it, which differs from process to process, is not in its time.
    """

    problem = None
    once = False

    def __init__(self, pipeline: Pipeline, images: Any, facts: Truth) -> None:
        import numpy as np

        self.pipeline, self._truth = pipeline, facts
        self.images = self.scaled_from = len(images)
        self.launched: list[Launch] = []
        self._gpu = pipeline.plan.device == "cuda"
        self._probed = False
        self._replays: Replays | None = None
        self.method, self.note = "", ""
        self.input = array_module(pipeline.plan.device).array(images)
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
        differ = labels != self._truth.labels[which]
        flips = int(differ.sum())
        excused = excusable_flips(expected, self.pipeline.plan.precision)
        if verdict.passed and (differ & ~excused).any():
            note = f", {flips} labels differ"
            verdict = Verdict(False, verdict.error, verdict.tolerance, note)
        bad = None
        if not verdict.passed:
            few = self._truth.images[:n]
            place = first_bad_stage(self.pipeline, few, self._truth.weights)
            bad = place[0] if place else "labels"
        return Checked(verdict, largest_difference(found, expected), flips, len(which), bad)

    def _labels(self, labels: Any) -> Any:
        return labels.get() if self._gpu else labels.copy()

    def recheck(self) -> Checked:
        """`check` on images that have changed places, and the labels that a sample leaves."""
        import numpy as np

        n = len(self._which)
        self._which = np.roll(self._which, np.random.default_rng().integers(1, max(2, n)))
        self.input[:n] = array_module(self.pipeline.plan.device).asarray(
            self._truth.images[self._which]
        )
        self.sample()
        left = self._labels(self.pipeline.labels[: min(n, self.scaled_from)])
        checked = self.check()
        if self.scaled_from > self.pipeline.batch or not checked.verdict.passed:
            return checked
        which = self._which[: len(left)]
        excused = excusable_flips(self._truth.stages["fc2"], self.pipeline.plan.precision)[which]
        if not ((left != self._truth.labels[which]) & ~excused).any():
            return checked
        wrong = replace(checked.verdict, passed=False, note=", what its timed passes left is wrong")
        return replace(checked, verdict=wrong)

    @property
    def passes(self) -> int:
        """How often a sample passes all images."""
        return 1 if self._replays is None else self._replays.passes

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
                self._probe()
        if self._replays is None:
            elapsed = time_compute(self.pipeline, self.input[: self.scaled_from])
        else:
            array_module("cuda").cuda.get_current_stream().synchronize()
            elapsed = self._replays.sample()
        return elapsed * self.images / self.scaled_from

    def _record(self) -> None:
        """A graph of one pass; where a step cannot be recorded, passes are launched."""
        work = partial(self._pass, self.input)
        work()
        try:
            self._replays = Replays(Graph(work, 1), 1)
        except RuntimeError as error:
            self._replays, self.method = None, "launched passes"
            self.note = f"no graph, launches counted in: {error}"
            return
        self._replays.once()
        self._replays.fill()
        self.method = "replayed passes"

    def _pass(self, images: Any) -> None:
        for lo in range(0, len(images), self.pipeline.batch):
            self.pipeline.run(images[lo : lo + self.pipeline.batch])

    def _probe(self) -> None:
        """On a CPU: how many images a sample may take."""
        few = min(CPU_CHUNK, self.images)
        time_compute(self.pipeline, self.input[:few])
        seconds = time_compute(self.pipeline, self.input[:few]) / 1e3
        if seconds * self.images / few > _SLOW_S:
            self.scaled_from = max(few, int(few * _SAMPLE_S / seconds) // few * few)
