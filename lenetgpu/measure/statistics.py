"""Medians and ratios with intervals that a second run falls into."""

from __future__ import annotations

import math
from dataclasses import dataclass

SYSTEMATIC = 0.01
"""What two processes may differ by for no reason that one process can see (placement, clocks)."""


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval's width over the value."""
        return (self.high - self.low) / 2 / self.value if self.value else math.inf

    def widened(self, share: float) -> Interval:
        """The interval with `share` of its value added on both sides."""
        extra = share * abs(self.value)
        return Interval(self.value, self.low - extra, self.high + extra)

    def verdict(self) -> str:
        """What a ratio of times says of a candidate: faster, slower or same."""
        if self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else "same"


def median_interval(samples: list[float]) -> Interval:
    """Median with its distribution-free 95 % interval from order statistics (binomial)."""
    ordered = sorted(samples)
    n = len(ordered)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    below = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return Interval(middle, ordered[below], ordered[n - 1 - below])


def ratio_interval(samples: list[float], base: list[float], extra: float = 0.0) -> Interval:
    """Median of the rounds' ratios samples[i] / base[i], widened by SYSTEMATIC and `extra`."""
    pairs = list(zip(samples, base, strict=False))
    return median_interval([a / b for a, b in pairs]).widened(SYSTEMATIC + extra)
