"""The course's suite: every figure of its report beside this device's, checked, then timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from lenetgpu.check.judge import Verdict
from lenetgpu.check.truth import Truth
from lenetgpu.errors import LenetError, first_line
from lenetgpu.gpu import machines
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.measure.document import launch_json, rates_json
from lenetgpu.measure.plan_bench import PlanBench
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.timing import repeat
from lenetgpu.papers.course import (
    AFTER,
    APART,
    BEYOND,
    FIGURES,
    HOST,
    IMAGES,
    LADDERS,
    LINEAR,
    MEAN,
    MERGED,
    MOVES,
    ON_CPU,
    RELU,
    RESIDENT,
    SERIAL_MEAN,
    SERIAL_RELU,
    STREAMS,
    TOTAL,
    UNTIMED,
    layouts_of,
    streamed,
)
from lenetgpu.papers.course_passes import (
    GPU_BUDGET_S,
    MOST,
    Linear,
    Streamed,
    Transfers,
    on_the_cpu,
    passed,
    serial_pass,
    timed,
    times_of,
)
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, Plan, resolve
from lenetgpu.stages import Variant, variants

NAMES = ("course", "report")
"""What the command line calls this suite; the first is its name."""
CPU_LINEAR = 500
"""Images that two stages take together on a CPU."""
PASSES_OF = "basic.in_place"
"""The variant whose two kernels RELU and MEAN are."""
SAME = 1.02
"""A gain of less than this is none."""


class CourseRun:
    """Measures each (stage, variant) once and fills the report's rows with it.

    `speedup`, the report's time over this one, is given for as many images as the report's; with
    another batch a row's note says why there is none.
    """

    def __init__(
        self,
        device: str,
        images: Any,
        facts: Truth,
        limits: Ceilings | None,
        say: Callable[[str], None],
    ) -> None:
        self._device, self._images, self._facts = device, images, facts
        self._limits, self._say = limits, say
        self._measured: dict[tuple[str, str], dict[str, Any]] = {}
        self.rows: list[dict[str, Any]] = []
        self.interrupted = False

    def run(self) -> None:
        """Fill `rows`; Ctrl-C keeps those that are done."""
        try:
            for figure in FIGURES:
                row = {
                    "table": figure.table,
                    "label": figure.label,
                    "stage": figure.stage,
                    "report_ms": figure.milliseconds,
                    "at_least": figure.at_least,
                    **self._measure(figure.stage, figure.variant),
                }
                self.rows.append(self._with_speedup(row))
            here = self._device == "cuda"
            for listed in (UNTIMED, LINEAR, MOVES, BEYOND, AFTER) if here else (LINEAR, ON_CPU):
                for section, label, stage, variant in listed:
                    row = {"table": section, "label": label, "stage": stage}
                    row |= self._measure(stage, variant)
                    self.rows.append(row | ({"after": True} if listed is AFTER else {}))
        except KeyboardInterrupt:
            self.interrupted = True

    def _with_speedup(self, row: dict[str, Any]) -> dict[str, Any]:
        if not row.get("median_ms"):
            return row
        if len(self._images) == IMAGES:
            row["speedup"] = row["report_ms"] / row["median_ms"]
        else:
            note = f"the course's figure is of {IMAGES:,} images"
            row["note"] = ", ".join(filter(None, (row.get("note"), note)))
        return row

    def _measure(self, stage: str, name: str) -> dict[str, Any]:
        key = (stage, name)
        if key not in self._measured:
            self._say(f"{stage} {name}")
            try:
                self._measured[key] = self._one(stage, name)
            except MemoryError as error:
                note = f"needs more memory: {first_line(error)}"
                self._measured[key] = {"variant": name, "status": "skipped", "note": note}
        return self._measured[key]

    def _one(self, stage: str, name: str) -> dict[str, Any]:
        if name in (SERIAL_RELU, SERIAL_MEAN):
            return serial_pass(stage, name, len(self._images))
        if name == TOTAL:
            return self._total()
        if name in (APART, MERGED):
            return self._linear(stage, name)
        if name in (HOST, RESIDENT):
            return self._transfers(name)
        for shape in STREAMS:
            if name == streamed(*shape):
                return self._streams(*shape)
        return self._variant_row(stage, name)

    def _variant_row(self, stage: str, name: str) -> dict[str, Any]:
        unit = stage_of(stage)
        variant = self._variant(unit.kind, PASSES_OF if name in (RELU, MEAN) else name)
        if variant is None:
            return {"variant": name, "status": "absent", "note": "needs a GPU"}
        bench = StageBench(
            variant, unit, len(self._images), self._facts, layouts_of(stage, variant)
        )
        checked = bench.check()
        row = _row(name, checked.verdict) | {"label_flips": checked.flips}
        if not checked.verdict.passed:
            return row
        if name in (RELU, MEAN):
            return row | passed(bench, name, self._limits)
        row |= timed(bench.sample, variant.needs.device)
        if not bench.recheck().verdict.passed:
            return row | {"status": "wrong"}
        n, problem = bench.images, bench.problem
        row |= rates_json(
            problem.flop(n), problem.bytes(n), row["median_ms"] / 1e3, variant.precision,
            self._limits,
        )  # fmt: skip
        row |= launch_json(bench.launched, variant)
        row["explanation"] = _explanation(variant, problem, n, row)
        notes = [f"scaled from {bench.scaled_from} images"] if bench.scaled_from < n else []
        notes += [on_the_cpu()] if variant.needs.device != self._device else []
        return row | ({"note": ", ".join(notes)} if notes else {})

    def _variant(self, kind: str, name: str) -> Variant | None:
        there = (one for one in variants(kind) if one.needs.device in (self._device, "cpu"))
        return next((one for one in there if one.full_name == name), None)

    def _plan(self) -> Plan:
        return resolve("course" if self._device in NAMED["course"] else "unrolled", self._device)

    def _checked(self, pipeline: Pipeline, name: str) -> tuple[PlanBench, dict[str, Any]]:
        bench = PlanBench(pipeline, self._images, self._facts)
        checked = bench.check()
        return bench, _row(name, checked.verdict) | {"label_flips": checked.flips}

    def _total(self) -> dict[str, Any]:
        plan, images = self._plan(), self._images
        pipeline = Pipeline(plan, self._facts.weights, len(images), str(images.dtype))
        bench, row = self._checked(pipeline, f"plan {plan.name}")
        if row["status"] == "right":
            bench.sample()
            row |= times_of(repeat(bench.sample, 2 * GPU_BUDGET_S, 1, MOST))
        return row

    def _transfers(self, name: str) -> dict[str, Any]:
        moves = Transfers(self._plan(), self._facts.weights, self._images, name)
        bench, row = self._checked(moves.pipeline, name)
        if row["status"] == "right":
            expected = moves.pipeline.run(bench.input).get()
            if (moves.once() != expected).any():
                return row | {"status": "wrong"}
            row |= timed(moves.sample, "cuda")
            row["explanation"] = moves.explanation
        return row

    def _streams(self, count: int, chunks: int) -> dict[str, Any]:
        plan, weights, images = self._plan(), self._facts.weights, self._images
        pipeline = Pipeline(plan, weights, len(images), str(images.dtype))
        bench, row = self._checked(pipeline, streamed(count, chunks))
        if row["status"] == "right":
            expected = pipeline.run(bench.input).get()
            try:
                lanes = Streamed(plan, weights, images, (count, chunks), expected)
            except LenetError as error:
                return row | {"status": "wrong", "note": str(error)}
            row |= timed(lanes.sample, "cuda")
            row["explanation"] = f"chunks of {-(-len(images) // chunks):,} images"
        return row

    def _linear(self, stage: str, name: str) -> dict[str, Any]:
        few = len(self._images) if self._device == "cuda" else min(len(self._images), CPU_LINEAR)
        linear = Linear(stage, name, few, self._device, self._facts)
        row = _row(name, linear.check())
        if row["status"] == "wrong":
            return row
        scale = len(self._images) / few
        row |= timed(lambda: linear.sample() * scale, self._device)
        row["explanation"] = f"{linear.variants}: {linear.count}"
        return row | ({"note": f"scaled from {few} images"} if scale > 1 else {})


def _row(name: str, checked: Verdict) -> dict[str, Any]:
    status = "right" if checked.passed else "wrong"
    return {"variant": name, "status": status, "relative_error": checked.error}


def _explanation(variant: Variant, problem: Any, images: int, row: dict[str, Any]) -> str:
    """One line: what the report's tables say of a kernel, as figures of this run."""
    explained = variant.explain(problem, images, machines.current()) if variant.explain else ()
    words = [f"{what} {found}" for what, found in explained]
    if row.get("occupancy") is not None:
        words.append(f"occupancy {row['occupancy']:.0%}")
    if row.get("local_bytes"):
        words.append(f"local {row['local_bytes']} B")
    if row.get("roofline") is not None:
        words.append(f"{row['roofline']:.0%} of {row['bound']} roof")
    return ", ".join(words)


def verdict(gain: float) -> str:
    """Whether an idea still holds, is gone (a gain within SAME of 1) or has turned."""
    return "holds" if gain > SAME else "gone" if gain > 1 / SAME else "turned"


def step_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step of the report's ladders: its gain there, its gain here, and whether it still holds.

    A gain is the time of the step before over the time of the step; within 2 % of 1 is no change.
    """
    found = {(row["stage"], row["variant"]): row for row in rows}
    steps = []
    for stage, ladder in LADDERS:
        for (before, slower_ms), (after, faster_ms) in itertools.pairwise(ladder):
            old, new = found.get((stage, before)), found.get((stage, after))
            if old is None or new is None or "median_ms" not in old or "median_ms" not in new:
                continue
            gain = old["median_ms"] / new["median_ms"]
            steps.append(
                {
                    "stage": stage,
                    "step": f"{before} to {after}",
                    "report_gain": slower_ms / faster_ms if slower_ms and faster_ms else None,
                    "gain": gain,
                    "verdict": verdict(gain),
                    "why": f"{old.get('explanation', '')} -> {new.get('explanation', '')}",
                }
            )
    return steps
