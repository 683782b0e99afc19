"""Convolutions that cheat a timer of repeated calls, and an honest one."""

import threading
import time

import numpy as np

from lenetgpu.stages.reference import conv_reference as reference
from lenetgpu.stages.registry import cpu, variant

cache, calls = {}, {"second": 0}


def conv(family):
    """Register a convolution of `family` in NHWC on a CPU."""
    return variant(kind="conv", family=family, reads="NHWC", writes="NHWC", needs=cpu())


@conv("convs")
def by_address(x, w, y, problem):
    """Cache outputs by the addresses of input and filters."""
    key = (x.ctypes.data, w.ctypes.data)
    if key not in cache:
        cache[key] = reference(x, w, problem)
    y[...] = cache[key]


@conv("convs")
def every_third(x, w, y, problem):
    """Compute in every third call, and if the output is poisoned."""
    calls["second"] += 1
    if calls["second"] % 3 == 0 or np.isnan(y[0]).any():
        y[...] = reference(x, w, problem)


def write(x, w, y, problem):
    """Write the correct output after a millisecond."""
    time.sleep(0.001)
    y[...] = reference(x, w, problem)


@conv("convs")
def thread(x, w, y, problem):
    """Start a thread without waiting for it."""
    threading.Thread(target=write, args=(x, w, y, problem)).start()


@conv("twin")
def plain(x, w, y, problem):
    """Compute the reference output."""
    y[...] = reference(x, w, problem)
