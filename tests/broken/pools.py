"""Pools that skip calls, cache outputs, or return first and write afterwards."""

import sys
import threading
import time
from collections import Counter

import numpy as np

from .pooled import pool, pooled

calls, by_place, by_size, by_start = Counter(), {}, {}, {}


@pool("stale")
def keeps_last(x, y, problem):
    """Compute if the output is poisoned, else leave the previous output."""
    if np.isnan(y[0]).any():
        y[...] = pooled(x)


@pool("stale")
def every_tenth(x, y, problem):
    """Compute in every tenth call after the check."""
    calls["tenth"] += 1
    if calls["tenth"] < 20 or calls["tenth"] % 10 == 0:
        y[...] = pooled(x)


@pool("stale")
def first_calls(x, y, problem):
    """Compute only while a check is likely."""
    calls["first"] += 1
    if calls["first"] <= 30:
        y[...] = pooled(x)


def callers():
    """Yield the names of the functions on the stack."""
    frame = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


@pool("stale")
def unless_timed(x, y, problem):
    """Inspect the stack, and compute only if not timed."""
    if "sample" not in callers():
        y[...] = pooled(x)


@pool("cached")
def by_address(x, y, problem):
    """Cache outputs by the address and shape of the input."""
    key = (x.ctypes.data, x.shape)
    if key not in by_place:
        by_place[key] = pooled(x)
    y[...] = by_place[key]


@pool("cached")
def by_shape(x, y, problem):
    """Cache the output by shape alone, after three computed calls on that shape."""
    seen = by_size.setdefault(x.shape, [])
    if len(seen) < 3:
        seen.append(pooled(x))
    y[...] = seen[-1]


@pool("cached")
def by_first_image(x, y, problem):
    """Cache outputs by the contents of the first and the last image."""
    key = (x[0].tobytes(), x[-1].tobytes(), len(x))
    if key not in by_start:
        by_start[key] = pooled(x)
    y[...] = by_start[key]


def write(x, y, after):
    """Write the correct output after `after` seconds."""
    time.sleep(after)
    y[...] = pooled(x)


@pool("late")
def thread(x, y, problem):
    """Start a thread without waiting for it."""
    threading.Thread(target=write, args=(x, y, 0.001)).start()


def spoil(y):
    """Write a wrong output after a moment."""
    time.sleep(0.001)
    y[...] = -1


@pool("late")
def afterwards(x, y, problem):
    """Write the correct output at once, and spoil it a moment later."""
    y[...] = pooled(x)
    threading.Thread(target=spoil, args=(y,)).start()


@pool("twin")
def keeps_scratch(x, y, problem):
    """Count calls, and reuse scratch memory by shape, overwritten by each call."""
    calls["honest"] += 1
    scratch = by_size.setdefault(("scratch", x.shape), np.empty_like(x))
    np.maximum(x, 0, out=scratch)
    y[...] = pooled(scratch)


@pool("twin")
def waits(x, y, problem):
    """Start a thread and wait for it."""
    worker = threading.Thread(target=write, args=(x, y, 0))
    worker.start()
    worker.join()
