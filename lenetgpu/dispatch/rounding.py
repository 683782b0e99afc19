"""Predicted rounding errors of fp32 Winograd and of sequential fp32 sums.

Errors are root mean squares over that of the outputs, for zero-mean data. The error of a sequential
sum of n products is STEP sqrt(n / 2): rounding k is off by STEP sqrt(k).
"""

from functools import cache
from math import ceil, log, sqrt

from lenetgpu.arrays import np
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tuned import winograd
from lenetgpu.stages.conv.tuned.product import Product

# Rms error of one rounding to fp32, 2.53e-8: the width of a last digit over sqrt(12), averaged over
# log-uniform mantissas.
STEP = 2**-23 / sqrt(12) * sqrt(3 / (8 * log(2)))
# Roundings that both transforms add to half the length of a sum, fitted to 60 runs of F2 and F4 on
# an H100: predictions are off by 2.1 % (root mean square), at most 4.9 % too low, 10.8 % too high.
TRANSFORMS = 7.0
MARGIN = 1.04  # factor applied to a prediction before it is compared


def _mean_inside(size: int, side: int, pad: int) -> float:
    """Return the mean number of filter elements inside the image along a side, by element."""
    starts = range(-pad, size + pad - side + 1)
    inside = [min(start + side, size) - max(start, 0) for start in starts]
    return sum(count**2 for count in inside) / sum(inside)


def sequential(problem: Conv) -> float:
    """Return the error of sequential fp32 sums, for square filters of stride 1."""
    side, pad = problem.R, problem.pad
    products = problem.C * _mean_inside(problem.H, side, pad) * _mean_inside(problem.W, side, pad)
    return STEP * sqrt(products / 2)


@cache
def _powers(outputs: int, side: int) -> tuple[float, ...]:
    """Return each output's power along a side of a tile, over that of a direct sum."""
    to_output, from_filter, from_input = (
        np.array(matrix, float) ** 2 for matrix in winograd.transforms(outputs, side)
    )
    return tuple((to_output @ (from_filter.sum(1) * from_input.sum(1)) / side).tolist())


def longest(product: Product, channels: int) -> int:
    """Return the number of roundings from a sum's first product to the output of `product`."""
    parts = product.split * product.tile.warps_k
    chunks = ceil(channels / product.tile.bk)
    row = min(ceil(channels / parts), ceil(chunks / product.split) * product.tile.bk)
    bound = product.sum_rows
    if 0 < bound < row:
        row = bound + ceil(row / bound)
    return row + parts - 1


def of_winograd(product: Product, problem: Conv, outputs: int) -> float:
    """Return the error of tiles of `outputs` each way, with `product` between the transforms."""
    powers, growth = _powers(outputs, problem.R), 1.0  # growth of the sums' error in the outputs
    for count in (problem.OH, problem.OW):
        growth *= sum(powers[y % outputs] for y in range(count)) / count
    return STEP * sqrt(growth * (TRANSFORMS + longest(product, problem.C) / 2))
