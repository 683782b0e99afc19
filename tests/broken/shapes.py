"""Convolutions that take every shape and get one thing of it wrong; and one that gets none."""

import numpy as np

from lenetgpu.stages.registry import cpu, variant


def shape(family):
    """Registers a convolution of `family` for everything that one can want."""
    takes = "strides pads dilation groups"
    return variant(kind="conv", family=family, reads="NHWC", writes="NHWC", needs=cpu(),
                   takes=takes)  # fmt: skip


def sums(x, w, y, problem, step=None, far=None, turned=False, shift=1):
    """By slices; `step`, `far`: in place of the problem's, `shift`: of channels from a group on."""
    (down, across), (far, wide) = step or problem.step, far or problem.dilation
    above, left, below, right = problem.around
    if turned:
        above, left, below, right = below, right, above, left
    room = ((0, 0), (above, below + 99), (left, right + 99), (0, 0))
    x, (channels, maps) = np.pad(x.astype("d"), room), problem.each
    y[...] = 0
    for m in range(problem.M):
        first = shift * (m // maps) * channels
        for r, s, c in np.ndindex(problem.R, problem.S, channels):
            seen = x[:, r * far :: down, s * wide :: across, first + c]
            y[..., m] += seen[:, : problem.OH, : problem.OW] * w[r, s, c, m]


@shape("shapes")
def first_group(x, w, y, problem):
    """Every map from the first group's channels."""
    sums(x, w, y, problem, shift=0)


@shape("shapes")
def swapped_pads(x, w, y, problem):
    """What pads above pads below, what pads left pads right."""
    sums(x, w, y, problem, turned=True)


@shape("shapes")
def dilated_rows(x, w, y, problem):
    """Columns of taps side by side."""
    sums(x, w, y, problem, far=(problem.dilation[0], 1))


@shape("shapes")
def one_stride(x, w, y, problem):
    """Rows and columns by the rows' stride."""
    sums(x, w, y, problem, step=(problem.step[0],) * 2)


@shape("twin")
def plain_loops(x, w, y, problem):
    """As it is to be."""
    sums(x, w, y, problem)
