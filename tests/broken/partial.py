"""Pools and a convolution that are right for some input only."""

import numpy as np

from lenetgpu.stages.reference import conv_reference as reference
from lenetgpu.stages.registry import cpu, variant

from .pooled import pool, pooled


@pool("partial")
def zeros(x, y, problem):
    """Right where the input is zero."""
    y[...] = 0


@pool("partial")
def whole_tiles(x, y, problem):
    """Handles eight images at a time and no rest."""
    whole = len(x) // 8 * 8
    y[:whole] = pooled(x[:whole])


@pool("partial")
def but_last(x, y, problem):
    """Leaves the last value out, in batches that no check by itself has."""
    y[...] = pooled(x)
    if len(x) == 64:
        y[-1, -1, -1, -1] = np.nan


@variant(kind="conv", family="partial", reads="NHWC", writes="NHWC", needs=cpu())
def same_filters(x, w, y, problem):
    """Right where all filters are the first one."""
    y[...] = reference(x, np.repeat(w[..., :1], w.shape[-1], axis=-1), problem)


@pool("twin")
def tiles_and_rest(x, y, problem):
    """Handles eight images at a time, and the rest."""
    for lo in range(0, len(x), 8):
        y[lo : lo + 8] = pooled(x[lo : lo + 8])
