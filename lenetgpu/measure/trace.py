"""When each stage and copy ran, on which stream, in Chrome's trace format."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from lenetgpu.measure.timing import clock, hold_events
from lenetgpu.store import json_text

COPY, STAGE = "copy", "stage"


@dataclass(frozen=True)
class TraceEvent:
    """A stage or a copy: start and length in milliseconds from the first event, and its lane."""

    name: str
    category: str
    lane: int
    start: float
    length: float

    @property
    def end(self) -> float:
        """Milliseconds from the first event to its end."""
        return self.start + self.length


def category_of(name: str) -> str:
    """Copies move between host and device; everything else is a stage."""
    return COPY if name.startswith(("copy", "images to", "labels to")) else STAGE


class GpuTracer:
    """Records a CUDA event after each operation queued on a lane's stream."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, str | None, Any]] = []

    def mark(self, lane: int, name: str | None) -> None:
        """The operation `name` was just queued on the current stream; None: nothing before it."""
        event = hold_events()[0]()
        event.record()
        self._marks.append((lane, name, event))

    def events(self) -> list[TraceEvent]:
        """The operations in the order they were queued; waits for all of them."""
        elapsed_time = hold_events()[1]
        last: dict[int, float] = {}
        found = []
        for lane, name, event in self._marks:
            event.synchronize()
            at = float(elapsed_time(self._marks[0][2], event))
            if name is not None:
                start = last[lane]
                found.append(TraceEvent(name, category_of(name), lane, start, at - start))
            last[lane] = at
        return found


class CpuTracer:
    """Reads the clock after each operation."""

    def __init__(self) -> None:
        self._origin = self._last = clock()
        self._events: list[TraceEvent] = []

    def mark(self, lane: int, name: str | None) -> None:
        """The operation `name` just ended; None: nothing ran since the last mark."""
        now = clock()
        if name is not None:
            start = (self._last - self._origin) * 1e3
            length = (now - self._last) * 1e3
            self._events.append(TraceEvent(name, category_of(name), lane, start, length))
        self._last = now

    def events(self) -> list[TraceEvent]:
        """The operations in order."""
        return self._events


def copies_under_kernels(events: list[TraceEvent]) -> tuple[float, float]:
    """(milliseconds of copies, of which while a stage ran on another lane)."""
    stages = [event for event in events if event.category == STAGE]
    total = hidden = 0.0
    for copy in events:
        if copy.category != COPY:
            continue
        total += copy.length
        spans = sorted(
            (max(stage.start, copy.start), min(stage.end, copy.end))
            for stage in stages
            if stage.lane != copy.lane and stage.start < copy.end and stage.end > copy.start
        )
        reached = copy.start
        for start, end in spans:
            if end > reached:
                hidden += end - max(start, reached)
                reached = end
    return total, hidden


def chrome_trace(
    events: list[TraceEvent], title: str, lane: str = "stream {}", interrupted: bool = False
) -> str:
    """The events as JSON for chrome://tracing or Perfetto; times in microseconds.

    The process, this one, is called `title`; a thread is a lane, called `lane` with its number.
    """
    process = os.getpid()

    def named(what: str, thread: int, name: str) -> dict[str, Any]:
        return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}

    lanes = sorted({event.lane for event in events})
    names = [
        named("process_name", 0, title),
        *(named("thread_name", number, lane.format(number)) for number in lanes),
    ]
    spans = [
        {
            "name": event.name,
            "cat": event.category,
            "ph": "X",
            "pid": process,
            "tid": event.lane,
            "ts": 1e3 * event.start,
            "dur": 1e3 * event.length,
        }
        for event in events
    ]
    total, hidden = copies_under_kernels(events)
    return json_text(
        {
            "traceEvents": names + spans,
            "displayTimeUnit": "ms",
            "otherData": {
                "title": title,
                "interrupted": interrupted,
                "copies_ms": total,
                "copies_under_kernels_ms": hidden,
            },
        }
    )
