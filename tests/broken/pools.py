"""Pools that leave calls out, compute once and remember, or return first and write afterwards."""

import sys
import threading
import time
from collections import Counter

import numpy as np

from .pooled import pool, pooled

calls, by_place, by_size, by_start = Counter(), {}, {}, {}


@pool("stale")
def keeps_last(x, y, problem):
    """Works where the output is poisoned, else leaves last run's answer."""
    if np.isnan(y[0]).any():
        y[...] = pooled(x)


@pool("stale")
def every_tenth(x, y, problem):
    """Works in every tenth call once it was checked."""
    calls["tenth"] += 1
    if calls["tenth"] < 20 or calls["tenth"] % 10 == 0:
        y[...] = pooled(x)


@pool("stale")
def first_calls(x, y, problem):
    """Works while it is likely to be checked."""
    calls["first"] += 1
    if calls["first"] <= 30:
        y[...] = pooled(x)


def callers():
    """Names of the functions that are running."""
    frame = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


@pool("stale")
def unless_timed(x, y, problem):
    """Looks at who calls, and works unless it is timed."""
    if "sample" not in callers():
        y[...] = pooled(x)


@pool("cached")
def by_address(x, y, problem):
    """Remembers by the address and size of the input."""
    key = (x.ctypes.data, x.shape)
    if key not in by_place:
        by_place[key] = pooled(x)
    y[...] = by_place[key]


@pool("cached")
def by_shape(x, y, problem):
    """Remembers by the shape alone, once it was checked on that shape three times."""
    seen = by_size.setdefault(x.shape, [])
    if len(seen) < 3:
        seen.append(pooled(x))
    y[...] = seen[-1]


@pool("cached")
def by_first_image(x, y, problem):
    """Remembers by all of the first image and of the last."""
    key = (x[0].tobytes(), x[-1].tobytes(), len(x))
    if key not in by_start:
        by_start[key] = pooled(x)
    y[...] = by_start[key]


def write(x, y, after):
    """The answer, `after` seconds from now."""
    time.sleep(after)
    y[...] = pooled(x)


@pool("late")
def thread(x, y, problem):
    """Starts a thread and does not wait for it."""
    threading.Thread(target=write, args=(x, y, 0.001)).start()


def spoil(y):
    """Another answer, after a moment."""
    time.sleep(0.001)
    y[...] = -1


@pool("late")
def afterwards(x, y, problem):
    """Right at once, and something else a moment later."""
    y[...] = pooled(x)
    threading.Thread(target=spoil, args=(y,)).start()


@pool("twin")
def keeps_scratch(x, y, problem):
    """Counts its calls, and keeps memory by shape, which each call fills."""
    calls["honest"] += 1
    scratch = by_size.setdefault(("scratch", x.shape), np.empty_like(x))
    np.maximum(x, 0, out=scratch)
    y[...] = pooled(scratch)


@pool("twin")
def waits(x, y, problem):
    """Starts a thread and waits for it."""
    worker = threading.Thread(target=write, args=(x, y, 0))
    worker.start()
    worker.join()
