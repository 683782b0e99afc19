"""How a call is sampled: once, by the clock, in single calls, or as replays of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from lenetgpu.measure.timing import cpu_ms, gpu_ms

CALLS = 10
"""Calls of a graph."""
LEAST_SAMPLES = 5
SAMPLE_MS = 0.5
_MOST_REPLAYS = 64


class Recorded(Protocol):
    """A graph of calls (lenetgpu.gpu.graph) and the stream it is launched on."""

    stream: Any

    def launch(self) -> None:
        """Queue all calls."""


class Replays:
    """Samples of a recorded graph of `calls` calls."""

    def __init__(self, graph: Recorded, calls: int = CALLS) -> None:
        self._graph, self._calls = graph, calls
        self._times = 1

    @property
    def passes(self) -> int:
        """Calls that a sample makes."""
        return self._times * self._calls

    def once(self) -> None:
        """Launch it and wait for it."""
        with self._graph.stream:
            self._graph.launch()
        self._graph.stream.synchronize()

    def fill(self) -> None:
        """From now on a sample is as many replays as take about SAMPLE_MS."""
        whole_ms = self._calls * self.sample()
        self._times = max(1, min(_MOST_REPLAYS, int(SAMPLE_MS / max(whole_ms, 1e-4))))

    def sample(self) -> float:
        """Milliseconds of one call."""
        return self.total(self.passes) / self.passes

    def total(self, calls: int) -> float:
        """Milliseconds of `calls` calls, or as many as whole graphs hold."""
        with self._graph.stream:
            return gpu_ms(self._graph.launch, max(1, calls // self._calls))


class CallTimer:
    """Samples of `call`, in the way that `budget_ms` a sample allows; it was called before.

    `record(call, CALLS)` makes the graph on a GPU; where it cannot, launches are counted in and
    `note` says so. `cold`: single calls, before which somebody empties the
    caches. `once` is set where one sample is all the time that the call is worth.
    """

    def __init__(
        self,
        call: Callable[[], Any],
        on_gpu: bool,
        budget_ms: float,
        record: Callable[[Callable[[], Any], int], Recorded],
        cold: bool = False,
    ) -> None:
        self._call, self._elapsed_ms = call, gpu_ms if on_gpu else cpu_ms
        self._times = 1
        self.once, self.method, self.note = False, "", ""
        self.replays: Replays | None = None
        one = self._elapsed_ms(call, 1)
        if one > budget_ms:
            one = min(one, self._elapsed_ms(call, 1))
        if one > budget_ms:
            self.once, self.method = True, "one call"
        elif not on_gpu:
            self.method, self._times = "clock", max(1, int(SAMPLE_MS / max(one, 1e-4)))
        elif cold:
            self.method = "single calls, cold L2"
        elif CALLS * one > budget_ms:
            self.method = "single calls"
        else:
            self._record(record)

    def _record(self, record: Callable[[Callable[[], Any], int], Recorded]) -> None:
        try:
            self.replays = Replays(record(self._call, CALLS))
        except RuntimeError as error:
            self.method, self._times = "single calls", CALLS
            self.note = f"no graph, launches counted in: {error}"
            return
        self.method = f"graph of {CALLS} calls"
        self.replays.once()
        self.replays.fill()

    @property
    def passes(self) -> int:
        """Calls that a sample makes."""
        return self._times if self.replays is None else self.replays.passes

    def total(self, calls: int) -> float:
        """Milliseconds of `calls` calls, made as a sample's are."""
        if self.replays is not None:
            return self.replays.total(calls)
        return self._elapsed_ms(self._call, calls)

    def sample(self) -> float:
        """Milliseconds of one call."""
        return self.total(self.passes) / self.passes

    def burst(self, milliseconds: float) -> tuple[Callable[[], float], int]:
        """Calls one after the other for about so long, made as a sample's are, and how many."""
        times = self.passes
        times *= max(1, round(milliseconds / max(times * self.sample(), 1e-3)))
        return partial(self.total, times), times
