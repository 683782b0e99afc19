"""Pools that return first and write afterwards, from a thread."""

import threading
import time

from .pooled import pool, pooled


def write(x, y, after):
    """The answer, `after` seconds from now."""
    time.sleep(after)
    y[...] = pooled(x)


@pool("late")
def thread(x, y, problem):
    """Starts a thread and does not wait for it."""
    threading.Thread(target=write, args=(x, y, 0.001)).start()


@pool("late")
def rewrites(x, y, problem):
    """Writes the half at once, and all of it a little later."""
    y[: len(y) // 2] = pooled(x[: len(y) // 2])
    threading.Thread(target=write, args=(x, y, 0.002)).start()


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
def waits(x, y, problem):
    """Starts a thread and waits for it."""
    worker = threading.Thread(target=write, args=(x, y, 0))
    worker.start()
    worker.join()
