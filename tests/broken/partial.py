"""Pools and a convolution that are correct for some inputs only."""

import numpy as np

from lenetgpu.stages.reference import conv_reference as reference
from lenetgpu.stages.registry import cpu, variant

from .pooled import pool, pooled


@pool("partial")
def zeros(x, y, problem):
    """Write zeros, which is correct for zero input."""
    y[...] = 0


@pool("partial")
def whole_tiles(x, y, problem):
    """Process eight images at a time, without the rest."""
    whole = len(x) // 8 * 8
    y[:whole] = pooled(x[:whole])


@pool("partial")
def but_last(x, y, problem):
    """Omit the last value of batches of 64, a size that only timed calls use."""
    y[...] = pooled(x)
    if len(x) == 64:
        y[-1, -1, -1, -1] = np.nan


@variant(kind="conv", family="partial", reads="NHWC", writes="NHWC", needs=cpu())
def same_filters(x, w, y, problem):
    """Use the first filter for all maps."""
    y[...] = reference(x, np.repeat(w[..., :1], w.shape[-1], axis=-1), problem)


@pool("twin")
def tiles_and_rest(x, y, problem):
    """Process eight images at a time, and the rest."""
    for lo in range(0, len(x), 8):
        y[lo : lo + 8] = pooled(x[lo : lo + 8])
