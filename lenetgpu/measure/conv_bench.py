"""A convolution of any shape as candidates of a comparison: the variants, and PyTorch beside them.

On a GPU a sample is some replays of a graph of CALLS calls; buffers, input and float64 truth are
shared by all candidates of a shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from lenetgpu.check.judge import judge, largest_difference
from lenetgpu.check.truth import random_input
from lenetgpu.cpu.threads import core_count
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.launch import Launch, record
from lenetgpu.gpu.workspace import images_within
from lenetgpu.layouts import from_nhwc, physical_shape, to_nhwc
from lenetgpu.measure.bench import CHECK_IMAGES, Checked, Skip
from lenetgpu.measure.timing import gpu_ms
from lenetgpu.pipeline import CPU_CHUNK
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant
from lenetgpu.stages.conv.reference import reference

CALLS = 10
LEAST_SAMPLES = 5
SAMPLE_MS = 0.5
_MOST_REPLAYS = 64
_LONG_FLOP = 1_000_000_000
_PATIENCE_S = 20.0
LAYOUTS = (("NCHW", "NCHW"), ("NHWC", "NHWC"), ("NCHW", "NHWC"), ("NHWC", "NCHW"))


def laid_out(variant: Variant, problem: Conv) -> Conv | str:
    """`problem` in the layouts that `variant` is measured in, NCHW where it can; or its refusal."""
    refusals = []
    for reads, writes in LAYOUTS:
        if reads in variant.reads and writes in variant.writes:
            candidate = replace(problem, reads=reads, writes=writes)
            refusal = variant.refusal(candidate)
            if refusal is None:
                return candidate
            refusals.append(refusal)
    if refusals:
        return refusals[0]
    return f"supports layouts {', '.join(variant.reads)} to {', '.join(variant.writes)} only"


class Case:
    """Random input and filters of one problem, their float64 output, and a buffer per layout."""

    def __init__(self, problem: Conv, n: int, gpu: bool) -> None:
        import numpy as np

        self.problem, self.images, self.gpu = problem, n, gpu
        x, self.filters = random_input("conv", problem, n, np.random.default_rng())
        self._x: dict[str, Any] = {}
        self._y: dict[str, Any] = {}
        if gpu:
            import cupy

            x = cupy.asarray(x)
        self._x["NHWC"] = x

    @property
    def arrays(self) -> Any:
        """CuPy on a GPU, else NumPy."""
        if self.gpu:
            import cupy

            return cupy
        import numpy

        return numpy

    def input(self, layout: str) -> Any:
        """The input, on the device, contiguous in `layout`."""
        if layout not in self._x:
            held = from_nhwc(self._x["NHWC"], layout)
            self._x[layout] = self.arrays.ascontiguousarray(held)
        return self._x[layout]

    def output(self, layout: str) -> Any:
        """The output buffer in `layout`, which all candidates share."""
        if layout not in self._y:
            shape = physical_shape(layout, self.images, self.problem.out_shape)
            self._y[layout] = self.arrays.empty(shape, "float32")
        return self._y[layout]

    @cached_property
    def expected(self) -> Any:
        """Float64 output in NHWC, of all images on a GPU, of the first ones on a CPU."""
        n, p = self.images if self.gpu else min(self.images, CHECK_IMAGES), self.problem
        padded = (p.H + 2 * p.pad) * (p.W + 2 * p.pad) * p.C
        chunk = images_within(n, 8 * (padded + p.OH * p.OW * (p.C + 2 * p.M)))
        x, w = self._x["NHWC"], self.arrays.asarray(self.filters)
        out = self.arrays.empty((n, *p.out_shape), "float64")
        for lo in range(0, n, chunk):
            out[lo : lo + chunk] = reference(x[lo : min(lo + chunk, n)], w, p, self.arrays)
        return out

    def judged(self, found: Any, precision: str) -> Checked:
        """`found` in NHWC, all images or the first ones, against the float64 output."""
        expected = self.expected
        found = found[: len(expected)]
        verdict = judge(found, expected, precision)
        return Checked(verdict, largest_difference(found, expected), None, len(expected))


class ConvBench:
    """One variant on one problem. `seconds` is what its samples may take together."""

    def __init__(self, variant: Variant, problem: Conv, case: Case, seconds: float) -> None:
        self.variant, self.problem, self._case = variant, problem, case
        self.images = self.scaled_from = case.images
        self.once = False
        self.method = self.note = ""
        self.launched: list[Launch] = []
        self._budget_ms = 1e3 * seconds / LEAST_SAMPLES
        self._x, self._y = case.input(problem.reads), case.output(problem.writes)
        self._chunk = case.images if case.gpu else min(case.images, CPU_CHUNK)
        if not case.gpu:
            self._refuse_what_takes_minutes()
        self._state = self._prepared(problem, self._chunk)
        self._work: Callable[[], Any] = self._launch
        self._calls = self._times = 1

    def _prepared(self, problem: Conv, n: int) -> Any:
        if self.variant.prepare is not None:
            return self.variant.prepare(self._case.filters, problem, n)
        return self._case.arrays.asarray(self._case.filters)

    def _launch(self) -> None:
        for lo in range(0, self.images, self._chunk):
            part = self._x[lo : lo + self._chunk]
            self.variant.launch(part, self._state, self._y[lo : lo + len(part)], self.problem)

    def _found(self) -> Any:
        return to_nhwc(self._y, self.problem.writes, self.problem.out_shape)

    def _refuse_what_takes_minutes(self) -> None:
        """On a CPU, raise Skip where a row of outputs for each core says that one call would."""
        import numpy as np

        p, flop = self.problem, self.problem.flop(self.images)
        if flop < _LONG_FLOP:
            return
        rows = min(p.H, max(1, p.R - 2 * p.pad) + p.stride * (core_count() - 1))
        few = replace(p, H=rows)
        if self.variant.refusal(few) is not None:
            return
        part = self._x[:1, :rows] if p.reads == "NHWC" else self._x[:1, :, :rows]
        x = np.ascontiguousarray(part)
        y = np.empty(physical_shape(p.writes, 1, few.out_shape), np.float32)
        state = self._prepared(few, 1)
        self.variant.launch(x, state, y, few)
        start = time.perf_counter()
        self.variant.launch(x, state, y, few)
        seconds = (time.perf_counter() - start) * flop / few.flop(1)
        if seconds > _PATIENCE_S:
            raise Skip(f"about {seconds:,.0f} s a call, by its rate on a few rows")

    def check(self) -> Checked:
        """Poison the output, run, judge; then choose how it is timed, and judge that too."""
        self._y.fill(float("nan"))
        with record() as self.launched:
            self._launch()
        checked = self._case.judged(self._found(), self.variant.precision)
        if checked.verdict.passed:
            checked = self._choose_method() or checked
        return checked

    def _choose_method(self) -> Checked | None:
        """How samples are taken; a verdict where the recorded graph is wrong."""
        one = self._elapsed()
        if one > self._budget_ms:
            one = min(one, self._elapsed())
        if one > self._budget_ms:
            self.once, self.method = True, "one call"
            return None
        if not self._case.gpu:
            self._times = max(1, int(SAMPLE_MS / max(one, 1e-4)))
            self.method = "clock"
            return None
        self.method = "single calls"
        if CALLS * one <= self._budget_ms:
            try:
                graph = Graph(self._launch, CALLS)
            except RuntimeError as error:
                self.note = f"no graph, launches counted in: {error}"
                self._times = CALLS
                return None
            self._y.fill(float("nan"))
            self._case.arrays.cuda.get_current_stream().synchronize()
            with graph.stream:
                graph.launch()
            graph.stream.synchronize()
            checked = self._case.judged(self._found(), self.variant.precision)
            if not checked.verdict.passed:
                verdict = replace(checked.verdict, note=f"{checked.verdict.note}, as a graph")
                return replace(checked, verdict=verdict)
            self.method, self._calls, self._stream = f"graph of {CALLS} calls", CALLS, graph.stream
            self._work = graph.launch
            self._times = replays(self._elapsed() / CALLS)
        return None

    _stream: Any = None

    def _elapsed(self) -> float:
        if not self._case.gpu:
            start = time.perf_counter()
            for _ in range(self._times):
                self._work()
            return (time.perf_counter() - start) * 1e3
        if self._stream is None:
            return gpu_ms(self._work, self._times)
        with self._stream:
            return gpu_ms(self._work, self._times)

    def sample(self) -> float:
        """Milliseconds of one call."""
        return self._elapsed() / (self._times * self._calls)


def replays(one_ms: float) -> int:
    """Replays of a graph of CALLS calls, of `one_ms` each, that make up a sample."""
    return max(1, min(_MOST_REPLAYS, int(SAMPLE_MS / max(CALLS * one_ms, 1e-4))))
