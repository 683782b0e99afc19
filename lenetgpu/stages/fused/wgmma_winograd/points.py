"""Winograd F(4,5) at points whose transforms fp16 holds exactly: 0, +-9/16, +-1, +-2, infinity.

Lavin & Gray, arXiv 1509.09308. Points lie in the order in which the kernel multiplies them.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

OUTPUTS, TAPS = 4, 5
POINTS = OUTPUTS + TAPS - 1
_PAIRS = (Fraction(9, 16), Fraction(1), Fraction(2))
FINITE = (Fraction(0), *(sign * point for point in _PAIRS for sign in (1, -1)))
"""In the kernel's order, infinity between the first and the second."""


def _with_infinity(rows: list[list[Fraction]], last: list[Fraction]) -> Array:
    import numpy as np

    return np.array([[float(x) for x in row] for row in (rows[0], last, *rows[1:])])


def filter_transform() -> Array:
    """(8, 5) float64: a 5-tap filter at the points."""
    rows = []
    for point in FINITE:
        scale = prod((point - other for other in FINITE if other != point), start=Fraction(1))
        rows.append([point**tap / scale for tap in range(TAPS)])
    return _with_infinity(rows, [Fraction(tap == TAPS - 1) for tap in range(TAPS)])


def _product(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, that of x**0 first, POINTS of them."""
    found = [Fraction(1)]
    for root in roots:
        found = [
            a - root * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)
        ]
    return found + [Fraction(0)] * (POINTS - len(found))


def input_transform() -> Array:
    """(8, 8) float64: 8 neighbouring inputs at the points."""
    rows = [_product([other for other in FINITE if other != point]) for point in FINITE]
    return _with_infinity(rows, _product(list(FINITE)))


def output_transform() -> Array:
    """(4, 8) float64: 4 neighbouring outputs of the products at the points."""
    rows = [[point**output for output in range(OUTPUTS)] for point in FINITE]
    found: Array = _with_infinity(rows, [Fraction(i == OUTPUTS - 1) for i in range(OUTPUTS)]).T
    return found
