"""Repeated measurements of a pipeline, and its stages one by one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lenetgpu.gpu.launch import Launch, record
from lenetgpu.pipeline import Pipeline, Step


@dataclass(frozen=True)
class Summary:
    """Samples in milliseconds with their median and 5th and 95th percentiles."""

    median: float
    p05: float
    p95: float
    samples: list[float]

    def as_json(self) -> dict[str, Any]:
        """The names of the JSON schema."""
        return {"median": self.median, "p05": self.p05, "p95": self.p95, "samples": self.samples}


def summarise(samples: list[float]) -> Summary:
    """Summary of at least one sample in milliseconds."""
    import numpy as np

    p05, median, p95 = np.percentile(samples, [5, 50, 95])
    return Summary(float(median), float(p05), float(p95), [float(s) for s in samples])


def repeat(
    measure: Callable[[], float],
    budget_s: float,
    least: int = 1,
    most: int = 200,
    first: list[float] | None = None,
) -> list[float]:
    """Samples (ms) of `measure()` until `budget_s` has passed, between `least` and `most`.

    `first` are samples already taken; the time they took counts.
    """
    samples = list(first or [])
    spent = sum(samples) / 1e3
    while len(samples) < most and (len(samples) < least or spent < budget_s):
        start = time.perf_counter()
        samples.append(measure())
        spent += time.perf_counter() - start
    return samples


def gpu_ms(work: Callable[[], Any], times: int = 1) -> float:
    """Milliseconds that `times` calls of `work` take on the current stream, by two events."""
    import cupy

    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    before.record()
    for _ in range(times):
        work()
    after.record()
    after.synchronize()
    return float(cupy.cuda.get_elapsed_time(before, after))


def cpu_ms(work: Callable[[], Any], times: int = 1) -> float:
    """Milliseconds that `times` calls of `work` take by the clock."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) * 1e3


def time_compute(pipeline: Pipeline, images: Any) -> float:
    """Milliseconds from `images` on the plan's device to labels on it.

    More images than the pipeline's batch take several passes, whose times are added.
    """
    elapsed_ms = cpu_ms if pipeline.plan.device == "cpu" else gpu_ms
    total = 0.0
    for lo in range(0, len(images), pipeline.batch):
        part = images[lo : lo + pipeline.batch]
        total += elapsed_ms(partial(pipeline.run, part))
    return total


@dataclass
class StepTiming:
    """One step's times (ms, whole data set) and what it launched on the GPU."""

    step: Step
    samples: list[float] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)


def profile(pipeline: Pipeline, images: Any, repeats: int) -> list[StepTiming]:
    """Time every step of `pipeline` on `images`, already on its device, in `repeats` passes.

    On a GPU an event is recorded after each step, and an NVTX range names it for Nsight; on a CPU
    the clock is read.
    """
    rows = [StepTiming(step) for step in pipeline.steps]
    gpu = pipeline.plan.device == "cuda"
    for attempt in range(repeats + int(gpu)):
        totals = [0.0] * len(rows)
        for lo in range(0, len(images), pipeline.batch):
            part = images[lo : lo + pipeline.batch]
            measure = _profile_gpu if gpu else _profile_cpu
            for index, (elapsed, launches) in enumerate(measure(pipeline, part)):
                totals[index] += elapsed
                if attempt == 0 and lo == 0:
                    rows[index].launches = launches
        if attempt >= int(gpu):
            for row, total in zip(rows, totals, strict=True):
                row.samples.append(total)
    return rows


def _profile_cpu(pipeline: Pipeline, part: Any) -> list[tuple[float, list[Launch]]]:
    totals = [0.0] * len(pipeline.steps)
    state = {"index": 0, "last": time.perf_counter()}

    def observe(step: Step, output: Any) -> None:
        now = time.perf_counter()
        totals[int(state["index"])] += (now - state["last"]) * 1e3
        state["index"] = (state["index"] + 1) % len(totals)
        state["last"] = now

    pipeline.run(part, observe)
    return [(total, []) for total in totals]


def _profile_gpu(pipeline: Pipeline, part: Any) -> list[tuple[float, list[Launch]]]:
    import cupy
    from cupy.cuda import nvtx

    events = [cupy.cuda.Event()]
    names = [step.name for step in pipeline.steps]
    launches: list[list[Launch]] = [[] for _ in pipeline.steps]
    seen = 0

    with record() as recorded:

        def observe(step: Step, output: Any) -> None:
            nonlocal seen
            event = cupy.cuda.Event()
            event.record()
            launches[(len(events) - 1) % len(launches)].extend(recorded[seen:])
            seen = len(recorded)
            nvtx.RangePop()
            events.append(event)
            nvtx.RangePush(names[(len(events) - 1) % len(names)])

        events[0].record()
        nvtx.RangePush(names[0])
        pipeline.run(part, observe)
        nvtx.RangePop()
    events[-1].synchronize()
    totals = [0.0] * len(pipeline.steps)
    for index, (before, after) in enumerate(itertools.pairwise(events)):
        totals[index % len(totals)] += cupy.cuda.get_elapsed_time(before, after)
    return list(zip(totals, launches, strict=True))
