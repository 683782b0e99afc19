"""GPU state (clocks, power, temperature, throttling) while a candidate or a step runs.

Each is watched for two seconds after its timing, so that no reading disturbs a timed sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.nvml import MachineState, Monitor, Reading, Spread, monitor, spread
from lenetgpu.layouts import physical_shape
from lenetgpu.measure.timing import StepTiming, cpu_ms, gpu_ms
from lenetgpu.pipeline import Pipeline, Step

if TYPE_CHECKING:
    from lenetgpu.measure.bench import Bench
    from lenetgpu.measure.rounds import Comparison

WATCHED_S = 2.0
_WARM_S = 0.2
_EVERY_S = 0.02
_STEP_SAMPLE_MS = 5.0
_MOST_LAUNCHES = 1000
_BURST_MS = 20.0


@contextmanager
def _readings(seen: Monitor) -> Iterator[list[tuple[float, Reading]]]:
    """Read the monitor in a thread during the block; each reading has the seconds it stands for."""
    done, found = Event(), list[tuple[float, Reading]]()

    def watch() -> None:
        latest: list[Reading] = []

        def look() -> None:
            done.wait(_EVERY_S)
            latest.append(seen.read())

        while not done.is_set():
            took = cpu_ms(look)
            found.append((took / 1e3, latest.pop()))

    thread = Thread(target=watch, name="lenetgpu-watch", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _mean_power_w(readings: list[tuple[float, Reading]]) -> float | None:
    """Return the time-weighted mean power of the readings that have one, or None."""
    known = [(took, one.power_w) for took, one in readings if one.power_w is not None]
    total = sum(took for took, _ in known)
    return sum(took * watts for took, watts in known) / total if total else None


def _back_to_back(sample: Callable[[], Any], seconds: float) -> tuple[int, float]:
    """Run samples back to back for at least `seconds`; return their number and total seconds."""
    count, spent = 0, 0.0
    while spent < seconds:
        spent += cpu_ms(sample) / 1e3
        count += 1
    return count, spent


def watch(
    sample: Callable[[], Any], images: int, gpu: Gpu, seconds: float = WATCHED_S
) -> MachineState | None:
    """Run `sample` back to back for at least `seconds` on `gpu` and return the GPU's state.

    `images` is the number of images per call of `sample`, or 0 if energy per image is meaningless.
    Energy per image is left out below WATCHED_S seconds, which its counter needs. Returns None if
    NVML is missing. An exception from `sample`, Ctrl-C included, ends the watching and propagates.
    """
    seen = monitor(gpu)
    if seen is None:
        return None
    _back_to_back(sample, min(_WARM_S, seconds))
    with _readings(seen) as readings:
        before = seen.energy_j()
        count, spent = _back_to_back(sample, seconds)
        after = seen.energy_j()
    joules, energy_from, each = None, None, None
    if before is not None and after is not None and after > before:
        joules, energy_from = after - before, "counter"
    elif (power := _mean_power_w(readings)) is not None:
        joules, energy_from = power * spent, "power"
    if joules is not None and images and seconds >= WATCHED_S:
        each = 1e6 * joules / (count * images)
    read = [reading for _, reading in readings]
    given = [reading.throttle for reading in read if reading.throttle is not None]
    throttle = tuple(dict.fromkeys(chain.from_iterable(given))) if given else None

    def of(name: str) -> Spread | None:
        return spread([getattr(one, name) for one in read])

    clock, watts, celsius = of("sm_mhz"), of("power_w"), of("temperature_c")
    energy_from = None if each is None else energy_from
    return MachineState(clock, watts, celsius, throttle, each, energy_from, spent, len(read))


def watch_all(
    comparison: Comparison,
    gpu: Gpu | None,
    seconds: float = WATCHED_S,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Watch every correct and timed candidate, and store the result as its `machine`.

    Does nothing on a CPU or without NVML. Ctrl-C ends it and marks the comparison interrupted.
    A candidate that raises fails, as it would in a round. With a cold L2 cache no energy is
    given, because the flushing would account for most of it.
    """
    from lenetgpu.measure.rounds import BREAKS, fail

    if gpu is None or not seconds or comparison.interrupted or monitor(gpu) is None:
        return
    timed = [c for c in comparison.candidates if c.status == "right" and c.samples and not c.once]
    for candidate in timed:
        say(f"watching {candidate.name} for {seconds:g} s")
        try:
            candidate.machine = _watched(candidate.bench, gpu, seconds, comparison.cold_l2)
        except KeyboardInterrupt:
            comparison.interrupted = True
            return
        except BREAKS as error:
            fail(candidate, error)


def _watched(bench: Bench | None, gpu: Gpu, seconds: float, cold_l2: bool) -> MachineState | None:
    assert bench is not None, "right, so it is built"
    if cold_l2:
        return watch(bench.sample, 0, gpu, seconds)
    work, passes = bench.burst(_BURST_MS)
    return watch(work, passes * bench.scaled_from, gpu, seconds)


def watch_steps(
    rows: list[StepTiming], pipeline: Pipeline, images: Any, gpu: Gpu, seconds: float = WATCHED_S
) -> None:
    """Watch every step of `pipeline` alone on its real input, as `machine` of its row.

    `images` are on the plan's device; only their first chunk is used. Each step is launched
    repeatedly from its own input into its own output before the next one runs. A stage on the
    CPU is not watched. Ctrl-C propagates; rows watched before it retain their machine.
    """
    if monitor(gpu) is None:
        return
    part = images[: pipeline.chunk]
    current, states = part, iter(rows)

    def observe(step: Step, output: Any) -> None:
        nonlocal current
        shape = physical_shape(step.reads[0], len(part), step.reads[1])
        row, x, current = next(states), current.reshape(shape), output
        if step.prepared is not None and not step.prepared.on_gpu:
            return
        work = partial(step.run, x, output)
        once = cpu_ms(partial(gpu_ms, work))
        times = max(1, min(_MOST_LAUNCHES, int(_STEP_SAMPLE_MS / max(once, 1e-4))))
        row.machine = watch(partial(gpu_ms, work, times), times * len(part), gpu, seconds)

    pipeline.run(part, observe)
