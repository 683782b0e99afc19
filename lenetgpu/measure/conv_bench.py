"""A convolution of any shape as candidates of a comparison: the variants, and PyTorch beside them.

On a GPU a sample is some replays of a graph of CALLS calls; buffers, input and float64 truth are
shared by all candidates of a shape.
"""

from __future__ import annotations

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
from lenetgpu.measure.calls import LEAST_SAMPLES, CallTimer
from lenetgpu.measure.timing import cpu_ms
from lenetgpu.pipeline import CPU_CHUNK
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant
from lenetgpu.stages.conv.reference import reference
from lenetgpu.stages.mounted import Mounted, array_module

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
        return array_module("cuda" if self.gpu else "cpu")

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
        self.launched: list[Launch] = []
        self._budget_ms = 1e3 * seconds / LEAST_SAMPLES
        self._timer: CallTimer | None = None
        self._x, self._y = case.input(problem.reads), case.output(problem.writes)
        if not case.gpu:
            self._refuse_what_takes_minutes()
        chunk = case.images if case.gpu else min(case.images, CPU_CHUNK)
        self._mounted = Mounted(variant, problem, [case.filters], chunk)

    @property
    def once(self) -> bool:
        """Whether one sample is all the time that it is worth."""
        return self._timer is not None and self._timer.once

    @property
    def passes(self) -> int:
        """Calls that a sample makes."""
        return 1 if self._timer is None else self._timer.passes

    @property
    def method(self) -> str:
        """How it is timed."""
        return "" if self._timer is None else self._timer.method

    @property
    def note(self) -> str:
        """What its times hold besides."""
        return "" if self._timer is None else self._timer.note

    def _launch(self) -> None:
        self._mounted.run_all(self._x, self._y)

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
        mounted = Mounted(self.variant, few, [self._case.filters], 1)
        y = mounted.output(1)
        mounted.run(x, y)
        seconds = cpu_ms(lambda: mounted.run(x, y)) / 1e3 * flop / few.flop(1)
        if seconds > _PATIENCE_S:
            raise Skip(f"about {seconds:,.0f} s a call, by its rate on a few rows")

    def check(self) -> Checked:
        """Poison the output, run, judge; then choose how it is timed, and judge that too."""
        Mounted.poison(self._y)
        with record() as self.launched:
            self._launch()
        checked = self._case.judged(self._found(), self.variant.precision)
        if not checked.verdict.passed:
            return checked
        self._timer = CallTimer(self._launch, self._case.gpu, self._budget_ms, Graph)
        return self._check_graph(self._timer) or checked

    def _check_graph(self, timer: CallTimer) -> Checked | None:
        """A verdict where the recorded graph is wrong."""
        if timer.replays is None:
            return None
        Mounted.poison(self._y)
        self._case.arrays.cuda.get_current_stream().synchronize()
        timer.replays.once()
        checked = self._case.judged(self._found(), self.variant.precision)
        if checked.verdict.passed:
            return None
        verdict = replace(checked.verdict, note=f"{checked.verdict.note}, as a graph")
        return replace(checked, verdict=verdict)

    def sample(self) -> float:
        """Milliseconds of one call."""
        assert self._timer is not None, "checked first"
        return self._timer.sample()
