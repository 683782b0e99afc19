"""Convolutions that accept every shape and get one property wrong, and a correct one."""

import numpy as np

from lenetgpu.stages.registry import cpu, variant


def shape(family):
    """Register a convolution of `family` that supports every property."""
    options = "strides pads dilation groups"
    return variant(kind="conv", family=family, reads="NHWC", writes="NHWC", needs=cpu(),
                   options=options)  # fmt: skip


def sums(x, w, y, problem, step=None, far=None, turned=False, shift=1):
    """Compute by slices, with wrong parameters on request.

    `step` and `far` replace the problem's stride and dilation. `turned` swaps the padding of
    opposite sides. `shift` is the factor of each group's channel offset.
    """
    (down, across), (far, wide) = step or problem.step, far or problem.dilation
    above, left, below, right = problem.around
    if turned:
        above, left, below, right = below, right, above, left
    margins = ((0, 0), (above, below + 99), (left, right + 99), (0, 0))
    x, (channels, maps) = np.pad(x.astype("d"), margins), problem.each
    y[...] = 0
    for m in range(problem.M):
        first = shift * (m // maps) * channels
        for r, s, c in np.ndindex(problem.R, problem.S, channels):
            seen = x[:, r * far :: down, s * wide :: across, first + c]
            y[..., m] += seen[:, : problem.OH, : problem.OW] * w[r, s, c, m]


@shape("shapes")
def first_group(x, w, y, problem):
    """Compute every map from the first group's channels."""
    sums(x, w, y, problem, shift=0)


@shape("shapes")
def swapped_pads(x, w, y, problem):
    """Swap the padding above and below, left and right."""
    sums(x, w, y, problem, turned=True)


@shape("shapes")
def dilated_rows(x, w, y, problem):
    """Ignore the dilation of columns."""
    sums(x, w, y, problem, far=(problem.dilation[0], 1))


@shape("shapes")
def one_stride(x, w, y, problem):
    """Use the rows' stride for columns too."""
    sums(x, w, y, problem, step=(problem.step[0],) * 2)


@shape("twin")
def plain_loops(x, w, y, problem):
    """Compute the correct output."""
    sums(x, w, y, problem)
