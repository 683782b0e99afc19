"""What a bench's samples are held against, besides a first check: the exploits that boards publish.

- Last run's buffer, calls left out, answers remembered: images change places before each sample and
  windows slide (`lenetgpu.check.slots`); some of what the timed calls left is judged each time.
- Right only for what is checked, the tail skipped: all that a pass leaves is judged, before and
  after the rounds.
- Written late, by a thread or on another stream: judged as soon as the time is taken, nothing may
  change a pause later, and the device's events are held against the host's clock.
- Timer patched, time fabricated: `lenetgpu.stages.seal`, and a second clock around the first. Other
  processes make a GPU's answers late: what it takes over nothing at all, in the same rounds, is no
  variant's fault, and an accusation has to stand a second time, over samples taken anew.
- Input, weights or the memory beside the output written: sums of bits, copies, fences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lenetgpu.check.judge import Verdict, same_bytes, settle
from lenetgpu.check.slots import Feed
from lenetgpu.stages.mounted import Mounted
from lenetgpu.stages.seal import accused, is_guest

_FACTOR = 2.0
_ALLOWED_MS = {"cpu": 0.05, "cuda": 0.5}
_LONG_ALLOWED_MS = 1.0
_LONG_MS = 4.0
_MOST_CALLS = 4096
_TRIES = 3
_SAMPLES, _IDLE_TIMES = 5, 4
"""Samples that are taken anew, and how often nothing is timed before each."""
FURTHER = (False, False, False, True)
"""Calls after the rounds, each on other images: is the output poisoned before? In a row of those
where it is not, a call that leaves last run's answer shows, whichever it leaves out."""
_SMALL_BYTES = 4 << 20


class Ledger:
    """Claimed times beside those of a clock that was taken when this was imported.

    `late` is by how many milliseconds at most the clock was told later that nothing was done.
    """

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._allowed = clock, _ALLOWED_MS[device]
        self._pairs: list[tuple[float, float]] = []
        self.late = 0.0

    def enter(self, take: Callable[[], float]) -> float:
        """The milliseconds that `take` claims to have passed while it ran."""
        start = self._clock()
        claimed = take()
        self._pairs.append((claimed, 1e3 * (self._clock() - start)))
        return claimed

    def idle(self, take: Callable[[], float]) -> None:
        """Note how late it is known that `take` has ended, which does nothing but claim a time."""
        start = self._clock()
        claimed = take()
        self.late = max(self.late, 1e3 * (self._clock() - start) - claimed)

    def _wrong(self, late: float) -> list[tuple[float, float]]:
        """The pairs that contradict themselves, where they are most of all."""
        wrong = [pair for pair in self._pairs if contradicts(*pair, self._allowed, late)]
        return wrong if 2 * len(wrong) > len(self._pairs) else []

    @property
    def contradiction(self) -> str:
        """A sentence where most times are less than half of the clock's, or above it; or "".

        What the clock was late without any work is taken off.
        """
        wrong = self._wrong(self.late)
        return _claims(*wrong[0]) if wrong else ""

    @property
    def doubt(self) -> str:
        """The same as it is, with what the clock was late: whose fault it is is not said."""
        wrong = self._wrong(0.0)
        return _lateness(*wrong[0], self.late) if wrong else ""


def _claims(claimed: float, passed: float, calls: str = "") -> str:
    return f"claims {claimed:.3g} ms{calls} where {passed:.3g} ms passed"


def _lateness(claimed: float, passed: float, late: float) -> str:
    return (
        f"no times to be had now: the end of {claimed:.3g} ms is known after {passed:.3g} ms, that "
        f"of nothing after {late:.3g} ms; other processes keep the machine busy"
    )


def contradicts(claimed: float, passed: float, allowed: float, late: float = 0.0) -> bool:
    """Whether `claimed` milliseconds cannot be all of `passed`; not finite ones never can.

    `late` of those that passed are nobody's.
    """
    enough = passed - late <= _FACTOR * claimed + allowed
    return not (enough and claimed <= _FACTOR * passed + allowed)


class Gate:
    """Holds one variant's calls to account; `caught` is a sentence from the first misdeed on.

    `weights` are the host arrays that it was prepared with, shared by every candidate: where it
    changed them they are put back. `feed` is what its timed calls go through. `nothing` is what
    times on a GPU no work at all; None: nothing is late. `late` is a sentence where the machine is
    so late that its times are neither believed nor doubted.
    """

    def __init__(
        self,
        mounted: Mounted,
        weights: Sequence[Any],
        feed: Feed,
        nothing: Callable[[], float] | None = None,
    ) -> None:
        self._mounted, self._feed = mounted, feed
        self._weights = [(held, held.copy()) for held in weights]
        self._name, self._precision = mounted.variant.full_name, mounted.variant.precision
        self._gpu = mounted.on_gpu
        self._nothing = nothing
        self._ledger = Ledger(mounted.variant.needs.device)
        self.caught = self.late = ""

    def _catch(self, sentence: str) -> None:
        self.caught = self.caught or sentence

    def clocked(self, take: Callable[[], float]) -> float:
        """The milliseconds that `take` claims, held against a second clock."""
        return self._ledger.enter(take)

    def idle(self) -> None:
        """Before a sample: how late is the end of nothing known?"""
        if self._nothing is not None:
            self._ledger.idle(self._nothing)

    def repeat(self, sample: Callable[[], float]) -> None:
        """Take samples anew where times and clock disagree: by the variant or by the machine?

        By the variant where it stands out twice from what the machine does with nothing. Neither
        where they agree once. Else the machine is `late`.
        """
        stood = 0
        for tries in range(1 + _TRIES):
            stood += bool(self._ledger.contradiction)
            if stood == 2:
                self._catch(self._ledger.contradiction)
            if self._nothing is None or not self._ledger.doubt or self.caught:
                return
            if tries < _TRIES:
                self._ledger = Ledger(self._mounted.variant.needs.device)
                for _ in range(_SAMPLES):
                    for _ in range(_IDLE_TIMES):
                        self.idle()
                    sample()
        self.late = self._ledger.doubt

    def glance(self) -> None:
        """Right after a sample: is what its last calls left right, for a few images?"""
        verdict = self._feed.glance(self._precision)
        if is_guest(self._name):
            self._catch(accused(self._name, hot=True))
            self.look_around(self._feed.slots.images.nbytes <= _SMALL_BYTES)
        if not verdict.passed:
            self._catch(f"what its timed calls left is wrong{verdict.note or _off(verdict)}")

    def look_around(self, at_input: bool = True) -> None:
        """Has it written its input, its weights or beside its output?"""
        for held, kept in self._weights:
            if not same_bytes(held, kept):
                held[...] = kept
                self._catch("changes its weights")
        if self._mounted.trespassed():
            self._catch("writes outside its output")
        if at_input and not self._feed.slots.intact:
            self._feed.slots.mend()
            self._catch("changes its input")

    def pass_(self, run: Callable[[], None], poisoned: bool) -> Verdict:
        """Judge all that the calls of `run` left; on a CPU, nothing may change a pause later."""
        if poisoned:
            self._mounted.poison(self._feed.y)
            if self._gpu:  # a graph has a stream of its own
                self._mounted.arrays.cuda.get_current_stream().synchronize()
        run()
        early = None if self._gpu else self._feed.y.copy()
        verdict = self._feed.judged(self._precision)
        if early is not None:
            settle(self._mounted)
            if not same_bytes(early, self._feed.y):
                self._catch("writes its output after it has returned")
        return verdict

    def pass_again(self, run: Callable[[], None], poisoned: bool) -> Verdict:
        """`pass_` after the rounds: a wrong answer is one that the first check did not see."""
        verdict = self.pass_(run, poisoned)
        if not verdict.passed:
            self._catch(
                f"what calls after its samples left is wrong{verdict.note or _off(verdict)}"
            )
        return verdict

    def long_run(self, take: Callable[[int], float], one_ms: float) -> None:
        """On a GPU: do `take(calls)`'s milliseconds agree with the host's until all is done?"""
        import cupy

        calls = max(1, min(_MOST_CALLS, int(_LONG_MS / max(one_ms, 1e-4))))
        wait, late = cupy.cuda.runtime.deviceSynchronize, 0.0
        for _ in range(_TRIES):
            wait()
            if self._nothing is not None:
                ended, known = host_and_claimed(self._nothing, wait)
                late = max(late, known - ended)
            claimed, passed = host_and_claimed(lambda: take(calls), wait)
            if not contradicts(claimed, passed, _LONG_ALLOWED_MS):
                return
        if contradicts(claimed, passed, _LONG_ALLOWED_MS, late):
            self._catch(_claims(claimed, passed, f" for {calls} calls"))
        else:
            self.late = self.late or _lateness(claimed, passed, late)

    def verdict(self, verdict: Verdict) -> Verdict:
        """`verdict`, or a wrong one with the sentence of what it was caught at."""
        self._catch(accused(self._name))
        self.look_around()
        if not self.late:
            self._catch(self._ledger.contradiction)
        if not self.caught:
            return verdict
        return replace(verdict, passed=False, note=f", {self.caught}")


def host_and_claimed(
    take: Callable[[], float],
    settle: Callable[[], Any],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """(milliseconds that `take` claims, milliseconds until `settle` has returned after it)."""
    start = clock()
    claimed = take()
    settle()
    return claimed, 1e3 * (clock() - start)


def _off(verdict: Verdict) -> str:
    return f", error {verdict.error:.1e}"
