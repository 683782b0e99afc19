"""Variants with correct outputs that write to memory they must not."""

import numpy as np

from lenetgpu.stages.registry import cpu, variant

from .pooled import pool, pooled


@pool("writes")
def its_input(x, y, problem):
    """Apply the ReLU in place, in the input."""
    np.maximum(x, 0, out=x)
    y[...] = pooled(x)


def beside(y, first):
    """Return the float32 just before `y` if `first`, else the one just after it."""
    import ctypes

    at = y.ctypes.data + (-4 if first else y.nbytes)
    return ctypes.c_float.from_address(at)


@pool("writes")
def past_its_output(x, y, problem):
    """Store one float past the end of the whole output."""
    y[...] = pooled(x)
    beside(y, first=False).value = 1.0


@pool("writes")
def before_its_output(x, y, problem):
    """Store one float before the output."""
    y[...] = pooled(x)
    beside(y, first=True).value = 1.0


@variant(kind="fc", family="writes", reads="NC", writes="NC", needs=cpu())
def its_weights(x, w, y, problem):
    """Flip the sign of the weights after use."""
    y[...] = x @ w
    if problem.relu:
        np.maximum(y, 0, out=y)
    w *= -1


@pool("twin")
def into_its_own(x, y, problem):
    """Apply the ReLU to a copy."""
    own = x.copy()
    np.maximum(own, 0, out=own)
    y[...] = pooled(own)
