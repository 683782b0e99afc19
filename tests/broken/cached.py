"""Pools that compute once and remember, by what is quick to compare."""

import numpy as np

from .pooled import pool, pooled

by_place, by_object, by_size, by_start = {}, {}, {}, {}


def kept(cache, key, x):
    """What was computed for `key`, now or before."""
    if key not in cache:
        cache[key] = pooled(x)
    return cache[key]


@pool("cached")
def by_address(x, y, problem):
    """Remembers by the address and size of the input."""
    y[...] = kept(by_place, (x.ctypes.data, x.shape), x)


@pool("cached")
def by_identity(x, y, problem):
    """Remembers by the input's id, as one does who never sees two inputs."""
    y[...] = kept(by_object, (id(x), x.shape), x)


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
    y[...] = kept(by_start, key, x)


@pool("twin")
def keeps_scratch(x, y, problem):
    """Keeps memory by shape, and fills it in each call."""
    scratch = by_size.setdefault(("scratch", x.shape), np.empty_like(x))
    np.maximum(x, 0, out=scratch)
    y[...] = pooled(scratch)
