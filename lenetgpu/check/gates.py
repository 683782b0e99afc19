"""What a bench's samples are held against, besides a first check: the exploits that boards publish.

- Last run's buffer, calls left out, answers remembered: images change places before each sample and
  windows slide (`lenetgpu.check.slots`); some of what the timed calls left is judged each time.
- Right only for what is checked, the tail skipped: all that a pass leaves is judged, before and
  after the rounds.
- Written late, by a thread or on another stream: judged as soon as the time is taken, nothing may
  change a pause later, and the device's events are held against the host's clock.
- Timer patched, time fabricated: `lenetgpu.stages.seal`, and a second clock around the first.
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
FURTHER = (False, False, False, True)
"""Calls after the rounds, each on other images: is the output poisoned before? In a row of those
where it is not, a call that leaves last run's answer shows, whichever it leaves out."""
_SMALL_BYTES = 4 << 20


class Ledger:
    """Claimed times beside those of a clock that was taken when this was imported."""

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._allowed = clock, _ALLOWED_MS[device]
        self._pairs: list[tuple[float, float]] = []

    def enter(self, take: Callable[[], float]) -> float:
        """The milliseconds that `take` claims to have passed while it ran."""
        start = self._clock()
        claimed = take()
        self._pairs.append((claimed, 1e3 * (self._clock() - start)))
        return claimed

    @property
    def contradiction(self) -> str:
        """A sentence where most times are less than half of the clock's, or above it; or ""."""
        wrong = [pair for pair in self._pairs if contradicts(*pair, self._allowed)]
        if 2 * len(wrong) <= len(self._pairs):
            return ""
        claimed, passed = wrong[0]
        return f"claims {claimed:.3g} ms where {passed:.3g} ms passed"


def contradicts(claimed: float, passed: float, allowed: float) -> bool:
    """Whether `claimed` milliseconds cannot be all of `passed`; not finite ones never can."""
    return not (passed <= _FACTOR * claimed + allowed and claimed <= _FACTOR * passed + allowed)


class Gate:
    """Holds one variant's calls to account; `caught` is a sentence from the first misdeed on.

    `weights` are the host arrays that it was prepared with, shared by every candidate: where it
    changed them they are put back. `feed` is what its timed calls go through.
    """

    def __init__(self, mounted: Mounted, weights: Sequence[Any], feed: Feed) -> None:
        self._mounted, self._feed = mounted, feed
        self._weights = [(held, held.copy()) for held in weights]
        self._name, self._precision = mounted.variant.full_name, mounted.variant.precision
        self._gpu = mounted.on_gpu
        self._ledger = Ledger(mounted.variant.needs.device)
        self.caught = ""

    def _catch(self, sentence: str) -> None:
        self.caught = self.caught or sentence

    def clocked(self, take: Callable[[], float]) -> float:
        """The milliseconds that `take` claims, held against a second clock."""
        return self._ledger.enter(take)

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
        for _ in range(_TRIES):
            cupy.cuda.runtime.deviceSynchronize()
            claimed, passed = host_and_claimed(
                lambda: take(calls), cupy.cuda.runtime.deviceSynchronize
            )
            if not contradicts(claimed, passed, _LONG_ALLOWED_MS):
                return
        self._catch(f"claims {claimed:.3g} ms for {calls} calls where {passed:.3g} ms passed")

    def verdict(self, verdict: Verdict) -> Verdict:
        """`verdict`, or a wrong one with the sentence of what it was caught at."""
        self._catch(accused(self._name))
        self.look_around()
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
