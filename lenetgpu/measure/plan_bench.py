"""A whole plan as a candidate: checked against float64, then sampled on images that change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lenetgpu.check.judge import (
    Verdict,
    excusable_flips,
    first_bad_stage,
    judge,
    largest_difference,
)
from lenetgpu.check.slots import SPARE, Slots
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.launch import Launch
from lenetgpu.measure.sampling.calls import Replays
from lenetgpu.measure.sampling.facts import Checked, Truth
from lenetgpu.measure.timing import gpu_ms, time_compute
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
        self.pipeline, self._truth = pipeline, facts
        self.images = self.scaled_from = len(images)
        self.launched: list[Launch] = []
        self._gpu = pipeline.plan.device == "cuda"
        self._probed = False
        self._caught = ""
        self._replays: Replays | None = None
        self.method, self.note = "", ""
        source = array_module(pipeline.plan.device).asarray(images)
        self._slots = Slots(source, len(images) + SPARE)

    @property
    def input(self) -> Any:
        """The images, on the plan's device."""
        return self._slots.images[: self.images]

    def check(self) -> Checked:
        """Scores and labels of real digits against float64, buffers poisoned first."""
        n = min(len(self._truth.images), self.pipeline.batch, self.images)
        known = self._slots.which[:n] < len(self._truth.images)
        which = self._slots.which[:n][known]
        self.pipeline.poison()
        self.pipeline.with_scores = True
        labels = self._labels(self.pipeline.run(self.input[:n]))[known]
        found, expected = self.pipeline.scores(n)[known], self._truth.stages["fc2"][which]
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
        """`check` on images that have changed places, and what was found of the samples' labels."""
        self._slots.exchange(self.images)
        checked = self.check()
        caught = self._caught or ("" if self._slots.intact else "changes its input")
        if not caught:
            return checked
        return replace(checked, verdict=replace(checked.verdict, passed=False, note=f", {caught}"))

    def _glance(self, n: int) -> None:
        """Right after a sample of `n` images: are the labels right whose truth is known?"""
        lo = (n - 1) // self.pipeline.batch * self.pipeline.batch
        labels, which = self._labels(self.pipeline.labels[: n - lo]), self._slots.which[lo:n]
        known = which < len(self._truth.labels)
        differ = labels[known] != self._truth.labels[which[known]]
        scores = self._truth.stages["fc2"]
        excused = excusable_flips(scores, self.pipeline.plan.precision)[which[known]]
        if (differ & ~excused).any():
            self._caught = "what its timed passes left is wrong"

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
        self._slots.exchange(self.scaled_from)
        if self._replays is None:
            elapsed = time_compute(self.pipeline, self.input[: self.scaled_from])
        else:
            array_module("cuda").cuda.get_current_stream().synchronize()
            elapsed = self._replays.sample()
        self._glance(self.scaled_from)
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
