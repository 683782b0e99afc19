"""What is compared, and what came of it: candidates, their samples, ratios over a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lenetgpu.check.judge import Checked, Errors
from lenetgpu.gpu.nvml import MachineState
from lenetgpu.measure.bench import Bench
from lenetgpu.measure.statistics import (
    LEAST,
    Interval,
    median_interval,
    ratio_interval,
    single_ratio,
)

LEAST_ROUNDS = LEAST


@dataclass
class Candidate:
    """A named way to do the work; `build` makes its bench, which may not fit in memory.

    `status`: waiting; then right, wrong, failed (it could not be run) or skipped (no memory or
    time for it); or, from the start, refused, with a sentence in `note`. `single`: too slow for
    rounds in the time allowed; `warmup`: untimed runs before each sample. `bits`: "same" or
    "others" where its runs were held against one another. `errors`: on the images that all had.
    """

    name: str
    build: Callable[[], Bench]
    precision: str = "fp32"
    status: str = "waiting"
    note: str = ""
    bench: Bench | None = None
    checked: Checked | None = None
    samples: list[float] = field(default_factory=list)
    single: bool = False
    warmup: int = 0
    machine: MachineState | None = None
    bits: str | None = None
    errors: Errors | None = None

    @property
    def once(self) -> bool:
        """Whether it is worth a single sample only."""
        return self.single or (self.bench is not None and self.bench.once)


@dataclass
class Comparison:
    """What was compared, on what, and what came of it.

    `again` is the control: the baseline, built and sampled a second time; None where it could not
    be.
    """

    what: str
    reference: str
    candidates: list[Candidate]
    again: Candidate | None = None
    cold_l2: bool = False
    interrupted: bool = False

    @property
    def wrong(self) -> list[Candidate]:
        """Candidates that failed their check, or to run at all."""
        return [c for c in self.candidates if c.status in ("wrong", "failed")]

    @property
    def rounds(self) -> int:
        """Samples of whoever has most."""
        return max((len(c.samples) for c in self.candidates), default=0)

    @property
    def base(self) -> Candidate | None:
        """The candidate that ratios are over."""
        return next((c for c in self.candidates if c.name == self.reference), None)

    def control(self) -> Interval | None:
        """Ratio of the baseline to itself."""
        return None if self.again is None else self._over_base(self.again, 0.0)

    def ratio(self, candidate: Candidate) -> Interval | None:
        """Time over the baseline's, with its interval; None where either was not timed.

        It is at least as uncertain as the control is off.
        """
        if candidate.samples and candidate is self.base:
            return Interval(1.0, 1.0, 1.0)
        control = None if candidate is self.again else self.control()
        drift = 0.0 if control is None else max(control.value, 1 / control.value) - 1
        return self._over_base(candidate, drift)

    def verdict(self, candidate: Candidate) -> str | None:
        """`reference`, or what the ratio's interval says; of fewer samples than rounds, nothing."""
        ratio, base = self.ratio(candidate), self.base
        if ratio is None or base is None:
            return None
        if candidate is base:
            return "reference"
        if min(len(candidate.samples), len(base.samples)) < LEAST_ROUNDS:
            return "undecided"
        return ratio.verdict()

    def _over_base(self, candidate: Candidate, drift: float) -> Interval | None:
        base = self.base
        if base is None or not base.samples or not candidate.samples:
            return None
        if min(len(candidate.samples), len(base.samples)) < LEAST_ROUNDS:
            times = [median_interval(c.samples).value for c in (candidate, base)]
            return single_ratio(times[0], times[1], drift)
        return ratio_interval(candidate.samples, base.samples, drift)
