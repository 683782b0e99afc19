"""Samples of calls whose images change: timed as they come, looked at as soon as the time is taken.

Nothing of this stands between the two readings of a clock but the calls themselves.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lenetgpu.check.gates import FURTHER, Gate
from lenetgpu.check.judge import Verdict
from lenetgpu.check.slots import Feed
from lenetgpu.measure.timing import cpu_ms, gpu_ms
from lenetgpu.stages.mounted import Mounted

_WARMING = 3
_RECHECK_MS = 300.0
_RECHECK_IMAGES = 500


class Fed:
    """Samples of `mounted` through `feed`, held to account by `gate`."""

    def __init__(self, mounted: Mounted, feed: Feed, gate: Gate) -> None:
        self._mounted, self._feed, self._gate = mounted, feed, gate

    def launch(self) -> None:
        """One call on all images, in the next windows."""
        x, y = self._feed.whole()
        run = self._mounted.run if len(x) <= self._mounted.batch else self._mounted.run_all
        run(x, y)

    def warm(self, call: Any) -> None:
        """One to three calls, waited for: nobody can count on which one is a sample's last."""
        for _ in range(1 + int(self._feed.slots.draw(_WARMING, 1)[0])):
            call()
        if self._mounted.on_gpu:
            self._mounted.arrays.cuda.get_current_stream().synchronize()

    def launches(self, times: int, flush: Any = None) -> float:
        """On a GPU: milliseconds of one of `times` launches, or of a single one after `flush`."""
        self._gate.idle()
        self._feed.renew()
        if flush is None:
            self.warm(self.launch)
        else:
            times = 1
            flush()
            self._mounted.arrays.cuda.get_current_stream().synchronize()
        elapsed = self._gate.clocked(partial(gpu_ms, self.launch, times))
        self._gate.glance()
        return elapsed / times

    def chunks(self, n: int) -> float:
        """On a CPU: milliseconds of the calls on the first `n` images; cut in two at any call."""
        self._feed.renew()
        parts = self._feed.parts(n)
        if len(parts) == 1:
            self.warm(partial(self._run, parts))
        cut = 1 + int(self._feed.slots.draw(len(parts), 1)[0])
        total = 0.0
        for some in filter(None, (parts[:cut], parts[cut:])):
            total += self._gate.clocked(partial(cpu_ms, partial(self._run, some)))
            self._feed.made(*(call for _, _, call in some))
            self._gate.glance()
        return total

    def _run(self, parts: list[Any]) -> None:
        for x, y, _ in parts:
            self._mounted.run(x, y)

    def agree(self, one_ms: float) -> None:
        """On a GPU: many launches; do their events agree with the host's clock?"""
        self._gate.long_run(partial(gpu_ms, self.launch), one_ms)

    def again(self) -> Verdict:
        """The worst verdict on all that some more calls leave, each on images that changed.

        The first ones find their output as the call before left it, one in four poisoned.
        """
        found: list[Verdict] = []
        spent = 0.0
        for index, call in enumerate(self._further()):
            poisoned = FURTHER[index % len(FURTHER)]

            def judge(call: Any = call, poisoned: bool = poisoned) -> None:
                self._feed.renew()
                found.append(self._gate.pass_again(call, poisoned))

            spent += cpu_ms(judge)
            enough = index + 1 >= len(FURTHER) and spent > _RECHECK_MS
            if enough or not found[-1].passed:
                break
        return max(found, key=lambda verdict: (not verdict.passed, verdict.error))

    def _further(self) -> list[Any]:
        if self._mounted.on_gpu:
            return [self.launch] * len(FURTHER)
        parts = self._feed.parts(_RECHECK_IMAGES)
        calls = [partial(self._one, part) for part in parts]
        return calls * -(-len(FURTHER) // len(calls))

    def _one(self, part: Any) -> None:
        self._run([part])
        self._feed.made(part[2])
