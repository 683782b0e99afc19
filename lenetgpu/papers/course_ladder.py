"""The course's suite: every figure of its report beside this device's, checked, then timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from lenetgpu.cpu.threads import cpu_name
from lenetgpu.gpu import machines
from lenetgpu.layouts import physical_shape
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.measure.document import launch_json, rates_json, times_json
from lenetgpu.measure.plan_bench import PlanBench
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.sampling.facts import Truth
from lenetgpu.measure.timing import cpu_ms, gpu_ms, repeat, summarise
from lenetgpu.network import SPANS, STAGES
from lenetgpu.papers.course import (
    BEYOND,
    FIGURES,
    IMAGES,
    LADDERS,
    LAYOUTS,
    ON_CPU,
    RELU,
    SERIAL_MEAN,
    SERIAL_RELU,
    TOTAL,
)
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, resolve
from lenetgpu.problems import Pool
from lenetgpu.stages import Variant

NAMES = ("course", "report")
"""What the command line calls this suite; the first is its name."""
_GPU_BUDGET_S, _CPU_BUDGET_S = 0.15, 0.5
_LEAST, _MOST = 5, 50
RELU_OF = "basic.two_passes"
TABLE_10 = {
    "conv1": ("NCHW", "QUAD"),
    "pool1": ("QUAD", "NCHW"),
    "conv2": ("NCHW", "QUAD"),
    "pool2": ("QUAD", "NHWC"),
}
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
            for section, label, stage, variant in BEYOND if self._device == "cuda" else ON_CPU:
                found = self._measure(stage, variant)
                self.rows.append({"table": section, "label": label, "stage": stage, **found})
        except KeyboardInterrupt:
            self.interrupted = True

    def _with_speedup(self, row: dict[str, Any]) -> dict[str, Any]:
        if not row.get("median_ms"):
            return row
        if len(self._images) == IMAGES:
            row["speedup"] = row["report_ms"] / row["median_ms"]
        else:
            row["note"] = _joined(row.get("note"), f"the course's figure is of {IMAGES:,} images")
        return row

    def _measure(self, stage: str, name: str) -> dict[str, Any]:
        key = (stage, name)
        if key not in self._measured:
            self._say(f"{stage} {name}")
            try:
                self._measured[key] = self._one(stage, name)
            except MemoryError as error:
                note = f"needs more memory: {str(error).splitlines()[0]}"
                self._measured[key] = {"variant": name, "status": "skipped", "note": note}
        return self._measured[key]

    def _one(self, stage: str, name: str) -> dict[str, Any]:
        if name in (SERIAL_RELU, SERIAL_MEAN):
            return self._serial_pass(stage, name)
        if name == TOTAL:
            return self._total()
        unit = stage_of(stage)
        variant = self._variant(unit.kind, RELU_OF if name == RELU else name)
        if variant is None:
            note = "needs a GPU"
            return {"variant": name, "status": "absent", "note": note}
        layouts = TABLE_10[stage] if variant.family == "layout" else None
        bench = StageBench(variant, unit, len(self._images), self._facts, layouts)
        checked = bench.check()
        row: dict[str, Any] = {
            "variant": name,
            "status": "right" if checked.verdict.passed else "wrong",
            "relative_error": checked.verdict.error,
            "label_flips": checked.flips,
        }
        if not checked.verdict.passed:
            return row
        if name == RELU:
            return row | self._relu(bench)
        budget = _GPU_BUDGET_S if variant.needs.device == "cuda" else _CPU_BUDGET_S
        bench.sample()
        samples = repeat(bench.sample, budget, _LEAST if budget < 0.3 else 1, _MOST)
        if not bench.recheck().verdict.passed:
            return row | {"status": "wrong"}
        n, problem = bench.images, bench.problem
        row |= self._times(samples)
        row |= rates_json(
            problem.flop(n), problem.bytes(n), row["median_ms"] / 1e3, variant.precision,
            self._limits,
        )  # fmt: skip
        row |= launch_json(bench.launched)
        row["explanation"] = _explanation(variant, problem, n, row)
        scaled = f"scaled from {bench.scaled_from} images" if bench.scaled_from < n else None
        note = _joined(scaled, _on_the_cpu() if variant.needs.device != self._device else None)
        return row | ({"note": note} if note else {})

    def _variant(self, kind: str, name: str) -> Variant | None:
        from lenetgpu.stages import variants

        for candidate in variants(kind):
            if candidate.full_name == name and candidate.needs.device in (self._device, "cpu"):
                return candidate
        return None

    @staticmethod
    def _times(samples: list[float]) -> dict[str, Any]:
        summary = summarise(samples)
        return times_json(summary) | {"samples_ms": summary.samples}

    def _relu(self, bench: StageBench) -> dict[str, Any]:
        """The ReLU pass alone, on the map that the pool reads; checked here against NumPy."""
        import cupy
        import numpy as np

        from lenetgpu.stages.pool.mean import relu_pass

        x = bench.input
        y = cupy.full(x.shape, cupy.nan, cupy.float32)
        relu_pass(x, y, bench.problem)
        if not bool((y == cupy.maximum(x, np.float32(0))).all()):
            return {"status": "wrong"}

        def sample() -> float:
            return gpu_ms(lambda: relu_pass(x, y, bench.problem))

        sample()
        row = self._times(repeat(sample, _GPU_BUDGET_S, _LEAST, _MOST))
        row |= rates_json(x.size, 8 * x.size, row["median_ms"] / 1e3, "fp32", self._limits)
        row["explanation"] = f"{row['gbs']:.0f} GB/s"
        return row

    def _serial_pass(self, stage: str, name: str) -> dict[str, Any]:
        import numpy as np

        from lenetgpu.stages.pool.serial import mean_loops, relu_loops

        problem = stage_of(stage).problem
        assert isinstance(problem, Pool)
        few = 100
        rng = np.random.default_rng()
        x = rng.standard_normal((few, *problem.in_shape)).astype(np.float32)
        relu, mean = np.full_like(x, np.nan), np.full((few, *problem.out_shape), np.nan, np.float32)

        def loops() -> None:
            if name == SERIAL_RELU:
                relu_loops(x.reshape(-1), relu.reshape(-1))
            else:
                for image, pooled in zip(x, mean, strict=True):
                    mean_loops(image, pooled)

        def sample() -> float:
            return cpu_ms(loops) * len(self._images) / few

        sample()
        folded = x.reshape(few, problem.H // 2, 2, problem.W // 2, 2, problem.C)
        right = (
            np.array_equal(relu, np.maximum(x, 0))
            if name == SERIAL_RELU
            else np.allclose(mean, folded.mean(axis=(2, 4)), atol=1e-5)
        )
        row: dict[str, Any] = {"variant": name, "status": "right" if right else "wrong"}
        if right:
            row |= self._times(repeat(sample, _CPU_BUDGET_S, 1, _MOST))
            row["note"] = f"scaled from {few} images, {_on_the_cpu()}"
        return row

    def _total(self) -> dict[str, Any]:
        plan_name = "course" if self._device in NAMED["course"] else "unrolled"
        plan = resolve(plan_name, self._device)
        pipeline = Pipeline(plan, self._facts.weights, len(self._images), str(self._images.dtype))
        bench = PlanBench(pipeline, self._images, self._facts)
        checked = bench.check()
        row: dict[str, Any] = {
            "variant": f"plan {plan_name}",
            "status": "right" if checked.verdict.passed else "wrong",
            "relative_error": checked.verdict.error,
            "label_flips": checked.flips,
        }
        if checked.verdict.passed:
            bench.sample()
            row |= self._times(repeat(bench.sample, 2 * _GPU_BUDGET_S, 1, _MOST))
        return row


def _joined(*words: str | None) -> str:
    return ", ".join(word for word in words if word)


def _on_the_cpu() -> str:
    """Whose time a serial row is, on a machine with a GPU too."""
    return f"on one thread of the CPU, {cpu_name()}"


def _explanation(variant: Variant, problem: Any, images: int, row: dict[str, Any]) -> str:
    """One line: what the report's tables say of a kernel, as figures of this run."""
    words = []
    if variant.explain is not None:
        rows = variant.explain(problem, images, machines.current())
        words = [f"{what} {found}" for what, found in rows]
    if row.get("occupancy") is not None:
        words.append(f"occupancy {row['occupancy']:.0%}")
    if row.get("local_bytes"):
        words.append(f"local {row['local_bytes']} B")
    if row.get("roofline") is not None:
        words.append(f"{row['roofline']:.0%} of {row['bound']} roof")
    return ", ".join(words)


def step_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step of the report's ladders: its gain there, its gain here, and whether it still holds.

    A gain is the time of the step before over the time of the step; within 2 % of 1 is no change.
    """
    found = {(row["stage"], row["variant"]): row for row in rows if "report_ms" in row}
    steps = []
    for stage, ladder in LADDERS:
        for (before, slower_ms), (after, faster_ms) in itertools.pairwise(ladder):
            old, new = found.get((stage, before)), found.get((stage, after))
            if old is None or new is None or "median_ms" not in old or "median_ms" not in new:
                continue
            gain = old["median_ms"] / new["median_ms"]
            holds = "holds" if gain > SAME else ("no gain" if gain > 1 / SAME else "turned")
            steps.append(
                {
                    "stage": stage,
                    "step": f"{before} to {after}",
                    "report_gain": slower_ms / faster_ms,
                    "gain": gain,
                    "verdict": holds,
                    "why": f"{old.get('explanation', '')} -> {new.get('explanation', '')}",
                }
            )
    return steps


def layout_rows() -> list[dict[str, Any]]:
    """Table 10: the report's shapes and the ones this package gives its layouts."""
    by_name = {stage.name: stage.problem for stage in STAGES}
    rows = []
    for stage, end, before, after in LAYOUTS:
        problem = by_name[stage]
        shape = problem.in_shape if end == "in" else problem.out_shape
        layout = TABLE_10[stage][0 if end == "in" else 1]
        rows.append(
            {
                "table": "10",
                "stage": stage,
                "end": end,
                "report_before": list(before),
                "report_after": list(after),
                "layout": layout,
                "before": list(shape),
                "after": list(physical_shape(layout, 1, shape)[1:]),
            }
        )
    return rows


def covered_variants() -> set[tuple[str, str]]:
    """(kind, full name) of every variant that the suite measures."""
    kinds = {stage.name: stage.kind for stage in STAGES}
    kinds |= {span.name: span.kind for span in SPANS}
    named = [(f.stage, f.variant) for f in FIGURES] + [(s, v) for _, _, s, v in BEYOND]
    special = (SERIAL_RELU, SERIAL_MEAN, TOTAL)
    return {
        (kinds[stage], RELU_OF if name == RELU else name)
        for stage, name in named
        if name not in special
    }
