"""The course suite: each figure of the report with this device's, checked, then timed.

The suite also covers what the report times outside our stages: passes of a stage alone; a mean
merged with the linear stage after it (section 3.1), whose filters have twice the side; transfers
between stages, and streams (sections 3.4 and 3.5).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import Verdict, judge
from lenetgpu.check.reference import Reference, reference
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.errors import LenetError, first_line
from lenetgpu.files.weights import Weights
from lenetgpu.gpu import machines
from lenetgpu.measure.bench import PlanBench, StageBench, stage_of
from lenetgpu.measure.document import launch_json, rates_json, times_json
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.timing import cpu_ms, gpu_ms, repeat, summarise
from lenetgpu.network import STAGES, stage
from lenetgpu.papers import course
from lenetgpu.papers.course import APART, HOST, MEAN, MERGED, RELU, SERIAL_MEAN, SERIAL_RELU
from lenetgpu.pipeline import Pipeline, Step
from lenetgpu.plan import NAMED, Plan, resolve
from lenetgpu.problems import Conv, Fc, Pool
from lenetgpu.stages import Variant, find, variants
from lenetgpu.stages.prepared import PreparedKernel


def crossed_bytes(steps: list[Step], images: int) -> int:
    """Return the bytes that copies between stages move over the bus, both ways, for `images`."""
    return sum(4 * images * prod(step.writes[1]) for step in steps if step.variant is None)


def activation_bytes(steps: list[Step], images: int) -> tuple[int, int]:
    """Return the bytes of activations if nothing is freed, and the minimum (section 3.4)."""
    stages = [step for step in steps if step.variant is not None]
    written = [4 * images * prod(step.writes[1]) for step in stages]
    read = [4 * images * prod(step.reads[1]) for step in stages]
    return sum(written), max(map(sum, zip(read, written, strict=True)))


def transfers(
    plan: Plan, weights: Weights, images: Any, where: str
) -> tuple[Pipeline, Callable[[], Any], str]:
    """Return a pipeline of `plan`, its run from host images to host labels, a text on the bytes."""
    from lenetgpu.net.streaming.streamer import pinned_copy

    n = len(images)
    transfers = "host" if where == HOST else "device"  # where outputs wait for the next stage
    pipeline = Pipeline(plan, weights, n, str(images.dtype), n, transfers)
    host, on_device = pinned_copy(images), cupy.empty(images.shape, images.dtype)

    def run_once() -> Any:
        on_device.set(host)
        return pipeline.run(on_device).get()

    together, least = activation_bytes(pipeline.steps, n)
    explanation = (
        f"{crossed_bytes(pipeline.steps, n) / 1e9:.2f} GB over the bus between stages, "
        f"{together / 1e9:.2f} GB of activations if none were freed, {least / 1e9:.2f} GB "
        "if each is freed after the next"
    )
    return pipeline, run_once, explanation


def streams(
    plan: Plan, weights: Weights, images: Any, count: int, chunks: int, expected: Any
) -> Callable[[], None]:
    """Return a run of `plan` over streams and chunks; raise LenetError if its labels differ."""
    from lenetgpu.net.streaming.streamer import Streamer, host_results, pinned_copy

    n = len(images)

    def make(size: int) -> Pipeline:
        pipeline = Pipeline(plan, weights, size, str(images.dtype), size)
        pipeline.with_scores = False
        return pipeline

    streamer, host = Streamer(make, -(-n // chunks), count), pinned_copy(images)
    labels, _ = host_results(n, with_scores=False)
    run = partial(streamer.run, host, labels)
    for _ in range(2):
        labels[:] = -1
        run()
        if wrong := int((labels != expected).sum()):
            raise LenetError(f"{count} streams: expected one pass's labels, found {wrong} others")
    return run


# device -> variants of the mean, the convolution and the fully connected layer
VARIANTS = {
    "cuda": {"pool": "fused.maps_looped", "conv": "unrolled.image_tiled", "fc": "tiled.shared"},
    "cpu": {"pool": "fused.rows", "conv": "tiled.blocked", "fc": "tiled.blocked"},
}


def merged_problem(pool: Pool, after: Conv | Fc) -> Conv | Fc:
    """Return the one linear stage from `pool`'s rectified input to `after`'s output."""
    if isinstance(after, Fc):
        return replace(after, K=pool.H * pool.W * pool.C)
    wide = replace(after, H=pool.H, W=pool.W, R=2 * after.R, S=2 * after.S)
    return replace(wide, stride=2 * after.stride, pad=2 * after.pad)


def merged_weights(pool: Pool, after: Conv | Fc, w: Any) -> Any:
    """Return the merged stage's weights: a quarter of `w` at each position of its window."""
    quarter = w * w.dtype.type(0.25)
    if isinstance(after, Conv):
        return quarter.repeat(2, axis=0).repeat(2, axis=1)
    maps = quarter.reshape(pool.H // 2, pool.W // 2, pool.C, after.M)
    return maps.repeat(2, axis=0).repeat(2, axis=1).reshape(-1, after.M)


@dataclass(frozen=True)
class Count:
    """Multiply-adds per image; the mean counts one per input."""

    apart: int
    merged: int

    def __str__(self) -> str:
        return (
            f"{self.merged / 1e6:.2f} M multiply-adds an image merged, {self.apart / 1e6:.2f} M "
            f"apart ({self.merged / self.apart:.2f}x)"
        )


def count(pool: Pool, after: Conv | Fc) -> Count:
    """Count `pool`'s mean and `after`, apart and merged."""
    mean = pool.H * pool.W * pool.C
    return Count(mean + after.flop(1) // 2, merged_problem(pool, after).flop(1) // 2)


class Linear:
    """A rectified pool and the next linear stage, by `name` APART or MERGED; real activations."""

    def __init__(self, span: str, name: str, images: int, device: str, facts: Reference) -> None:
        first, second = (stage(part) for part in span.split("+"))
        pool, after = first.problem, second.problem
        assert isinstance(pool, Pool) and isinstance(after, Conv | Fc) and second.weight
        self.count, self._device = count(pool, after), device
        w = facts.weights[second.weight]
        linear = find(second.kind, VARIANTS[device][second.kind], device)
        if name == MERGED:
            merged = _plain(merged_problem(pool, after))
            self._steps = [PreparedKernel(linear, merged, [merged_weights(pool, after, w)], images)]
        else:
            mean = PreparedKernel(find("pool", VARIANTS[device]["pool"], device), pool, [], images)
            self._steps = [mean, PreparedKernel(linear, _plain(after), [w], images)]
        before = STAGES[STAGES.index(first) - 1].name
        activations = np.maximum(facts.stages[before], 0).astype(np.float32)  # ReLU is not timed
        self._checked = min(len(activations), images)
        means = reference("pool", activations[: self._checked], None, pool)
        means = means.reshape(self._checked, *after.in_shape)
        self._expected = reference(second.kind, means, w, after)
        x = np.resize(activations, (images, *pool.in_shape))
        flat = self._steps[0].problem.reads == "NC"
        self._buffers = [self._steps[0].input(x.reshape(images, -1) if flat else x)]
        self._buffers += [step.output(images) for step in self._steps]

    @property
    def variants(self) -> str:
        """Names of the variants that run."""
        return " + ".join(step.variant.full_name for step in self._steps)

    def run(self) -> None:
        """Run all images once, from input to output."""
        x = self._buffers[0]
        for step, y in zip(self._steps, self._buffers[1:], strict=True):
            shape = x.shape if step.problem.reads != "NC" else (len(x), *step.problem.in_shape)
            step.run(x.reshape(shape), y)
            x = y

    def check(self) -> Verdict:
        """Judge the first images' output against the mean and the stage after it in float64."""
        for step, y in zip(self._steps, self._buffers[1:], strict=True):
            step.poison(y)
        self.run()
        outputs = self._steps[-1].found(self._buffers[-1][: self._checked])
        return judge(outputs.reshape(self._expected.shape), self._expected, "fp32")

    def sample(self) -> float:
        """Return milliseconds for all images."""
        return gpu_ms(self.run) if self._device == "cuda" else cpu_ms(self.run)


def _plain(problem: Conv | Fc) -> Conv | Fc:
    """Return `problem` in the files' own layouts."""
    layout = "NC" if isinstance(problem, Fc) else "NHWC"
    return replace(problem, reads=layout, writes=layout)


_GPU_BUDGET_S, _CPU_BUDGET_S = 0.15, 0.5
_LEAST, _MOST = 5, 50  # samples
_SERIAL_IMAGES = 100


def times_of(samples: list[float]) -> dict[str, Any]:
    """Return the JSON fields of a row's samples in milliseconds."""
    summary = summarise(samples)
    return times_json(summary) | {"samples_ms": summary.samples}


def timed(sample: Callable[[], float], device: str) -> dict[str, Any]:
    """Return the times of `sample`, after one warm-up call, within the time budget of `device`."""
    sample()
    budget, least = (_GPU_BUDGET_S, _LEAST) if device == "cuda" else (_CPU_BUDGET_S, 1)
    return times_of(repeat(sample, budget, least, _MOST))


def _means(x: Any) -> Any:
    """Return the float64 means of the 2x2 windows of x (N, H, W, C)."""
    n, height, width, maps = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, maps).mean(axis=(2, 4), dtype=np.float64)


def passed(bench: StageBench, name: str, limits: Ceilings | None) -> dict[str, Any]:
    """Time RELU in place or MEAN alone on the map that the pool reads, checked against CuPy."""
    from lenetgpu.stages.pool.looped import access_counts, mean_alone, relu_in_place

    problem, x = bench.problem, bench.input
    assert isinstance(problem, Pool)
    if name == RELU:
        y, expected = x.copy(), cupy.maximum(x, np.float32(0))
        work, efficiency = partial(relu_in_place, y, problem), "in place"
    else:
        expected = _means(x)
        y = cupy.full(expected.shape, cupy.nan, cupy.float32)
        work = partial(mean_alone, x, y, problem)
        loads, stores = (counted.efficiency for counted in access_counts(problem))
        efficiency = f"counted efficiency {loads:.1%} of loads, {stores:.1%} of stores"
    work()
    verdict = judge(y, expected, "fp32")
    if not verdict.passed:
        return {"status": "wrong", "relative_error": verdict.error}
    row = timed(lambda: gpu_ms(work), "cuda")
    row |= rates_json(x.size, x.nbytes + y.nbytes, row["median_ms"] / 1e3, "fp32", limits)
    row["explanation"] = f"{efficiency}, {row['gbs']:.0f} GB/s"
    return row


def serial_pass(stage: str, name: str, images: int) -> dict[str, Any]:
    """Time the report's serial ReLU or mean on one thread of the CPU, scaled to `images`."""
    from lenetgpu.stages.pool.serial import mean_loops, relu_loops

    problem = stage_of(stage).problem
    assert isinstance(problem, Pool)
    few = min(_SERIAL_IMAGES, images)
    x = np.random.default_rng().standard_normal((few, *problem.in_shape)).astype(np.float32)
    rectifies = name == SERIAL_RELU
    y = np.full((few, *(problem.in_shape if rectifies else problem.out_shape)), np.nan, np.float32)

    def loops() -> None:
        if rectifies:
            relu_loops(x.reshape(-1), y.reshape(-1))
        else:
            for image, pooled in zip(x, y, strict=True):
                mean_loops(image, pooled)

    def sample() -> float:
        return cpu_ms(loops) * images / few

    sample()
    right = np.array_equal(y, np.maximum(x, 0)) if rectifies else judge(y, _means(x), "fp32").passed
    if not right:
        return {"variant": name, "status": "wrong"}
    scaled = f"scaled from {few} images, " if few < images else ""
    row = {
        "variant": name,
        "status": "right",
        "note": f"{scaled}on one thread of the CPU, {cpu_name()}",
    }
    return row | times_of(repeat(sample, _CPU_BUDGET_S, 1, _MOST))


NAMES = ("course", "report")  # Names of this suite on the command line; the first is its own.
CPU_LINEAR = 500  # Images that two stages process together on a CPU.
PASSES_OF = "basic.in_place"  # The variant that consists of the two kernels RELU and MEAN.
SAME = 1.02  # Gains below this ratio count as none.


@dataclass
class CourseRun:
    """Measurement of each (stage, variant) once, from which the report's rows are filled."""

    device: str
    images: Any
    facts: Reference
    limits: Ceilings | None
    say: Callable[[str], None]
    rows: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    _measured: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def run(self) -> None:
        """Fill `rows`; on Ctrl-C, finished rows stay."""
        try:
            for figure in course.FIGURES:
                row: dict[str, Any] = {"table": figure.table, "label": figure.label}
                row |= {"stage": figure.stage, "report_ms": figure.milliseconds}
                row |= {"at_least": figure.at_least}
                row |= self._measure(figure.stage, figure.variant)
                self.rows.append(self._with_speedup(row))
            for section, label, where, name in course.further_rows(self.device):
                row = {"table": section, "label": label, "stage": where}
                row |= self._measure(where, name)
                after = (section, label, where, name) in course.AFTER
                self.rows.append(row | ({"after": True} if after else {}))
        except KeyboardInterrupt:
            self.interrupted = True

    def _with_speedup(self, row: dict[str, Any]) -> dict[str, Any]:
        if row.get("median_ms") and len(self.images) == course.IMAGES:
            row["speedup"] = row["report_ms"] / row["median_ms"]
        elif row.get("median_ms"):
            note = f"the course's figure is of {course.IMAGES:,} images"
            row["note"] = ", ".join(filter(None, (row.get("note"), note)))
        return row

    def _measure(self, stage: str, name: str) -> dict[str, Any]:
        key = (stage, name)
        if key not in self._measured:
            self.say(f"{stage} {name}")
            try:
                self._measured[key] = self._one(stage, name)
            except MemoryError as error:
                note = f"requires more memory: {first_line(error)}"
                self._measured[key] = {"variant": name, "status": "skipped", "note": note}
        return self._measured[key]

    def _one(self, stage: str, name: str) -> dict[str, Any]:
        if name in (SERIAL_RELU, SERIAL_MEAN):
            return serial_pass(stage, name, len(self.images))
        if name == course.TOTAL:
            return self._total()
        if name in (APART, MERGED):
            return self._linear(stage, name)
        if name in (HOST, course.RESIDENT):
            return self._transfers(name)
        for shape in course.STREAMS:
            if name == course.streamed(*shape):
                return self._streams(*shape)
        return self._variant_row(stage, name)

    def _variant_row(self, stage: str, name: str) -> dict[str, Any]:
        unit = stage_of(stage)
        wanted = PASSES_OF if name in (RELU, MEAN) else name
        named = (v for v in variants(unit.kind) if v.full_name == wanted)
        variant = next((v for v in named if v.needs.device in (self.device, "cpu")), None)
        if variant is None:
            return {"variant": name, "status": "absent", "note": "requires a GPU"}
        layouts = course.layouts_of(stage, variant)
        bench = StageBench(variant, unit, len(self.images), self.facts, layouts)
        checked = bench.check()
        row = _row(name, checked.verdict) | {"label_flips": checked.flips}
        if not checked.verdict.passed:
            return row
        if name in (RELU, MEAN):
            return row | passed(bench, name, self.limits)
        row |= timed(bench.sample, variant.needs.device)
        if not bench.recheck().verdict.passed:
            return row | {"status": "wrong"}
        n, problem = bench.images, bench.problem
        work, seconds = (problem.flop(n), problem.bytes(n)), row["median_ms"] / 1e3
        row |= rates_json(*work, seconds, variant.precision, self.limits)
        row |= launch_json(bench.launched, variant)
        row["explanation"] = _explanation(variant, problem, n, row)
        notes = [f"scaled from {bench.scaled_from} images"] if bench.scaled_from < n else []
        if variant.needs.device != self.device:
            notes.append(f"on one thread of the CPU, {cpu_name()}")
        return row | ({"note": ", ".join(notes)} if notes else {})

    def _plan(self) -> Plan:
        return resolve("course" if self.device in NAMED["course"] else "unrolled", self.device)

    def _checked(self, pipeline: Pipeline, name: str) -> tuple[PlanBench, dict[str, Any]]:
        bench = PlanBench(pipeline, self.images, self.facts)
        checked = bench.check()
        return bench, _row(name, checked.verdict) | {"label_flips": checked.flips}

    def _total(self) -> dict[str, Any]:
        plan, images = self._plan(), self.images
        pipeline = Pipeline(plan, self.facts.weights, len(images), str(images.dtype))
        bench, row = self._checked(pipeline, f"plan {plan.name}")
        if row["status"] == "right":
            bench.sample()
            row |= times_of(repeat(bench.sample, 2 * _GPU_BUDGET_S, 1, _MOST))
        return row

    def _transfers(self, name: str) -> dict[str, Any]:
        pipeline, run_once, explanation = transfers(
            self._plan(), self.facts.weights, self.images, name
        )
        bench, row = self._checked(pipeline, name)
        if row["status"] == "wrong":
            return row
        if (run_once() != pipeline.run(bench.input).get()).any():
            return row | {"status": "wrong"}
        return row | timed(partial(cpu_ms, run_once), "cuda") | {"explanation": explanation}

    def _streams(self, count: int, chunks: int) -> dict[str, Any]:
        plan, weights, images = self._plan(), self.facts.weights, self.images
        pipeline = Pipeline(plan, weights, len(images), str(images.dtype))
        bench, row = self._checked(pipeline, course.streamed(count, chunks))
        if row["status"] == "wrong":
            return row
        expected = pipeline.run(bench.input).get()
        try:
            run_once = streams(plan, weights, images, count, chunks, expected)
        except LenetError as error:
            return row | {"status": "wrong", "note": str(error)}
        row["explanation"] = f"chunks of {-(-len(images) // chunks):,} images"
        return row | timed(partial(cpu_ms, run_once), "cuda")

    def _linear(self, stage: str, name: str) -> dict[str, Any]:
        few = len(self.images) if self.device == "cuda" else min(len(self.images), CPU_LINEAR)
        linear = Linear(stage, name, few, self.device, self.facts)
        row = _row(name, linear.check())
        if row["status"] == "wrong":
            return row
        scale = len(self.images) / few
        row |= timed(lambda: linear.sample() * scale, self.device)
        row["explanation"] = f"{linear.variants}: {linear.count}"
        return row | ({"note": f"scaled from {few} images"} if scale > 1 else {})


def _row(name: str, checked: Verdict) -> dict[str, Any]:
    status = "right" if checked.passed else "wrong"
    return {"variant": name, "status": status, "relative_error": checked.error}


def _explanation(variant: Variant, problem: Any, images: int, row: dict[str, Any]) -> str:
    """Return one line with this run's values of what the report's tables say of a kernel."""
    explained = variant.explain(problem, images, machines.current()) if variant.explain else ()
    words = [f"{name} {value}" for name, value in explained]
    if row.get("occupancy") is not None:
        words.append(f"occupancy {row['occupancy']:.0%}")
    if row.get("local_bytes"):
        words.append(f"local {row['local_bytes']} B")
    if row.get("roofline") is not None:
        words.append(f"{row['roofline']:.0%} of {row['bound']} roof")
    return ", ".join(words)


def verdict(gain: float) -> str:
    """Return "holds" or "turned" for a gain or a loss, "gone" within SAME of 1."""
    return "holds" if gain > SAME else "gone" if gain > 1 / SAME else "turned"


def step_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each step of the report's ladders: its gain (time before over after) and ours."""
    timed = {(row["stage"], row["variant"]): row for row in rows if "median_ms" in row}
    steps = []
    for where, ladder in course.LADDERS:
        for (before, slower_ms), (after, faster_ms) in itertools.pairwise(ladder):
            old, new = timed.get((where, before)), timed.get((where, after))
            if old is None or new is None:
                continue
            gain = old["median_ms"] / new["median_ms"]
            steps.append(
                {
                    "stage": where,
                    "step": f"{before} to {after}",
                    "report_gain": slower_ms / faster_ms if slower_ms and faster_ms else None,
                    "gain": gain,
                    "verdict": verdict(gain),
                    "why": f"{old.get('explanation', '')} -> {new.get('explanation', '')}",
                }
            )
    return steps
