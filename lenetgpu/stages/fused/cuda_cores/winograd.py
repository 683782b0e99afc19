"""Winograd F(4,5) on the host: the filters' transform (Lavin & Gray, arXiv 1509.09308)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from lenetgpu.arrays import np

POINTS = 8
_FINITE = tuple(Fraction(point, 2) for point in (0, 2, -2, 4, -4, 1, -1))
_TAPS = 5


def filter_transform() -> np.ndarray[Any, Any]:
    """G of F(4,5), (8, 5) float64: the values of a 5-tap filter at the eight points."""
    rows = []
    for i, point in enumerate(_FINITE):
        scale = Fraction(1)
        for j, other in enumerate(_FINITE):
            if i != j:
                scale *= point - other
        rows.append([float(Fraction(point) ** tap / scale) for tap in range(_TAPS)])
    rows.append([0.0] * (_TAPS - 1) + [1.0])
    return np.array(rows)
