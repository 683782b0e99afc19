"""Candidates checked first, then timed in interleaved rounds against a reference."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import nan

from lenetgpu.errors import LenetError
from lenetgpu.measure.bench import (
    Bench,
    Checked,
    Flusher,
    Skip,
    StageBench,
)
from lenetgpu.measure.statistics import SYSTEMATIC, Interval, median_interval, ratio_interval
from lenetgpu.measure.timing import summarise

LEAST_ROUNDS = 5
MOST_ROUNDS = 400
NOISE = 0.005


def never() -> Bench:
    """What builds a candidate that cannot run: nothing."""
    raise AssertionError("a candidate that cannot run is not built")


@dataclass
class Candidate:
    """A named way to do the work; `build` makes its bench, which may not fit in memory.

    `status`: waiting; then right, wrong, failed (it could not be run) or skipped (no memory or
    time for it); or, from the start, refused, with a sentence in `note`.
    """

    name: str
    build: Callable[[], Bench]
    precision: str = "fp32"
    status: str = "waiting"
    note: str = ""
    bench: Bench | None = None
    checked: Checked | None = None
    samples: list[float] = field(default_factory=list)

    @property
    def once(self) -> bool:
        """Whether it is worth a single sample only."""
        return self.bench is not None and self.bench.once


@dataclass
class Comparison:
    """What was compared, on what, and what came of it."""

    what: str
    reference: str
    candidates: list[Candidate]
    again: list[float]
    cold_l2: bool
    interrupted: bool = False

    @property
    def wrong(self) -> list[Candidate]:
        """Candidates that failed their check, or to run at all."""
        return [c for c in self.candidates if c.status in ("wrong", "failed")]

    def _base(self) -> Candidate | None:
        return next((c for c in self.candidates if c.name == self.reference), None)

    def control(self) -> Interval | None:
        """Ratio of the reference to itself, measured as one more candidate."""
        base = self._base()
        if base is None or not self.again:
            return None
        return ratio_interval(self.again, base.samples)

    def ratio(self, candidate: Candidate) -> Interval | None:
        """Time over the reference's, with its interval; None where either was not timed."""
        base = self._base()
        if base is None or not base.samples or not candidate.samples:
            return None
        if candidate is base:
            return Interval(1.0, 1.0, 1.0)
        control = self.control()
        drift = abs(control.value - 1) if control is not None else 0.0
        if candidate.once or base.once:
            value = summarise(candidate.samples).median / summarise(base.samples).median
            return Interval(value, value, value).widened(SYSTEMATIC + drift)
        return ratio_interval(candidate.samples, base.samples, drift)


Entry = tuple[Callable[[], float], list[float]]
"""What takes a sample, and the samples it took."""


def interleave(
    entries: Iterable[Entry],
    most: int,
    stop: Callable[[int], bool] = lambda rounds: False,
    enough: Callable[[list[float]], bool] = lambda samples: False,
) -> None:
    """Up to `most` rounds: in each, every entry takes one sample, in random order.

    `stop(rounds)` ends them after a round; an entry whose samples are `enough` takes no more. What
    was sampled until an exception stays in the entries.
    """
    turn, order = list(entries), random.Random(0)
    for rounds in range(1, most + 1):
        order.shuffle(turn)
        for sample, samples in turn:
            if not enough(samples):
                samples.append(sample())
        if stop(rounds):
            return


@contextmanager
def _stopping(comparison: Comparison) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        comparison.interrupted = True


def compare(
    what: str,
    candidates: list[Candidate],
    reference: str,
    seconds: float,
    cold_l2: bool = False,
    noise: float = NOISE,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Check every candidate, then time the right ones in rounds of random order.

    Rounds end when every ratio's interval is narrower than `noise` (before it is widened for what
    differs between processes) or `seconds` have passed; Ctrl-C ends them and keeps what there is.
    A candidate that does not fit in memory is skipped.
    """
    comparison = Comparison(what, reference, candidates, [], cold_l2)
    with _stopping(comparison):
        flush = Flusher() if cold_l2 else None
        for candidate in candidates:
            if candidate.status == "waiting":
                say(f"checking {candidate.name}")
                _check(candidate, flush)
        _time(comparison, seconds, noise, say)
    for candidate in comparison.wrong:
        candidate.samples.clear()
        if candidate.name == reference:
            comparison.again.clear()
    for candidate in candidates:
        if candidate.status == "right" and not candidate.samples:
            candidate.note = "not timed"
    return comparison


BREAKS = (Exception, SystemExit)
"""What a candidate's own code may raise, which fails it and stops no other."""


def why(error: BaseException) -> str:
    """Why a candidate cannot run, in a line: our own sentences as they are."""
    line = str(error).partition("\n")[0]
    return line if isinstance(error, LenetError) else f"cannot run: {type(error).__name__}: {line}"


def _check(candidate: Candidate, flush: Flusher | None) -> None:
    try:
        candidate.bench = candidate.build()
        if flush is not None and isinstance(candidate.bench, StageBench):
            candidate.bench.use_cold_cache(flush)
        candidate.checked = candidate.bench.check()
    except MemoryError as error:
        candidate.status, candidate.bench = "skipped", None
        line = str(error).partition("\n")[0]
        candidate.note = f"needs more memory: {line}" if line else "needs more memory"
        return
    except Skip as reason:
        candidate.status, candidate.bench, candidate.note = "skipped", None, str(reason)
        return
    except BREAKS as error:
        _fail(candidate, error)
        return
    candidate.status = "right" if candidate.checked.verdict.passed else "wrong"


def _fail(candidate: Candidate, error: BaseException) -> None:
    candidate.status, candidate.bench, candidate.note = "failed", None, why(error)


def _sample(candidate: Candidate) -> float:
    """Milliseconds; NaN from where it broke on."""
    if candidate.bench is None:
        return nan
    try:
        return candidate.bench.sample()
    except BREAKS as error:
        _fail(candidate, error)
        return nan


def _time(comparison: Comparison, seconds: float, noise: float, say: Callable[[str], None]) -> None:
    right = [c for c in comparison.candidates if c.status == "right" and c.bench is not None]
    timed = [candidate for candidate in right if not candidate.once]
    for candidate in right:
        if candidate.once:
            say(f"timing {candidate.name} once")
            candidate.samples.append(_sample(candidate))
    for candidate in timed:
        _sample(candidate)
    if not timed:
        return
    base = next((c for c in timed if c.name == comparison.reference), None)
    start = time.perf_counter()
    entries: list[Entry] = [(partial(_sample, c), c.samples) for c in timed]
    if base is not None:
        entries.append((partial(_sample, base), comparison.again))

    def stop(rounds: int) -> bool:
        spent = time.perf_counter() - start
        say(f"round {rounds}, {spent:.0f} s")
        return rounds >= LEAST_ROUNDS and (spent > seconds or _quiet(timed, base, noise))

    interleave(entries, MOST_ROUNDS, stop)


def _quiet(timed: list[Candidate], base: Candidate | None, noise: float) -> bool:
    if base is None:
        return all(median_interval(c.samples).half_width < noise for c in timed)
    return all(
        median_interval(
            [a / b for a, b in zip(c.samples, base.samples, strict=True)]
        ).half_width < noise
        for c in timed
        if c is not base
    )  # fmt: skip
