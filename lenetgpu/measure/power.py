"""What a GPU was doing while a candidate or a step ran: watched for two seconds, after its timing.

So that no reading falls into what is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.nvml import MachineState, Monitor, Reading, monitor, spread
from lenetgpu.layouts import physical_shape
from lenetgpu.measure.timing import StepTiming, cpu_ms, gpu_ms
from lenetgpu.pipeline import Pipeline, Step

if TYPE_CHECKING:
    from lenetgpu.measure.comparison import Candidate, Comparison

WATCHED_S = 2.0
_WARM_S = 0.2
_EVERY_S = 0.02
_STEP_SAMPLE_MS = 5.0
_MOST_LAUNCHES = 1000
_BURST_MS = 20.0

Say = Callable[[str], None]


class _Watcher:
    """Readings of `seen` by a thread, each with the seconds that it stands for."""

    def __init__(self, seen: Monitor) -> None:
        self._seen, self._done = seen, Event()
        self.readings: list[tuple[float, Reading]] = []
        self._thread = Thread(target=self._watch, name="lenetgpu-watch", daemon=True)

    def _watch(self) -> None:
        latest: list[Reading] = []

        def look() -> None:
            self._done.wait(_EVERY_S)
            latest.append(self._seen.read())

        while not self._done.is_set():
            took = cpu_ms(look)
            self.readings.append((took / 1e3, latest.pop()))

    def __enter__(self) -> _Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def mean_power_w(self) -> float | None:
        """Over time, of the readings that tell it."""
        told = [(took, r.power_w) for took, r in self.readings if r.power_w is not None]
        total = sum(took for took, _ in told)
        return sum(took * watts for took, watts in told) / total if total else None


def _back_to_back(sample: Callable[[], Any], seconds: float) -> tuple[int, float]:
    """Samples taken one after the other for at least `seconds`, and the seconds they took."""
    count, spent = 0, 0.0
    while spent < seconds:
        spent += cpu_ms(sample) / 1e3
        count += 1
    return count, spent


def watch(
    sample: Callable[[], Any], images: int, gpu: Gpu, seconds: float = WATCHED_S
) -> MachineState | None:
    """Run `sample` back to back for at least `seconds` on `gpu` and say what it was doing.

    `images` is how many one call of `sample` passes, 0 where energy an image means nothing; it is
    not told for less than WATCHED_S, which the counters need. None where NVML is missing. What
    `sample` raises, Ctrl-C too, ends the watching and is raised.
    """
    seen = monitor(gpu)
    if seen is None:
        return None
    _back_to_back(sample, min(_WARM_S, seconds))
    with _Watcher(seen) as watcher:
        before = seen.energy_j()
        count, spent = _back_to_back(sample, seconds)
        after = seen.energy_j()
    joules, energy_from = None, None
    if before is not None and after is not None and after > before:
        joules, energy_from = after - before, "counter"
    elif (power := watcher.mean_power_w()) is not None:
        joules, energy_from = power * spent, "power"
    if joules is None or not images or seconds < WATCHED_S:
        each, energy_from = None, None
    else:
        each = 1e6 * joules / (count * images)
    read = [reading for _, reading in watcher.readings]
    given = [reading.throttle for reading in read if reading.throttle is not None]
    return MachineState(
        spread([reading.sm_mhz for reading in read]),
        spread([reading.power_w for reading in read]),
        spread([reading.temperature_c for reading in read]),
        tuple(dict.fromkeys(word for words in given for word in words)) if given else None,
        each,
        energy_from,
        spent,
        len(read),
    )


def watch_all(
    comparison: Comparison,
    gpu: Gpu | None,
    seconds: float = WATCHED_S,
    say: Say = lambda line: None,
) -> None:
    """Watch every right candidate that was timed, and keep the result as its `machine`.

    Nothing is done on a CPU or without NVML. Ctrl-C ends it and marks the comparison interrupted.
    A candidate that breaks fails, as it would in a round. With a cold L2 cache no energy is given:
    most of it would be the flushing's.
    """
    if gpu is None or not seconds or comparison.interrupted or monitor(gpu) is None:
        return
    timed = [c for c in comparison.candidates if c.status == "right" and c.samples and not c.once]
    try:
        for candidate in timed:
            say(f"watching {candidate.name} for {seconds:g} s")
            _watch_candidate(candidate, gpu, seconds, comparison.cold_l2)
    except KeyboardInterrupt:
        comparison.interrupted = True


def _watch_candidate(candidate: Candidate, gpu: Gpu, seconds: float, cold_l2: bool) -> None:
    from lenetgpu.measure.rounds import BREAKS, fail

    bench = candidate.bench
    if bench is None:
        return
    images = 0
    try:
        work: Callable[[], Any] = bench.sample
        if not cold_l2:
            work, passes = bench.burst(_BURST_MS)
            images = passes * bench.scaled_from
        candidate.machine = watch(work, images, gpu, seconds)
    except BREAKS as error:
        fail(candidate, error)


def watch_steps(
    rows: list[StepTiming], pipeline: Pipeline, images: Any, gpu: Gpu, seconds: float = WATCHED_S
) -> None:
    """Watch every step of `pipeline` alone on its true input, and keep it as its row's `machine`.

    `images` lie on the plan's device; the first chunk of them is passed. Each step is launched
    again and again from its own input into its own output before the next one runs. A stage on the
    CPU is not watched. Ctrl-C is raised; rows watched until then keep their machine.
    """
    if monitor(gpu) is None:
        return
    part = images[: pipeline.chunk]
    current, states = part, iter(rows)

    def observe(step: Step, output: Any) -> None:
        nonlocal current
        shape = physical_shape(step.reads[0], len(part), step.reads[1])
        row, x, current = next(states), current.reshape(shape), output
        if step.mounted is not None and not step.mounted.on_gpu:
            return
        work = partial(step.run, x, output)
        once = cpu_ms(partial(gpu_ms, work))
        times = max(1, min(_MOST_LAUNCHES, int(_STEP_SAMPLE_MS / max(once, 1e-4))))
        row.machine = watch(partial(gpu_ms, work, times), times * len(part), gpu, seconds)

    pipeline.run(part, observe)
