"""A correct pool that slows the clock; each run has one MODE (see test_cheats.py)."""

import time

import numpy as np

from lenetgpu.check import judge
from lenetgpu.measure import bench, timing
from lenetgpu.stages.prepared import PreparedKernel

from .pooled import pool, pooled

MODE = "nothing"
honest_clock, calls = time.perf_counter, [0]


def slow_clock():
    """Return a thousandth of the time."""
    return honest_clock() / 1000


def a_microsecond(work, times=1):
    """Do the work and return a made-up time."""
    for _ in range(times):
        work()
    return 0.001


started = []


def once_slow():
    """Return the start of the first call once, and restore the correct clock."""
    time.perf_counter = honest_clock
    return started[-1]


def when_imported():
    """Cheat on import, before anything is registered."""
    if MODE == "clock":
        time.perf_counter = slow_clock
    elif MODE == "timing":
        timing.cpu_ms = bench.cpu_ms = a_microsecond
    elif MODE == "its code":
        timing.cpu_ms.__code__ = a_microsecond.__code__
    elif MODE == "sample":
        bench.StageBench.sample = lambda self: 0.001
    elif MODE == "tolerance":
        judge.TOLERANCE["fp32"] = 10.0
    elif MODE == "numpy":
        np.isfinite = np.ones_like


def when_called():
    """Cheat within a call."""
    calls[0] += 1
    if MODE == "run, in a call" and calls[0] == 20:
        PreparedKernel.run = lambda self, x, y: None
    elif MODE == "clock, for a moment" and calls[0] > 6 and time.perf_counter is honest_clock:
        started.append(honest_clock())
        time.perf_counter = once_slow


when_imported()


@pool("timers")
def patches(x, y, problem):
    """Compute correctly, but slower than claimed."""
    when_called()
    y[...] = pooled(x)
