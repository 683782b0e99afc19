"""Benchmarks of a convolution of any shape: our variants, with PyTorch for comparison.

On a GPU a sample is several replays of a graph of CALLS calls. All candidates of a shape share
buffers, input and the float64 reference output.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.check.judge import Checked, Errors, judge, largest, largest_difference
from lenetgpu.check.reference import CHECK_IMAGES, random_input, tensors
from lenetgpu.check.timed_calls import Images, TimedCalls
from lenetgpu.cpu.memory import require_free
from lenetgpu.cpu.threads import core_count
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.launch import record
from lenetgpu.gpu.workspace import images_within
from lenetgpu.layouts import from_nhwc, held_as, physical_shape, to_nhwc, widened
from lenetgpu.measure.bench import FURTHER, Bench, Call, FedBench, Skip
from lenetgpu.measure.timing import CALLS, LEAST_SAMPLES, CallTimer, cpu_ms
from lenetgpu.pipeline import CPU_CHUNK
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant
from lenetgpu.stages.prepared import Guarded, PreparedKernel, array_module
from lenetgpu.stages.reference import conv_reference as reference

_SPARE = 2
_LONG_FLOP = 1_000_000_000
_PATIENCE_S = 20.0
LAYOUTS = (("NCHW", "NCHW"), ("NHWC", "NHWC"), ("NCHW", "NHWC"), ("NHWC", "NCHW"))


def laid_out(variant: Variant, problem: Conv) -> Conv | str:
    """Return `problem` in the layouts to measure `variant` in, NCHW if it can, or its refusal."""
    refusal = None
    for reads, writes in LAYOUTS:
        if reads in variant.reads and writes in variant.writes:
            candidate = replace(problem, reads=reads, writes=writes)
            refused = variant.refusal(candidate)
            if refused is None:
                return candidate
            refusal = refusal or refused
    layouts = f"{', '.join(variant.reads)} to {', '.join(variant.writes)}"
    return refusal or f"supports layouts {layouts} only"


def _host_bytes(problem: Conv, count: int, gpu: bool) -> int:
    """Return host bytes for `count` random images, the filters and, on a CPU, the outputs."""
    each = 20 if problem.dtype == "bf16" else 12
    drawn = count * problem.H * problem.W * problem.C + problem.gemm_k * problem.M
    outputs = problem.OH * problem.OW * problem.M
    padded = prod(problem.padded) * problem.C
    return each * drawn if gpu else each * (drawn + count * outputs) + 8 * (padded + 2 * outputs)


class Case:
    """Images of one problem, their float64 output, and a buffer per layout.

    `weights` (filters, and the bias if there is one) are random unless given. Of the `n` timed
    images at most CHECK_IMAGES are distinct. Raises MemoryError if the host has too little.
    """

    def __init__(
        self, problem: Conv, n: int, gpu: bool, weights: tuple[Any, ...] | None = None
    ) -> None:
        self.problem, self.images, self.gpu = problem, n, gpu
        self.arrays = array_module("cuda" if gpu else "cpu")  # CuPy on a GPU, else NumPy
        self._count = min(n + _SPARE, CHECK_IMAGES)
        require_free(_host_bytes(problem, self._count if gpu else n + _SPARE, gpu))
        x, w = random_input("conv", problem, self._count, np.random.default_rng())
        self.weights = weights or tensors(w)
        self._x = self.arrays.asarray(x)
        self._inputs: dict[str, Images] = {}
        self._y: dict[str, Guarded] = {}

    def input(self, layout: str) -> Images:
        """Return the timed images on the device, contiguous in `layout`."""
        if layout not in self._inputs:
            source = self.arrays.ascontiguousarray(from_nhwc(self._x, layout))
            self._inputs[layout] = Images(source, self.images)
        return self._inputs[layout]

    def output(self, layout: str) -> Guarded:
        """Return the output buffer in `layout`, shared by all candidates."""
        if layout not in self._y:
            shape = physical_shape(layout, self.images, self.problem.out_shape)
            self._y[layout] = Guarded(self.arrays, shape, held_as(self.problem))
        return self._y[layout]

    @cached_property
    def expected(self) -> Any:
        """Float64 outputs of the distinct images, in NHWC."""
        n, p = self._count, self.problem
        chunk = images_within(n, 8 * (prod(p.padded) * p.C + p.OH * p.OW * (p.C + 2 * p.M)))
        weights = tuple(map(self.arrays.asarray, self.weights))
        x, w = self._x, weights if p.bias else weights[0]
        out = self.arrays.empty((n, *p.out_shape), "float64")
        for lo in range(0, n, chunk):
            out[lo : lo + chunk] = reference(x[lo : min(lo + chunk, n)], w, p, self.arrays)
        return out

    def first(self, layout: str, count: int) -> Any:
        """Return a copy of the first `count` images on the device, contiguous in `layout`."""
        which = self.arrays.arange(count) % self._count
        return self.arrays.ascontiguousarray(from_nhwc(self._x[which], layout))

    def errors(self, found: Any) -> Errors:
        """Return the errors of `found` (NHWC, of the first images) against float64."""
        count = min(len(found), len(self.expected))
        once = images_within(count, 3 * 8 * prod(found.shape[1:]))
        errors, sizes = [0.0, 0.0], [0.0, 0.0]  # the largest, and the sum of squares
        for lo in range(0, count, once):
            expected = self.expected[lo : min(lo + once, count)]
            off = widened(found[lo : lo + len(expected)]).astype("float64") - expected
            for sums, part in ((errors, off), (sizes, expected)):
                sums[:] = max(sums[0], largest(part)), sums[1] + float((part**2).sum())
        most, squares = (error / (size or 1.0) for error, size in zip(errors, sizes, strict=True))
        return Errors(count, most, squares**0.5)

    def judged(self, found: Any, precision: str, which: Any) -> Checked:
        """Judge `found` (NHWC, of images `which`, a host array) against float64."""
        expected = self.expected[self.arrays.asarray(which)]
        verdict = judge(found, expected, precision)
        return Checked(verdict, largest_difference(found, expected), None, len(expected))


class CallBench(Bench):
    """Calls on one problem, sampled by a timer that `check` makes; `seconds` for all samples."""

    def __init__(self, problem: Conv, case: Case, seconds: float) -> None:
        super().__init__(case.images)
        self.problem, self._case = problem, case
        self._budget_ms = 1e3 * seconds / LEAST_SAMPLES
        self.timer: Any = None  # CallTimer

    def _use(self, timer: CallTimer) -> None:
        self.timer = timer
        self.once, self.passes, self.method = timer.once, timer.calls.passes, timer.method
        self.note = "; ".join(filter(None, (self.note, timer.note)))

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Return back-to-back calls, made as in a sample, and their number."""
        burst: tuple[Callable[[], Any], int] = self.timer.calls.burst(milliseconds)
        return burst

    def sample(self) -> float:
        """Return milliseconds of one call."""
        if self._flush is not None:
            self._flush()
            self._case.arrays.cuda.get_current_stream().synchronize()
        return float(self.timer.calls.sample())


class ConvBench(CallBench, FedBench):
    """One variant on one problem."""

    def __init__(self, variant: Variant, problem: Conv, case: Case, seconds: float) -> None:
        super().__init__(problem, case, seconds)
        self.variant, self.repeats = variant, variant.repeats
        if not case.gpu:
            self._refuse_what_takes_minutes()
        chunk = case.images if case.gpu else min(case.images, CPU_CHUNK)
        prepared = PreparedKernel(variant, problem, case.weights, chunk)
        y = prepared.attach(case.output(problem.writes))
        images = case.input(problem.reads)
        timed = TimedCalls(images, case.images, y, problem, case.images, case.expected)
        self._begin(prepared, timed, case.weights)
        self.note = getattr(prepared.state, "says", "")

    def one_output(self) -> Any:
        """Return a copy of the output of one more run on the first images, poisoned first."""
        x = self._case.first(self.problem.reads, self._prepared.batch)
        y = self._timed.y[: len(x)]
        self._prepared.poison(y)
        self._prepared.run(x, y)
        return y.copy()

    def errors(self) -> Errors:
        """Return the errors of one more run on images shared by all candidates."""
        found = to_nhwc(self.one_output(), self.problem.writes, self.problem.out_shape)
        return self._case.errors(found)

    def _refuse_what_takes_minutes(self) -> None:
        """Raise Skip if a CPU call would take longer than _PATIENCE_S, by a run on a few rows."""
        p, flop = self.problem, self.problem.flop(self.images)
        if flop < _LONG_FLOP:
            return
        unpadded = p.span[0] - p.around[0] - p.around[2]
        rows = min(p.H, max(1, unpadded) + p.step[0] * (core_count() - 1))  # outputs: one per core
        few = replace(p, H=rows)
        if self.variant.refusal(few) is not None:
            return
        images = self._case.input(p.reads).array
        x = np.ascontiguousarray(images[:1, :rows] if p.reads == "NHWC" else images[:1, :, :rows])
        prepared = PreparedKernel(self.variant, few, self._case.weights, 1)
        y = prepared.output(1)
        prepared.run(x, y)
        seconds = cpu_ms(lambda: prepared.run(x, y)) / 1e3 * flop / few.flop(1)
        if seconds > _PATIENCE_S:
            raise Skip(f"about {seconds:,.0f} s a call, by its rate on a few rows")

    def run(self, times: int) -> int:
        """Make `times` calls as in a sample, or whole graphs of them, and return their number."""
        if self.timer.replays is not None:
            times = CALLS * max(1, times // CALLS)
        self.timer.calls.total(times)
        return times

    def _call(self, call: Call) -> None:
        """Launch once what a sample repeats, a call or a graph, and wait for it."""
        replays = self.timer and self.timer.replays
        run = self._launch if replays is None else replays.once
        self._settle_stream()
        run()
        self._settle_stream()

    def _launch(self) -> None:
        x, y, _ = self._timed.calls[0]
        run = self._prepared.run if len(x) <= self._prepared.batch else self._prepared.run_all
        run(x, y)

    def check(self) -> Checked:
        """Judge a poisoned run, choose the timing method, and judge the graph if one is used."""
        call = self._timed.calls[0]
        with record() as self.launched:
            verdict = self._judge_run(self._launch, call, True)
        if verdict.passed:
            cold, gpu = self._flush is not None, self._case.gpu
            self._use(CallTimer(self._launch, gpu, self._budget_ms, self._graph, cold))
            if self.timer.replays is not None:
                verdict = self._judge_run(self.timer.replays.once, call, True)
                if not verdict.passed:
                    verdict = replace(verdict, note=f"{verdict.note}, as a graph")
        verdict = self._ruled(verdict)  # covers the graph too
        judged = min(self.images, len(self._case.expected))
        self._checked = Checked(verdict, verdict.error * self._timed.scale, None, judged)
        return self._checked

    def _graph(self, call: Callable[[], Any], calls: int) -> Graph:
        """Record a graph of `calls` calls; it must contain every launch of each."""
        with record() as launches:
            call()
        with record() as recorded:
            graph = Graph(call, calls)
        if len(recorded) != calls * len(launches):
            expected = f"{calls} x {len(launches)} launches"
            self._report(f"records {len(recorded)} of {expected} in a graph")
        return graph

    def recheck(self) -> Checked:
        """Judge the outputs of further calls and of a sample, each on other images."""
        assert self._checked is not None, "checked first"
        if self.once:
            return replace(self._checked, verdict=self._ruled(self._checked.verdict))
        call = self._timed.calls[0]
        runs = [(partial(self._call, call), call, poisoned) for poisoned in FURTHER]
        return replace(self._checked, verdict=self._judge_runs([*runs, (self.sample, call, False)]))
