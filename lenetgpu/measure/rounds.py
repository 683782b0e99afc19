"""Candidates checked first, then timed in interleaved rounds against a baseline.

The baseline is a candidate like the others, and so is the control, the baseline built a second
time. In a round everybody takes one sample; the orders of the rounds are balanced: everybody stands
at every place and comes behind every other one equally often, and never behind itself. Before a
short sample the candidate runs untimed, so that its caches hold its own data.
"""

from __future__ import annotations

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
from lenetgpu.measure.bench import Bench, Flusher, Skip
from lenetgpu.measure.statistics import Interval, median_interval, ratio_interval, single_ratio

LEAST_ROUNDS, MOST_ROUNDS = statistics.LEAST, 1_000
NOISE = 0.003
QUIET_ROUNDS = 40
"""Rounds before few differences between them may end the work."""
SHORT_MS = 50.0
"""A longer sample finds its caches again within a hundredth of itself."""
AGAIN = ", again"
UNCHECKED = "no time left to check it"


@dataclass(frozen=True)
class Effort:
    """What a comparison may take: seconds of rounds, rounds, and untimed runs before a sample.

    `rounds` None: until every ratio is known to NOISE or the time is over. `warmup` None: 1 before
    samples shorter than SHORT_MS, else 0. Who is not checked within `checks` seconds is left out,
    but for the baseline.
    """

    seconds: float
    rounds: int | None = None
    warmup: int | None = None
    noise: float = NOISE
    checks: float = inf


def never() -> Bench:
    """What builds a candidate that cannot run: nothing."""
    raise AssertionError("a candidate that cannot run is not built")


Say = Callable[..., None]
"""Is told in words what is done and, where known, how much of how much."""
Entry = tuple[Callable[[], float], list[float]]
"""What takes a sample, and the samples it took."""


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


def balanced_orders(count: int) -> list[list[int]]:
    """Williams' design: orders of 0..count-1, balanced for place and for whom one comes behind.

    Over all of them each stands at every place, and directly behind every other, equally often:
    `count` orders where it is even, twice as many where it is odd (E. J. Williams, 1949).
    """
    first = [0]
    for step in range(1, count):
        first.append((first[-1] + (step if step % 2 else -step)) % count)
    orders = [[(place + shift) % count for place in first] for shift in range(count)]
    return orders if count % 2 == 0 else orders + [order[::-1] for order in orders]


def _orders(count: int) -> Iterator[list[int]]:
    """Balanced orders without end, shuffled, none beginning with the one that ended the last."""
    source, last = random.Random(0), -1
    while True:
        waiting = balanced_orders(count)
        source.shuffle(waiting)
        while waiting:
            at = next((i for i, order in enumerate(waiting) if order[0] != last), 0)
            order = waiting.pop(at)
            last = order[-1]
            yield order


def interleave(
    entries: Iterable[Entry],
    most: int,
    stop: Callable[[int], bool] = lambda rounds: False,
    enough: Callable[[list[float]], bool] = lambda samples: False,
) -> None:
    """Up to `most` rounds: in each, every entry takes one sample, in balanced orders.

    `stop(rounds)` ends them after a round; an entry whose samples are `enough` takes no more. What
    was sampled until an exception stays in the entries.
    """
    turn = list(entries)
    orders = _orders(len(turn))
    for rounds in range(1, most + 1):
        for index in next(orders):
            sample, samples = turn[index]
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
    effort: Effort,
    cold_l2: bool = False,
    say: Say = lambda *told: None,
) -> Comparison:
    """Check every candidate, then time the right ones in balanced rounds, then check them again.

    Rounds end when every ratio is known to `effort.noise` (before it is widened for what differs
    between processes), after `effort.rounds`, or before the next would pass `effort.seconds`; who
    is too slow for LEAST_ROUNDS in that time is sampled once. Ctrl-C ends them and keeps what there
    is. A candidate that does not fit in memory is skipped.
    """
    comparison = Comparison(what, reference, candidates, cold_l2=cold_l2)
    base = comparison.base
    with _stopping(comparison):
        flush = Flusher() if cold_l2 else None
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
    unsure = {id(c): c for c in timed if c.status == "right"}
    with _stopping(comparison):
        for index, candidate in enumerate(timed):
            if candidate.status == "right" and candidate.bench is not None:
                say(f"checking {candidate.name} again", index, len(timed))
                _judge(candidate, candidate.bench.recheck)
            unsure.pop(id(candidate), None)
    for candidate in unsure.values():  # a second Ctrl-C: what was not seen right is not shown
        candidate.samples.clear()
    for candidate in candidates:
        if candidate.status != "right":
            candidate.samples.clear()
        elif not candidate.samples:
            candidate.note = "not timed"
    if any(c is None or c.status != "right" for c in (base, comparison.again)):
        comparison.again = None
    return comparison


BREAKS = (Exception, SystemExit)
"""What a candidate's own code may raise, which fails it and stops no other."""


def why(error: BaseException) -> str:
    """Why a candidate cannot run, in a line: our own sentences as they are."""
    line = str(error).partition("\n")[0]
    if lacks_memory(error):
        return f"needs more memory: {line}" if line else "needs more memory"
    said = isinstance(error, (LenetError, Skip))
    return line if said else f"cannot run: {type(error).__name__}: {line}"


def _check_all(comparison: Comparison, flush: Flusher | None, effort: Effort, say: Say) -> None:
    """Check who waits, the baseline first; leave out who comes behind `effort.checks` seconds."""
    start, base, candidates = time.perf_counter(), comparison.base, comparison.candidates
    for index, candidate in enumerate(sorted(candidates, key=lambda c: c is not base)):
        if candidate.status != "waiting":
            continue
        if candidate is not base and time.perf_counter() - start >= effort.checks:
            candidate.status, candidate.note = "skipped", UNCHECKED
            continue
        say(f"checking {candidate.name}", index, len(candidates))
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


def _check(candidate: Candidate, flush: Flusher | None) -> None:
    def built() -> Checked:
        candidate.bench = bench = candidate.build()
        if flush is not None:
            bench.use_cold_cache(flush)
        return bench.check()

    _judge(candidate, built)


def fail(candidate: Candidate, error: BaseException) -> None:
    """Note why a candidate broke or is left out: its times go; LenetError where the GPU is lost."""
    if loses_context(error):
        raise LenetError(lost()) from error
    candidate.status = "skipped" if isinstance(error, Skip) or lacks_memory(error) else "failed"
    candidate.bench, candidate.note = None, why(error)
    candidate.samples.clear()


def _sample(candidate: Candidate) -> float:
    """Milliseconds; NaN from where it broke on."""
    if candidate.bench is None:
        return nan
    try:
        return candidate.bench.sample()
    except BREAKS as error:
        fail(candidate, error)
        return nan


def _timed(candidate: Candidate) -> float:
    """A sample behind its untimed runs."""
    for _ in range(candidate.warmup):
        _sample(candidate)
    return _sample(candidate)


def _cost(candidate: Candidate, first: float) -> float:
    """Seconds of a round that `candidate` takes, by its first sample."""
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
    whole = sum(costs[c.name] for c in timed)
    say(f"{len(timed)} candidates, about {whole:.2g} s a round, {effort.seconds:g} s at most")
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
    """Leave the slowest with one sample until LEAST_ROUNDS of the others fit into `seconds`.

    The baseline and its control go last; nobody goes for a first sample that was slow by chance.
    """
    last = (comparison.base, comparison.again)
    kept, known = [c for c in right if not c.once], set()
    while kept and LEAST_ROUNDS * sum(costs[c.name] for c in kept) > seconds:
        needed = LEAST_ROUNDS * sum(costs[c.name] for c in kept)
        kept.sort(key=lambda c: (not any(c is one for one in last), costs[c.name]))
        slow = kept[-1]
        if slow.name not in known and costs[slow.name] < seconds:
            known.add(slow.name)
            costs[slow.name] = min(costs[slow.name], _cost(slow, _sample(slow)))
            continue
        kept.pop()
        slow.single = True
        slow.note = f"one sample; rounds with it want --seconds {needed:.3g}"


def _quiet(timed: list[Candidate], base: Candidate | None, effort: Effort) -> bool:
    """Whether the ratios, or without a baseline the times, are known well enough."""
    over = [1.0] * len(timed[0].samples) if base is None else base.samples
    others = [c for c in timed if c is not base]
    ratios = [[a / b for a, b in zip(c.samples, over, strict=True)] for c in others]
    return all(median_interval(each).half_width < effort.noise for each in ratios)
