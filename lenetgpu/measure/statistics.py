"""Ratios of times with intervals that a second run falls into, all on logarithms.

A ratio is the median over rounds of log(time / baseline's time of that round): pairing takes out
what a round has in common, the median what interrupts single samples. Its sampling error comes from
a bootstrap over rounds in circular blocks, the widest of several block lengths, since neighbouring
rounds share load and clocks and nobody knows for how long; few rounds are not taken for many by
joining it with the order statistics' interval, which assumes no distribution. A second run errs as
the first did, independently, so that its median lies within sqrt(2) of that error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SYSTEMATIC = 0.01
"""What two processes may differ by for no reason that one process can see (placement, clocks)."""
MARGIN = 0.02
"""Ratios within 1 / (1 + MARGIN) and 1 + MARGIN are the same for whoever chooses."""
LEAST = 5
"""Samples of which an interval can be made."""
SINGLE = 0.25
"""What a time of which there is one sample only is taken to be uncertain by."""

_RESAMPLES = 400
_LEAST_BLOCKS = 8
_SECOND_RUN = math.sqrt(2)
_NORMAL_MAD = 1.4826
_OUTLIER = 5.0
_MANY_OUTLIERS = 0.05
_NOISY = 0.10
_DRIFT = 0.03
_TORN = 1.5
_LEAST_TO_WARN = 10


@dataclass(frozen=True)
class Interval:
    """A positive value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """By what share of itself the value may be off, on a logarithmic scale."""
        return math.sqrt(self.high / self.low) - 1

    def widened(self, share: float) -> Interval:
        """The interval with a factor of 1 + `share` added on both sides."""
        return Interval(self.value, self.low / (1 + share), self.high * (1 + share))

    def verdict(self) -> str:
        """What a ratio of times says of a candidate.

        `faster` or `slower` where the whole interval says so, `same` where it lies within MARGIN,
        else `undecided`.
        """
        if self.high < 1:
            return "faster"
        if self.low > 1:
            return "slower"
        within = self.low >= 1 / (1 + MARGIN) and self.high <= 1 + MARGIN
        return "same" if within else "undecided"


def _median(ordered: Sequence[float]) -> float:
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def median_interval(samples: Sequence[float]) -> Interval:
    """Median with its distribution-free 95 % interval from order statistics (binomial)."""
    ordered = sorted(samples)
    n = len(ordered)
    below = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return Interval(_median(ordered), ordered[below], ordered[n - 1 - below])


def _student(freedom: float) -> float:
    """Student's 97.5 % quantile, by Cornish and Fisher's expansion: within 0.2 % from 6 on."""
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _bootstrap(logs: Any, block: int) -> float:
    """Half the 95 % interval of the median of `logs`, by medians of resampled circular blocks.

    Their spread is known as well as there are blocks, hence Student's quantile.
    """
    import numpy as np

    n = len(logs)
    blocks = -(-n // block)
    starts = np.random.default_rng(n).integers(0, n, (_RESAMPLES, blocks, 1))
    picked = ((starts + np.arange(block)) % n).reshape(_RESAMPLES, -1)[:, :n]
    spread = float(np.median(logs[picked], axis=1).std())
    return _student(blocks - 1) * spread * math.sqrt(blocks / (blocks - 1))


def _block_lengths(n: int) -> list[int]:
    """1, the cube root's order that theory asks for, and longer ones while blocks are enough."""
    wanted = (1, math.ceil(n ** (1 / 3)), math.ceil(math.sqrt(n)), n // _LEAST_BLOCKS)
    return sorted({length for length in wanted if 1 <= length <= n // _LEAST_BLOCKS})


def second_run_interval(samples: Sequence[float]) -> Interval:
    """Median of positive, at least one, samples with the interval that holds a second run's median.

    The second run takes as many samples; what differs between processes is not in it (`widened`).
    """
    import numpy as np

    logs = np.log(np.asarray(samples, np.float64))
    by_order = median_interval(logs.tolist())
    middle = by_order.value
    either = max((_bootstrap(logs, block) for block in _block_lengths(len(logs))), default=0.0)
    below = max(either, middle - by_order.low)
    above = max(either, by_order.high - middle)
    return Interval(
        math.exp(middle),
        math.exp(middle - _SECOND_RUN * below),
        math.exp(middle + _SECOND_RUN * above),
    )


def time_interval(samples: Sequence[float]) -> Interval:
    """`second_run_interval`; of fewer than LEAST samples as uncertain as one is."""
    interval = second_run_interval(samples)
    return interval if len(samples) >= LEAST else interval.widened(SINGLE)


def ratio_interval(samples: Sequence[float], base: Sequence[float], drift: float = 0.0) -> Interval:
    """Median of the rounds' ratios samples[i] / base[i], with the interval for a second run.

    It is widened by SYSTEMATIC, or by `drift` where the baseline differed more from itself.
    """
    ratios = [a / b for a, b in zip(samples, base, strict=False)]
    return second_run_interval(ratios).widened(max(SYSTEMATIC, drift))


def single_ratio(time: float, base: float, drift: float = 0.0) -> Interval:
    """Ratio of two times of which one was sampled once."""
    value = time / base
    return Interval(value, value, value).widened(max(SINGLE, drift))


def warnings(samples: Sequence[float]) -> list[str]:
    """What is odd about a candidate's times, in a clause each; nothing of fewer than ten.

    A slow first sample, outliers (further from the median than five robust standard deviations, on
    logarithms), drift between the first and the last third, noise, and two kinds of sample.
    """
    n = len(samples)
    if n < _LEAST_TO_WARN:
        return []
    logs = [math.log(sample) for sample in samples]
    middle = _median(sorted(logs))
    spread = _NORMAL_MAD * _median(sorted(abs(value - middle) for value in logs))
    far = [abs(value - middle) > max(_OUTLIER * spread, _DRIFT) for value in logs]
    begun, noise = math.exp(logs[0] - middle), math.expm1(spread)
    first, last = median_interval(logs[: n // 3]), median_interval(logs[-(n // 3) :])
    moved = math.expm1(last.value - first.value)
    apart = last.low > first.high or last.high < first.low
    drifts = apart and abs(last.value - first.value) >= math.log1p(_DRIFT)
    longer = "longer" if moved > 0 else "less"
    torn = math.exp(middle) / sorted(samples)[math.floor(0.05 * (n - 1))]
    found = {
        f"the first sample took {begun:.2g} times the median": far[0] and begun > 1 + _NOISY,
        f"{sum(far)} of {n} samples are outliers": sum(far) > _MANY_OUTLIERS * n,
        f"samples spread by {noise:.0%}": noise > _NOISY,
        f"drift: the last third took {abs(moved):.1%} {longer} than the first": drifts,
        f"the median is {torn:.3g} times the 5th percentile": torn > _TORN,
    }
    return [clause for clause, odd in found.items() if odd]
