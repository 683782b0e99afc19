"""GPU state (clocks, power, temperature, throttling) of candidates and steps, after timing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from threading import Event, Thread
from typing import Any

from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.nvml import MachineState, Monitor, Reading, monitor, spread
from lenetgpu.layouts import physical_shape
from lenetgpu.measure.rounds import BREAKS, Comparison, fail
from lenetgpu.measure.timing import StepTiming, cpu_ms, gpu_ms
from lenetgpu.pipeline import Pipeline, Step

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
        def read() -> None:
            done.wait(_EVERY_S)
            latest.append(seen.read())

        latest: list[Reading] = []
        while not done.is_set():
            found.append((cpu_ms(read) / 1e3, latest.pop()))

    thread = Thread(target=watch, name="lenetgpu-watch", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


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

    `images` is the number per call, or 0 if energy per image is meaningless. It is left out below
    WATCHED_S seconds, which its counter needs. Returns None if NVML is missing.
    """
    seen = monitor(gpu)
    if seen is None:
        return None
    _back_to_back(sample, min(_WARM_S, seconds))
    with _readings(seen) as readings:
        before = seen.energy_j()
        count, spent = _back_to_back(sample, seconds)
        after = seen.energy_j()
    powers = [(s, reading.power_w) for s, reading in readings if reading.power_w is not None]
    joules, source, each = None, None, None
    if before is not None and after is not None and after > before:
        joules, source = after - before, "counter"
    elif total := sum(s for s, _ in powers):  # of the mean over time
        joules, source = sum(s * watts for s, watts in powers) / total * spent, "power"
    if joules is not None and images and seconds >= WATCHED_S:
        each = 1e6 * joules / (count * images)
    read = [reading for _, reading in readings]
    known = [reading.throttle for reading in read if reading.throttle is not None]
    throttle = tuple(dict.fromkeys(chain.from_iterable(known))) if known else None
    mhz, watts, celsius = (
        spread([getattr(reading, name) for reading in read])
        for name in ("sm_mhz", "power_w", "temperature_c")
    )
    source = None if each is None else source
    return MachineState(mhz, watts, celsius, throttle, each, source, spent, len(read))


def watch_all(
    comparison: Comparison,
    gpu: Gpu | None,
    seconds: float = WATCHED_S,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Watch every correct and timed candidate, and store the result as its `machine`."""
    if gpu is None or not seconds or comparison.interrupted or monitor(gpu) is None:
        return
    timed = [c for c in comparison.candidates if c.status == "right" and c.samples and not c.once]
    for candidate in timed:
        say(f"watching {candidate.name} for {seconds:g} s")
        try:
            bench = candidate.bench
            assert bench is not None, "right, so it is built"
            # no energy with a cold L2 cache: most would be the flushing's
            work, passes = (bench.sample, 0) if comparison.cold_l2 else bench.burst(_BURST_MS)
            candidate.machine = watch(work, passes * bench.scaled_from, gpu, seconds)
        except KeyboardInterrupt:
            comparison.interrupted = True
            return
        except BREAKS as error:
            fail(candidate, error)


def watch_steps(
    rows: list[StepTiming], pipeline: Pipeline, images: Any, gpu: Gpu, seconds: float = WATCHED_S
) -> None:
    """Watch every step on the GPU alone on its real input, as `machine` of its row."""
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
