"""A convolution of any shape as candidates of a comparison: the variants, and PyTorch beside them.

On a GPU a sample is some replays of a graph of CALLS calls; buffers, input and float64 truth are
shared by all candidates of a shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

from lenetgpu.check.gates import FURTHER, Gate
from lenetgpu.check.judge import Verdict, judge, largest, largest_difference
from lenetgpu.check.slots import SPARE, Call, Feed, Slots, windows
from lenetgpu.check.truth import random_input, tensors
from lenetgpu.cpu.memory import require_free
from lenetgpu.cpu.threads import core_count
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.launch import Launch, record
from lenetgpu.gpu.workspace import images_within
from lenetgpu.layouts import from_nhwc, held_as, physical_shape, to_nhwc, widened
from lenetgpu.measure.bench import Flusher, Skip
from lenetgpu.measure.sampling.calls import LEAST_SAMPLES, CallTimer, Replays
from lenetgpu.measure.sampling.facts import CHECK_IMAGES, Checked, Errors
from lenetgpu.measure.sampling.fed import Fed
from lenetgpu.measure.timing import cpu_ms, idle_gpu_ms
from lenetgpu.pipeline import CPU_CHUNK
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant
from lenetgpu.stages.conv.reference import reference
from lenetgpu.stages.mounted import Fenced, Mounted, array_module
from lenetgpu.stages.seal import is_guest

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


def _host_bytes(problem: Conv, count: int, gpu: bool) -> int:
    """Bytes that `count` random images, the filters and on a CPU the outputs take on the host."""
    each = 20 if problem.dtype == "bf16" else 12
    drawn = count * problem.H * problem.W * problem.C + problem.depth * problem.M
    made = problem.OH * problem.OW * problem.M
    padded = prod(problem.padded) * problem.C
    return each * drawn if gpu else each * (drawn + count * made) + 8 * (padded + 2 * made)


class Case:
    """Random images and weights of one problem, their float64 output, and a buffer per layout.

    `weights` are the filters, and a bias where it has one. `images` are timed; there are some more,
    for the windows and the changes of `lenetgpu.check.slots`. MemoryError where the host's free
    memory does not hold them.
    """

    def __init__(self, problem: Conv, n: int, gpu: bool) -> None:
        import numpy as np

        self.problem, self.images, self.gpu = problem, n, gpu
        self.windows = windows(problem, n, "cuda" if gpu else "cpu")
        self._count = self.windows.span + SPARE
        require_free(_host_bytes(problem, self._count, gpu))
        x, w = random_input("conv", problem, self._count, np.random.default_rng())
        self.weights = tensors(w)
        self._x = self.arrays.asarray(x)
        self._slots: dict[str, Slots] = {}
        self._y: dict[str, Fenced] = {}

    @property
    def arrays(self) -> Any:
        """CuPy on a GPU, else NumPy."""
        return array_module("cuda" if self.gpu else "cpu")

    def slots(self, layout: str) -> Slots:
        """All images, on the device, in `layout`."""
        if layout not in self._slots:
            self._slots[layout] = Slots(from_nhwc(self._x, layout), self._count)
        return self._slots[layout]

    def input(self, layout: str) -> Any:
        """The images that are timed, on the device, contiguous in `layout`."""
        return self.slots(layout).images[: self.images]

    def output(self, layout: str, guest: bool = False) -> Fenced:
        """The output buffer in `layout`, shared by all candidates of the package.

        A guest has one of its own: what it writes late would be held against another.
        """
        count = Feed.outputs(self.windows, self.images)
        shape = physical_shape(layout, count, self.problem.out_shape)
        if guest:
            return Fenced(self.arrays, shape, held_as(self.problem))
        if layout not in self._y:
            self._y[layout] = Fenced(self.arrays, shape, held_as(self.problem))
        return self._y[layout]

    @cached_property
    def expected(self) -> Any:
        """Float64 output in NHWC, of all images on a GPU, of the first ones on a CPU."""
        n, p = self._count if self.gpu else min(self._count, CHECK_IMAGES), self.problem
        padded = prod(p.padded) * p.C
        chunk = images_within(n, 8 * (padded + p.OH * p.OW * (p.C + 2 * p.M)))
        held = tuple(map(self.arrays.asarray, self.weights))
        x, w = self._x, held if p.bias else held[0]
        out = self.arrays.empty((n, *p.out_shape), "float64")
        for lo in range(0, n, chunk):
            out[lo : lo + chunk] = reference(x[lo : min(lo + chunk, n)], w, p, self.arrays)
        return out

    def first(self, layout: str, count: int) -> Any:
        """The first `count` of all images, on the device, contiguous in `layout`, a copy."""
        return from_nhwc(self._x[:count], layout).copy()

    def errors(self, found: Any) -> Errors:
        """`found` in NHWC, of the first images, against float64."""
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

    def judged(self, found: Any, precision: str, which: Any = None) -> Checked:
        """`found` in NHWC, of the first images or those of `which` (host), against float64."""
        import numpy as np

        which = np.arange(len(found)) if which is None else which
        known = which < len(self.expected)
        expected = self.expected[self.arrays.asarray(which[known])]
        found = found[self.arrays.asarray(known)]
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
        self._slots = case.slots(problem.reads)
        if not case.gpu:
            self._refuse_what_takes_minutes()
        chunk = case.images if case.gpu else min(case.images, CPU_CHUNK)
        self._mounted = mounted = Mounted(variant, problem, case.weights, chunk)
        y = mounted.lent(case.output(problem.writes, is_guest(variant.full_name)))
        self._feed = Feed(self._slots, y, problem, case.windows, case.images, case.expected)
        self._gate = Gate(mounted, case.weights, self._feed, idle_gpu_ms if case.gpu else None)
        self._fed = Fed(mounted, self._feed, self._gate)
        self._graph_calls: list[Call] = []
        self._checked: Checked | None = None
        self._flush: Flusher | None = None

    @property
    def repeats(self) -> bool:
        """Whether two runs on the same images are to agree to the bit."""
        return self.variant.repeats

    def one_output(self) -> Any:
        """What one more run on the first of all images leaves in a poisoned output, a copy."""
        x = self._case.first(self.problem.reads, self._mounted.batch)
        y = self._feed.y[: len(x)]
        self._mounted.poison(y)
        self._mounted.run(x, y)
        return y.copy()

    def errors(self) -> Errors:
        """Of one more run on images that every candidate gets."""
        found = to_nhwc(self.one_output(), self.problem.writes, self.problem.out_shape)
        return self._case.errors(found)

    def use_cold_cache(self, flush: Flusher) -> None:
        """Call `flush` before every timed call."""
        self._flush = flush

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
        """What it took by itself and why, where it chooses; what its times hold besides."""
        timed = "" if self._timer is None else self._timer.note
        return "; ".join(filter(None, (getattr(self._mounted.state, "says", ""), timed)))

    def _refuse_what_takes_minutes(self) -> None:
        """On a CPU, raise Skip where a row of outputs for each core says that one call would."""
        import numpy as np

        p, flop = self.problem, self.problem.flop(self.images)
        if flop < _LONG_FLOP:
            return
        seen = p.span[0] - p.around[0] - p.around[2]
        rows = min(p.H, max(1, seen) + p.step[0] * (core_count() - 1))
        few = replace(p, H=rows)
        if self.variant.refusal(few) is not None:
            return
        images = self._slots.images
        part = images[:1, :rows] if p.reads == "NHWC" else images[:1, :, :rows]
        x = np.ascontiguousarray(part)
        mounted = Mounted(self.variant, few, self._case.weights, 1)
        y = mounted.output(1)
        mounted.run(x, y)
        seconds = cpu_ms(lambda: mounted.run(x, y)) / 1e3 * flop / few.flop(1)
        if seconds > _PATIENCE_S:
            raise Skip(f"about {seconds:,.0f} s a call, by its rate on a few rows")

    def check(self) -> Checked:
        """Poison the output, run, judge; then choose how it is timed, and judge that too."""
        with record() as self.launched:
            verdict = self._gate.pass_(self._fed.launch, True)
        if verdict.passed:
            self._timer = CallTimer(
                self._fed.launch, self._case.gpu, self._budget_ms, Graph, self._flush is not None
            )
            if self._timer.replays is not None:
                verdict = self._check_graph(self._timer.replays)
        judged = min(self.images, len(self._case.expected))
        verdict = self._gate.verdict(verdict)
        self._checked = Checked(verdict, verdict.error * self._feed.scale, None, judged)
        return self._checked

    def _check_graph(self, replays: Replays) -> Verdict:
        self._graph_calls = self._feed.last
        verdict = self._gate.pass_(replays.once, True)
        return verdict if verdict.passed else replace(verdict, note=f"{verdict.note}, as a graph")

    def _renew(self) -> None:
        """Other images; a graph, which has a stream of its own, must find them there."""
        self._feed.renew()
        if self._case.gpu:
            self._case.arrays.cuda.get_current_stream().synchronize()

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Calls one after the other, made as a sample's are, and how many."""
        assert self._timer is not None, "checked first"
        return self._timer.burst(milliseconds)

    def sample(self) -> float:
        """Milliseconds of one call."""
        assert self._timer is not None, "checked first"
        timer = self._timer
        if self._flush is not None:
            return self._fed.launches(1, self._flush)
        self._gate.idle()
        self._renew()
        if not timer.once and timer.replays is None:
            self._fed.warm(self._fed.launch)
        elapsed = self._gate.clocked(lambda: timer.total(timer.passes))
        self._feed.made(*self._graph_calls)
        self._gate.glance()
        return elapsed / timer.passes

    def _call(self) -> None:
        """What a sample does, once."""
        if self._timer is None or self._timer.replays is None:
            return self._fed.launch()
        self._timer.replays.once()
        return self._feed.made(*self._graph_calls)

    def recheck(self) -> Checked:
        """All that some more calls leave, on other images; on a GPU the host's clock, too.

        Skip where this machine is too late to tell.
        """
        assert self._checked is not None and self._timer is not None, "checked first"
        verdict = self._checked.verdict
        for poisoned in () if self.once else FURTHER:
            self._renew()
            verdict = self._gate.pass_again(self._call, poisoned)
            if not verdict.passed:
                break
        if verdict.passed:
            self._gate.repeat(self.sample)
        if self._case.gpu and not self.once and self._flush is None and verdict.passed:
            self._gate.long_run(self._timer.total, self._timer.sample())
        verdict = self._gate.verdict(verdict)
        if verdict.passed and self._gate.late:
            raise Skip(self._gate.late)
        return replace(self._checked, verdict=verdict)
