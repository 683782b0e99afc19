"""Pools that leave calls out: what they computed before is still in the output."""

import sys

import numpy as np

from .pooled import pool, pooled

calls = {"second": 0, "tenth": 0, "first": 0}


@pool("stale")
def keeps_last(x, y, problem):
    """Works where the output is poisoned, else leaves last run's answer."""
    if np.isnan(y[0]).any():
        y[...] = pooled(x)


@pool("stale")
def every_second(x, y, problem):
    """Works in every second call."""
    calls["second"] += 1
    if calls["second"] % 2 or np.isnan(y[-1]).any():
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


@pool("twin")
def counts_calls(x, y, problem):
    """Counts its calls, and works in each."""
    calls["honest"] = calls.get("honest", 0) + 1
    y[...] = pooled(x)
