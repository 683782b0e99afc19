"""Ratios of times on a logarithmic scale, with intervals that predict a second run.

A ratio is the median over rounds of log(time / baseline's time in that round). The sampling error
comes from a bootstrap over rounds in circular blocks, since neighbouring rounds share load and
clocks; the widest result of several block lengths is used. It is combined with the interval of
order statistics, which assumes no distribution, so that few rounds do not look precise. A second
run has an independent error of the same size, so its median lies within sqrt(2) of that error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lenetgpu.arrays import np

# Relative difference between two processes that neither can detect (placement, clocks).
SYSTEMATIC = 0.01
MARGIN = 0.02  # Ratios within 1 / (1 + MARGIN) and 1 + MARGIN count as the same.
LEAST = 5  # samples needed for an interval
SINGLE = 0.25  # assumed relative uncertainty of a time with only one sample
_RESAMPLES = 400
_LEAST_BLOCKS = 8
_SECOND_RUN = math.sqrt(2)
_NORMAL_MAD = 1.4826
_OUTLIER = 5.0
_MANY_OUTLIERS = 0.05
_NOISY = 0.10
_DRIFT = 0.03
_SKEWED = 1.5
_LEAST_TO_WARN = 10


@dataclass(frozen=True)
class Interval:
    """A positive value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Relative uncertainty of the value, on a logarithmic scale."""
        return math.sqrt(self.high / self.low) - 1

    def widened(self, share: float) -> "Interval":
        """Return the interval widened by a factor of 1 + `share` on both sides."""
        return Interval(self.value, self.low / (1 + share), self.high * (1 + share))

    def verdict(self) -> str:
        """Return `faster` or `slower` if the interval excludes 1, `same` if within MARGIN."""
        if self.high < 1:
            return "faster"
        if self.low > 1:
            return "slower"
        return "same" if 1 / (1 + MARGIN) <= self.low <= self.high <= 1 + MARGIN else "undecided"


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the median with its distribution-free 95 % interval by order statistics (binomial)."""
    ordered = sorted(samples)
    n = len(ordered)
    below = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return Interval(median(ordered), ordered[below], ordered[n - 1 - below])


def _student(freedom: float) -> float:
    """Return Student's 97.5 % quantile by Cornish-Fisher expansion, to 0.2 % from 6 degrees."""
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _bootstrap(logs: Any, block: int) -> float:
    """Return the half-width of the median's 95 % interval by a circular block bootstrap."""
    n = len(logs)
    blocks = -(-n // block)
    starts = np.random.default_rng(n).integers(0, n, (_RESAMPLES, blocks, 1))
    picked = ((starts + np.arange(block)) % n).reshape(_RESAMPLES, -1)[:, :n]
    spread = float(np.median(logs[picked], axis=1).std())
    return _student(blocks - 1) * spread * math.sqrt(blocks / (blocks - 1))


def _block_lengths(n: int) -> list[int]:
    """Return block lengths: 1, the cube root that theory suggests, and longer ones."""
    wanted = (1, math.ceil(n ** (1 / 3)), math.ceil(math.sqrt(n)), n // _LEAST_BLOCKS)
    return sorted({length for length in wanted if 1 <= length <= n // _LEAST_BLOCKS})


def second_run_interval(samples: Sequence[float]) -> Interval:
    """Return the median of samples, with an interval for that of a second run in this process."""
    logs = np.log(np.asarray(samples, np.float64))
    by_order = median_interval(logs.tolist())
    middle = by_order.value
    either = max((_bootstrap(logs, block) for block in _block_lengths(len(logs))), default=0.0)
    low = middle - _SECOND_RUN * max(either, middle - by_order.low)
    high = middle + _SECOND_RUN * max(either, by_order.high - middle)
    return Interval(*map(math.exp, (middle, low, high)))


def time_interval(samples: Sequence[float]) -> Interval:
    """Return `second_run_interval`, widened by SINGLE for fewer than LEAST samples."""
    interval = second_run_interval(samples)
    return interval if len(samples) >= LEAST else interval.widened(SINGLE)


def ratio_interval(samples: Sequence[float], base: Sequence[float], drift: float = 0.0) -> Interval:
    """Return the median ratio with a second run's interval, widened by SYSTEMATIC or `drift`."""
    ratios = [a / b for a, b in zip(samples, base, strict=False)]
    return second_run_interval(ratios).widened(max(SYSTEMATIC, drift))


def single_ratio(time: float, base: float, drift: float = 0.0) -> Interval:
    """Return the ratio of two times, at least one of them sampled once."""
    return Interval(*[time / base] * 3).widened(max(SINGLE, drift))


def warnings(samples: Sequence[float]) -> list[str]:
    """Return a clause for each anomaly of a candidate's times; none for fewer than ten samples."""
    n = len(samples)
    if n < _LEAST_TO_WARN:
        return []
    logs = [math.log(sample) for sample in samples]
    middle = median(logs)
    spread = _NORMAL_MAD * median(abs(value - middle) for value in logs)
    far = [abs(value - middle) > max(_OUTLIER * spread, _DRIFT) for value in logs]
    start, noise = math.exp(logs[0] - middle), math.expm1(spread)
    first, last = median_interval(logs[: n // 3]), median_interval(logs[-(n // 3) :])
    moved = math.expm1(last.value - first.value)
    apart = last.low > first.high or last.high < first.low
    drifts = apart and abs(last.value - first.value) >= math.log1p(_DRIFT)
    longer = "longer" if moved > 0 else "less"
    skew = math.exp(middle) / sorted(samples)[math.floor(0.05 * (n - 1))]
    found = {
        f"the first sample took {start:.2g} times the median": far[0] and start > 1 + _NOISY,
        f"{sum(far)} of {n} samples are outliers": sum(far) > _MANY_OUTLIERS * n,
        f"samples spread by {noise:.0%}": noise > _NOISY,
        f"drift: the last third took {abs(moved):.1%} {longer} than the first": drifts,
        f"the median is {skew:.3g} times the 5th percentile": skew > _SKEWED,
    }
    return [clause for clause, odd in found.items() if odd]
