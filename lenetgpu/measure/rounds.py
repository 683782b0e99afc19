"""Candidates checked first, then timed in interleaved rounds against a baseline.

The baseline is an ordinary candidate, and so is the control: the baseline built a second time. Each
candidate takes one sample per round, in balanced orders. Before a short sample it runs untimed, so
that the caches hold its own data.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite, nan

from lenetgpu.check.judge import Checked, Errors
from lenetgpu.errors import LenetError
from lenetgpu.gpu.faults import lacks_memory, loses_context, lost
from lenetgpu.gpu.nvml import MachineState
from lenetgpu.measure import statistics
from lenetgpu.measure.bench import Bench, Flush, Skip, flusher
from lenetgpu.measure.statistics import Interval, median_interval, ratio_interval, single_ratio

LEAST_ROUNDS, MOST_ROUNDS = statistics.LEAST, 1_000
NOISE = 0.003
QUIET_ROUNDS = 40  # rounds before a small spread may end the timing
SHORT_MS = 50.0  # Milliseconds; a longer sample refills its caches within 1 % of its time.
AGAIN = ", again"
UNCHECKED = "no time left to check it"


@dataclass(frozen=True)
class Effort:
    """Limits of a comparison."""

    seconds: float  # of rounds
    rounds: int | None = None  # None: until every ratio is known to `noise`
    warmup: int | None = None  # untimed runs before a sample; None: 1 if shorter than SHORT_MS
    noise: float = NOISE
    checks: float = inf  # seconds after which only the baseline is still checked


def never() -> Bench:
    """Raise AssertionError; placeholder `build` of a candidate that cannot run."""
    raise AssertionError("a candidate that cannot run is not built")


Say = Callable[..., None]  # callback for progress: message and, if known, count and total
Entry = tuple[Callable[[], float], list[float]]  # function that takes a sample, samples taken


@dataclass
class Candidate:
    """A named way to do the work; `build` makes its bench, which may not fit in memory."""

    name: str
    build: Callable[[], Bench]
    precision: str = "fp32"
    status: str = "waiting"  # then right, wrong, failed or skipped; or refused from the start
    note: str = ""
    bench: Bench | None = None
    checked: Checked | None = None
    samples: list[float] = field(default_factory=list)
    single: bool = False  # too slow for rounds in the time allowed
    warmup: int = 0  # untimed runs before each sample
    machine: MachineState | None = None
    bits: str | None = None  # "same" if repeated runs agree bit for bit, else "others"
    errors: Errors | None = None  # on the images shared by all candidates

    @property
    def once(self) -> bool:
        """True if it takes a single sample only."""
        return self.single or (self.bench is not None and self.bench.once)


@dataclass
class Comparison:
    """Subject, candidates and results of a comparison; `again` is the control, if it worked."""

    what: str
    baseline: str
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
        """Largest number of samples of any candidate."""
        return max((len(c.samples) for c in self.candidates), default=0)

    @property
    def base(self) -> Candidate | None:
        """Baseline: the candidate that ratios refer to."""
        return next((c for c in self.candidates if c.name == self.baseline), None)

    def control(self) -> Interval | None:
        """Return the ratio of the baseline to itself."""
        return None if self.again is None else self._over_base(self.again, 0.0)

    def ratio(self, candidate: Candidate) -> Interval | None:
        """Return the time over the baseline's, its interval at least as wide as the control's."""
        if candidate.samples and candidate is self.base:
            return Interval(1.0, 1.0, 1.0)
        control = None if candidate is self.again else self.control()
        drift = 0.0 if control is None else max(control.value, 1 / control.value) - 1
        return self._over_base(candidate, drift)

    def verdict(self, candidate: Candidate) -> str | None:
        """Return `baseline`, or the verdict of the ratio, if any."""
        ratio, base = self.ratio(candidate), self.base
        if ratio is None or base is None:
            return None
        return "baseline" if candidate is base else ratio.verdict()

    def _over_base(self, candidate: Candidate, drift: float) -> Interval | None:
        base = self.base
        if base is None or not base.samples or not candidate.samples:
            return None
        if min(len(candidate.samples), len(base.samples)) < LEAST_ROUNDS:
            times = [median_interval(c.samples).value for c in (candidate, base)]
            return single_ratio(times[0], times[1], drift)
        return ratio_interval(candidate.samples, base.samples, drift)


def balanced_orders(count: int) -> list[list[int]]:
    """Return Williams' design (1949): each index takes every position and follows every other."""
    first = [0]
    for step in range(1, count):
        first.append((first[-1] + (step if step % 2 else -step)) % count)
    orders = [[(position + shift) % count for position in first] for shift in range(count)]
    return orders if count % 2 == 0 else orders + [order[::-1] for order in orders]


def _orders(count: int) -> Iterator[list[int]]:
    """Yield balanced orders endlessly, shuffled; none begins with the index that ended the last."""
    source, last = random.Random(0), -1
    while True:
        orders = balanced_orders(count)
        source.shuffle(orders)
        while orders:
            order = next((order for order in orders if order[0] != last), orders[0])
            orders.remove(order)
            last = order[-1]
            yield order


def interleave(
    entries: Iterable[Entry],
    most: int,
    stop: Callable[[int], bool] = lambda rounds: False,
    enough: Callable[[list[float]], bool] = lambda samples: False,
) -> None:
    """Run up to `most` rounds: in each, every entry takes one sample, in balanced orders.

    The rounds end if `stop(rounds)` is True after one; an entry takes no more samples if
    `enough(samples)` is True. Samples taken before an exception stay in the entries.
    """
    entries = list(entries)
    orders = _orders(len(entries))
    for rounds in range(1, most + 1):
        for sample, samples in (entries[index] for index in next(orders)):
            if not enough(samples):
                samples.append(sample())
        if stop(rounds):
            return


@contextmanager
def _interruptible(comparison: Comparison) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        comparison.interrupted = True


def compare(
    what: str,
    candidates: list[Candidate],
    baseline: str,
    effort: Effort,
    cold_l2: bool = False,
    say: Say = lambda *text: None,
) -> Comparison:
    """Check every candidate, time the correct ones in balanced rounds, then check them again.

    Rounds end when every ratio is known to `effort.noise` (before widening for differences
    between processes), after `effort.rounds`, or before the next would exceed `effort.seconds`.
    A candidate too slow for LEAST_ROUNDS in that time is sampled once. Ctrl-C ends the rounds.
    """
    comparison = Comparison(what, baseline, candidates, cold_l2=cold_l2)
    base = comparison.base
    with _interruptible(comparison):
        flush = flusher() if cold_l2 else None
        _check_all(comparison, flush, effort, say)
        if base is not None and base.status == "right":
            control = Candidate(base.name + AGAIN, base.build, base.precision)
            _check(control, flush)
            if control.status == "right":
                comparison.again = control
            else:
                base.note = f"no control: built again it is {control.status}, {control.note}"
        _time(comparison, effort, say)
    timed = [c for c in (*candidates, comparison.again) if c is not None and c.samples]
    rechecked = 0
    with _interruptible(comparison):
        for candidate in timed:
            if candidate.status == "right" and candidate.bench is not None:
                say(f"checking {candidate.name} again", rechecked, len(timed))
                _judge(candidate, candidate.bench.recheck)
            rechecked += 1
    for candidate in timed[rechecked:]:  # a second Ctrl-C
        candidate.samples.clear()
    for candidate in candidates:
        if candidate.status != "right":
            candidate.samples.clear()
        elif not candidate.samples:
            candidate.note = "not timed"
    if any(c is None or c.status != "right" for c in (base, comparison.again)):
        comparison.again = None
    return comparison


# Exceptions of a candidate's own code that fail it and stop no other.
BREAKS = (Exception, SystemExit)


def why(error: BaseException) -> str:
    """Return why a candidate cannot run, in one line; our own errors appear unchanged."""
    line = str(error).partition("\n")[0]
    if lacks_memory(error):
        return f"requires more memory: {line}" if line else "requires more memory"
    if isinstance(error, (LenetError, Skip)):
        return line
    return f"cannot run: {type(error).__name__}: {line}"


def _check_all(comparison: Comparison, flush: Flush | None, effort: Effort, say: Say) -> None:
    """Check waiting candidates, the baseline first; skip the rest after `effort.checks` seconds."""
    start, base, candidates = time.perf_counter(), comparison.base, comparison.candidates
    waiting = [c for c in sorted(candidates, key=lambda c: c is not base) if c.status == "waiting"]
    for index, candidate in enumerate(waiting):
        took = time.perf_counter() - start
        if candidate is not base and took >= effort.checks:
            candidate.status, candidate.note = "skipped", UNCHECKED
            continue
        # each is checked twice, before the rounds and after them, and the control too
        checks = 2 * (len(waiting) + 1) - index
        left = f", about {took / index * checks + effort.seconds:.0f} s left" if index else ""
        say(f"checking {candidate.name}{left}", index, len(waiting))
        _check(candidate, flush)


def _judge(candidate: Candidate, check: Callable[[], Checked]) -> None:
    try:
        candidate.checked = check()
    except BREAKS as error:
        fail(candidate, error)
        return
    verdict = candidate.checked.verdict
    candidate.status = "right" if verdict.passed else "wrong"
    if not verdict.passed:
        candidate.note = verdict.note.lstrip(", ")


def _check(candidate: Candidate, flush: Flush | None) -> None:
    def built() -> Checked:
        candidate.bench = bench = candidate.build()
        if flush is not None:
            bench.use_cold_cache(flush)
        return bench.check()

    _judge(candidate, built)


def fail(candidate: Candidate, error: BaseException) -> None:
    """Record why a candidate failed or is skipped; raise LenetError if the GPU is lost."""
    if loses_context(error):
        raise LenetError(lost()) from error
    candidate.status = "skipped" if isinstance(error, Skip) or lacks_memory(error) else "failed"
    candidate.bench, candidate.note = None, why(error)
    candidate.samples.clear()


def _sample(candidate: Candidate) -> float:
    """Return milliseconds, or NaN once the candidate has failed."""
    if candidate.bench is not None:
        try:
            return candidate.bench.sample()
        except BREAKS as error:
            fail(candidate, error)
    return nan


def _timed(candidate: Candidate) -> float:
    for _ in range(candidate.warmup):
        _sample(candidate)
    return _sample(candidate)


def _cost(candidate: Candidate, first: float) -> float:
    """Return the seconds that `candidate` adds to a round, estimated from its first sample."""
    bench = candidate.bench
    if bench is None or not isfinite(first):
        return 0.0
    return (1 + candidate.warmup) * first * bench.passes * bench.scaled_from / bench.images / 1e3


def _time(comparison: Comparison, effort: Effort, say: Say) -> None:
    start = time.perf_counter()
    everybody = [*comparison.candidates, *filter(None, [comparison.again])]
    right = [c for c in everybody if c.status == "right"]
    firsts, costs = {}, {}
    for index, candidate in enumerate(right):
        say(f"first sample of {candidate.name}", index, len(right))
        firsts[candidate.name] = first = _sample(candidate)
        takes = first * (candidate.bench.passes if candidate.bench is not None else 1)
        candidate.warmup = int(takes < SHORT_MS) if effort.warmup is None else effort.warmup
        costs[candidate.name] = _cost(candidate, first)
    right = [c for c in right if c.status == "right"]
    _leave_out_slow(comparison, right, costs, effort.seconds)
    for candidate in right:
        if candidate.once:
            candidate.samples.append(firsts[candidate.name])
    timed = [c for c in right if not c.once]
    if not timed:
        return
    total = sum(costs[c.name] for c in timed)
    say(f"{len(timed)} candidates, about {total:.2g} s a round, {effort.seconds:g} s at most")
    base = comparison.base if comparison.base in timed else None
    before = time.perf_counter()

    def stop(rounds: int) -> bool:
        nonlocal before
        now = time.perf_counter()
        took, before = now - before, now
        say(f"round {rounds}, seconds", round(now - start), round(effort.seconds))
        if now - start + took > effort.seconds:
            return rounds >= LEAST_ROUNDS
        return effort.rounds is None and rounds >= QUIET_ROUNDS and _quiet(timed, base, effort)

    entries: list[Entry] = [(partial(_timed, c), c.samples) for c in timed]
    interleave(entries, effort.rounds or MOST_ROUNDS, stop)


def _leave_out_slow(
    comparison: Comparison, right: list[Candidate], costs: dict[str, float], seconds: float
) -> None:
    """Limit the slowest, the baseline last, to one sample until LEAST_ROUNDS of the others fit."""
    last = (comparison.base, comparison.again)
    remaining, resampled = [c for c in right if not c.once], set()
    while (needed := LEAST_ROUNDS * sum(costs[c.name] for c in remaining)) > seconds:
        remaining.sort(key=lambda c: (not any(c is other for other in last), costs[c.name]))
        slow = remaining[-1]
        if slow.name not in resampled and costs[slow.name] < seconds:
            resampled.add(slow.name)
            costs[slow.name] = min(costs[slow.name], _cost(slow, _sample(slow)))
            continue
        remaining.pop()
        slow.single = True
        slow.note = f"one sample; rounds with it need --seconds {needed:.3g}"


def _quiet(timed: list[Candidate], base: Candidate | None, effort: Effort) -> bool:
    """Return True if the ratios, or without a baseline the times, are precise enough."""
    over = [1.0] * len(timed[0].samples) if base is None else base.samples
    others = [c for c in timed if c is not base]
    ratios = [[a / b for a, b in zip(c.samples, over, strict=True)] for c in others]
    return all(median_interval(each).half_width < effort.noise for each in ratios)
