"""Repeated time measurements of a pipeline, its stages, and calls, alone or in CUDA graphs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from math import ceil, isnan, nan
from typing import TYPE_CHECKING, Any

from lenetgpu.arrays import cupy
from lenetgpu.pipeline import Pipeline, Step

if TYPE_CHECKING:
    from lenetgpu.gpu.launch import Launch
    from lenetgpu.gpu.nvml import MachineState

Call = Callable[[], Any]
Elapsed = Callable[[Call, int], float]  # milliseconds of that many calls: `gpu_ms` or `cpu_ms`
Recorder = Callable[[Call, int], Any]  # makes a graph of that many calls
CALLS = 10  # calls per graph
LEAST_SAMPLES = 5
SAMPLE_MS = 0.5
_MOST_REPLAYS = 64
MOST = 200  # default limit of samples in `repeat`
clock = time.perf_counter  # saved early: a plugin may replace it


@cache
def hold_events() -> tuple[Any, Any]:
    """Return CuPy's event class and elapsed-time function, before a plugin replaces them."""
    return cupy.cuda.Event, cupy.cuda.get_elapsed_time


class Phases(dict[str, float]):
    """Milliseconds by phase name; repeated phases add up."""

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of the block to `name`, even if it raises."""
        start = clock()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + (clock() - start) * 1e3


@dataclass(frozen=True)
class Summary:
    """Samples in milliseconds with percentiles, interpolated linearly; NaN without samples."""

    median: float
    p05: float
    p95: float
    p99: float
    samples: list[float]

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the JSON schema; null without samples."""
        found = asdict(self)
        return found if self.samples else dict.fromkeys(found) | {"samples": []}


def summarise(samples: list[float]) -> Summary:
    """Return the summary of samples in milliseconds."""
    valid = samples and not any(map(isnan, samples))
    ordered = sorted(map(float, samples)) if valid else [nan]

    def percentile(share: float) -> float:  # as NumPy's, which first imports masked arrays
        rank = share * (len(ordered) - 1)
        left, right = ordered[int(rank)], ordered[ceil(rank)]
        return left + (right - left) * (rank - int(rank))

    p05, median, p95, p99 = map(percentile, (0.05, 0.5, 0.95, 0.99))
    return Summary(median, p05, p95, p99, [float(s) for s in samples])


def repeat(
    measure: Callable[[], float],
    budget_s: float,
    least: int = 1,
    most: int = MOST,
    samples: list[float] | None = None,
) -> list[float]:
    """Append samples (ms) until `budget_s` has passed, between `least` and `most`; return them."""
    samples = [] if samples is None else samples
    spent = 0.0
    while len(samples) < most and (len(samples) < least or spent < budget_s):
        start = clock()
        samples.append(measure())
        spent += clock() - start
    return samples


def expected(sample_s: float, budget_s: float, least: int = 1, most: int = MOST) -> int:
    """Return the number of samples of `sample_s` seconds that `repeat` would take."""
    return min(most, max(least, ceil(budget_s / sample_s) if sample_s > 0 else most))


def gpu_ms(work: Callable[[], Any], times: int = 1) -> float:
    """Return milliseconds of `times` calls of `work` on the current stream, by two events."""
    event, between = hold_events()
    before, after = event(), event()
    before.record()
    for _ in range(times):
        work()
    after.record()
    after.synchronize()
    return float(between(before, after))


def cpu_ms(work: Callable[[], Any], times: int = 1) -> float:
    """Return milliseconds of `times` calls of `work` by the clock."""
    start = clock()
    for _ in range(times):
        work()
    return (clock() - start) * 1e3


def time_compute(pipeline: Pipeline, images: Any) -> float:
    """Return milliseconds from `images` on the plan's device to labels on it, over all passes."""
    elapsed_ms = cpu_ms if pipeline.plan.device == "cpu" else gpu_ms
    parts = (images[lo : lo + pipeline.batch] for lo in range(0, len(images), pipeline.batch))
    return sum(elapsed_ms(partial(pipeline.run, part)) for part in parts)


@dataclass
class StepTiming:
    """One step's times (ms, whole data set), its launches, and the GPU's state while it ran."""

    step: Step
    samples: list[float] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    machine: MachineState | None = None


def profile(
    pipeline: Pipeline,
    images: Any,
    repeats: int,
    rows: list[StepTiming] | None = None,
    passed: Callable[[int], None] = lambda count: None,
) -> list[StepTiming]:
    """Time every step of `pipeline` on `images`, already on its device, in `repeats` passes.

    A warm-up pass goes first. On a GPU an event is recorded after each step, and an NVTX range
    names it for Nsight. Results are stored in `rows`, if given, where those of complete passes
    remain when something raises. `passed(count)` is called as images pass.
    """
    rows = [] if rows is None else rows
    measure = _profile_gpu if pipeline.plan.device == "cuda" else _profile_cpu
    timings = [StepTiming(step) for step in pipeline.steps]
    for attempt in range(repeats + 1):
        totals = [0.0] * len(timings)
        for lo in range(0, len(images), pipeline.batch):
            part = images[lo : lo + pipeline.batch]
            for index, (elapsed, launches) in enumerate(measure(pipeline, part)):
                totals[index] += elapsed
                if attempt == 0 and lo == 0:
                    timings[index].launches = launches
            passed(len(part))
        if attempt:
            for row, total in zip(timings, totals, strict=True):
                row.samples = [*row.samples, total]
            rows[:] = [replace(row) for row in timings]
    return rows


def _by_step(marks: list[Any], between: Callable[[Any, Any], float], steps: int) -> list[float]:
    """Return milliseconds of each step, from marks before the first and after each step."""
    times = list(itertools.starmap(between, itertools.pairwise(marks)))
    return [sum(times[step::steps]) for step in range(steps)]


def _profile_cpu(pipeline: Pipeline, part: Any) -> list[tuple[float, list[Launch]]]:
    marks = [clock()]
    pipeline.run(part, lambda step, output: marks.append(clock()))
    times = _by_step(marks, lambda before, after: 1e3 * (after - before), len(pipeline.steps))
    return [(total, []) for total in times]


def _profile_gpu(pipeline: Pipeline, part: Any) -> list[tuple[float, list[Launch]]]:
    from cupy.cuda import nvtx

    from lenetgpu.gpu.launch import record

    new_event, between = hold_events()
    events = [new_event()]
    names = [step.name for step in pipeline.steps]
    launches: list[list[Launch]] = [[] for _ in names]
    seen = 0
    with record() as recorded:

        def observe(step: Step, output: Any) -> None:
            nonlocal seen
            event = new_event()
            event.record()
            launches[(len(events) - 1) % len(names)] += recorded[seen:]
            seen = len(recorded)
            nvtx.RangePop()
            nvtx.RangePush(names[len(events) % len(names)])
            events.append(event)

        events[0].record()
        nvtx.RangePush(names[0])
        pipeline.run(part, observe)
        nvtx.RangePop()
    events[-1].synchronize()
    return list(zip(_by_step(events, between, len(names)), launches, strict=True))


class Calls:
    """Samples of `work`, which makes `each` calls."""

    def __init__(self, work: Call, elapsed_ms: Elapsed, each: int = 1) -> None:
        self._work, self._elapsed_ms, self._each, self._times = work, elapsed_ms, each, 1

    @property
    def passes(self) -> int:
        """Calls per sample."""
        return self._times * self._each

    def total(self, calls: int) -> float:
        """Return milliseconds of `calls` calls, rounded to whole runs of `work`."""
        return self._elapsed_ms(self._work, max(1, calls // self._each))

    def sample(self) -> float:
        """Return milliseconds of one call."""
        return self.total(self.passes) / self.passes

    def burst(self, milliseconds: float) -> tuple[Callable[[], float], int]:
        """Return calls for about `milliseconds`, made as in a sample, and their number."""
        times = self.passes
        times *= max(1, round(milliseconds / max(times * self.sample(), 1e-3)))
        return partial(self.total, times), times


class Replays(Calls):
    """Samples of a graph (lenetgpu.gpu.graph) of `calls` calls."""

    def __init__(self, graph: Any, calls: int = CALLS) -> None:
        super().__init__(graph.launch, gpu_ms, calls)
        self._stream = graph.stream

    def once(self) -> None:
        """Launch the graph and wait for it."""
        with self._stream:
            self._work()
        self._stream.synchronize()

    def fill(self) -> None:
        """Set the replays per sample to take about SAMPLE_MS."""
        graph_ms = self._each * self.sample()
        self._times = max(1, min(_MOST_REPLAYS, int(SAMPLE_MS / max(graph_ms, 1e-4))))

    def total(self, calls: int) -> float:
        """Return milliseconds of `calls` calls, rounded to whole graphs."""
        with self._stream:
            return super().total(calls)


class CallTimer:
    """Timer of `call`, which ran before, by the method that fits `budget_ms` per sample.

    `record(call, CALLS)` makes the graph on a GPU; if it cannot, `note` says so. `cold`: single
    calls, before which the caller flushes the caches. `once`: the budget allows one sample.
    """

    def __init__(
        self, call: Call, on_gpu: bool, budget_ms: float, record: Recorder, cold: bool = False
    ) -> None:
        self.calls = Calls(call, gpu_ms if on_gpu else cpu_ms)
        self.once, self.method, self.note = False, "single calls", ""
        self.replays: Replays | None = None
        call_ms = self.calls.total(1)
        if call_ms > budget_ms:
            call_ms = min(call_ms, self.calls.total(1))
        if call_ms > budget_ms:
            self.once, self.method = True, "one call"
        elif not on_gpu:
            self.method, self.calls._times = "clock", max(1, int(SAMPLE_MS / max(call_ms, 1e-4)))
        elif cold:
            self.method = "single calls, cold L2"
        elif CALLS * call_ms <= budget_ms:
            try:
                self.calls = self.replays = Replays(record(call, CALLS))
            except RuntimeError as error:
                self.calls._times, self.note = CALLS, f"no graph, launches counted in: {error}"
                return
            self.method = f"graph of {CALLS} calls"
            self.replays.once()
            self.replays.fill()
