"""What Winograd's fp32 errs by rounding, and what a row of fp32 sums does.

Errors are root mean squares over that of the outputs, for data of no mean. A sum of n products in a
row is rounded n times, after k of them by STEP sqrt(k): it errs STEP sqrt(n / 2).
"""

from __future__ import annotations

from functools import cache
from math import ceil, log, sqrt

from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tuned import winograd
from lenetgpu.stages.conv.tuned.product import Product

STEP = 2**-23 / sqrt(12) * sqrt(3 / (8 * log(2)))
"""Of one rounding to fp32: 2.53e-8, a digit's width over sqrt(12) by how numbers begin."""
TRANSFORMS = 7.0
"""What both transforms add to half the length of a sum, fitted to 60 runs of F2 and F4 on an H100.

With it 3x3 and 5x5, 3 to 512 channels, 1 and 64 images are predicted to 2.1 % (root mean square),
4.9 % too low and 10.8 % too high at most.
"""
MARGIN = 1.04
"""What a prediction is multiplied by before it is compared."""


def _mean_taps(size: int, taps: int, pad: int) -> float:
    """Taps one way that are not in the padding, an output's as often as it has some."""
    starts = range(-pad, size + pad - taps + 1)
    inside = [min(start + taps, size) - max(start, 0) for start in starts]
    return sum(count**2 for count in inside) / sum(inside)


def in_a_row(problem: Conv) -> float:
    """The error of fp32 products that are added one after the other; zeros of padding are none.

    1.79e-8 sqrt(depth) without padding, which is what cuDNN's errs to the digit where it does so.
    For square filters of stride 1.
    """
    taps, pad = problem.R, problem.pad
    products = problem.C * _mean_taps(problem.H, taps, pad) * _mean_taps(problem.W, taps, pad)
    return STEP * sqrt(products / 2)


@cache
def _powers(outputs: int, taps: int) -> tuple[float, ...]:
    """How many times a sum's power each output of a tile has, one way, over that of its taps.

    The output is A^T of sums whose power is that of G's row by B^T's.
    """
    to_output, from_filter, from_input = winograd.transforms(outputs, taps)
    sums = [
        float(sum(g**2 for g in filters) * sum(b**2 for b in inputs))
        for filters, inputs in zip(from_filter, from_input, strict=True)
    ]
    return tuple(
        sum(float(a**2) * power for a, power in zip(row, sums, strict=True)) / taps
        for row in to_output
    )


def _grown(problem: Conv, outputs: int) -> float:
    """How many times the error of its sums the outputs have: by points, and where tiles end."""
    powers, grown = _powers(outputs, problem.R), 1.0
    for count in (problem.OH, problem.OW):
        grown *= sum(powers[y % outputs] for y in range(count)) / count
    return sqrt(grown)


def longest(product: Product, channels: int) -> int:
    """Roundings on the way of the first product of a sum to the output of a `product`."""
    parts = product.split * product.tile.warps_k
    chunks = ceil(channels / product.tile.bk)
    row = min(ceil(channels / parts), ceil(chunks / product.split) * product.tile.bk)
    bound = product.sum_rows
    if 0 < bound < row:
        row = bound + ceil(row / bound)
    return row + parts - 1


def of_winograd(product: Product, problem: Conv, outputs: int) -> float:
    """The error of tiles of `outputs` each way, with `product` between the transforms."""
    roundings = TRANSFORMS + longest(product, problem.C) / 2
    return STEP * _grown(problem, outputs) * sqrt(roundings)
