"""Timeline of stages and copies on their streams, in Chrome's trace format."""

import os
from dataclasses import dataclass
from typing import Any

from lenetgpu.measure.timing import clock, hold_events

COPY, STAGE = "copy", "stage"


@dataclass(frozen=True)
class TraceEvent:
    """A stage or a copy: its stream, its start (ms from the first event) and its length (ms)."""

    name: str
    stream: int
    start: float
    length: float

    @property
    def category(self) -> str:
        """COPY for transfers between host and device, STAGE for everything else."""
        return COPY if self.name.startswith(("copy", "images to", "labels to")) else STAGE

    @property
    def end(self) -> float:
        """End in milliseconds from the first event."""
        return self.start + self.length


class Tracer:
    """Recorder of a mark after each operation: queued CUDA events on a GPU, else clock readings."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._marks: list[tuple[int, str | None, Any]] = []

    def mark(self, stream: int, name: str | None) -> None:
        """Mark the end of `name`, on a GPU in the current stream; None only marks a start."""
        if self._on_gpu:
            now = hold_events()[0]()
            now.record()
        else:
            now = clock()
        self._marks.append((stream, name, now))

    def events(self) -> list[TraceEvent]:
        """Return the operations in the order of their marks; waits for all of them."""
        last: dict[int, float] = {}
        found = []
        for stream, name, mark in self._marks:
            first = self._marks[0][2]
            if self._on_gpu:
                mark.synchronize()
                at = float(hold_events()[1](first, mark))
            else:
                at = 1e3 * (mark - first)
            if name is not None:
                found.append(TraceEvent(name, stream, last[stream], at - last[stream]))
            last[stream] = at
        return found


def copies_under_kernels(events: list[TraceEvent]) -> tuple[float, float]:
    """Return milliseconds of copies, and how many of them overlap a stage on another stream."""
    by_start = sorted(events, key=lambda event: event.start)
    total = hidden = 0.0
    for copy in (event for event in events if event.category == COPY):
        total += copy.length
        reached = copy.start
        for other in by_start:
            start, end = max(other.start, reached), min(other.end, copy.end)
            if other.category == STAGE and other.stream != copy.stream and end > start:
                hidden += end - start
                reached = end
    return total, hidden


def chrome_trace(
    events: list[TraceEvent], title: str, stream: str = "stream {}", interrupted: bool = False
) -> dict[str, Any]:
    """Return the events, one thread per stream, as an object for chrome://tracing or Perfetto."""

    def event_of(name: str, kind: str, thread: int, **more: Any) -> dict[str, Any]:
        return {"name": name, "ph": kind, "pid": os.getpid(), "tid": thread} | more

    streams = sorted({event.stream for event in events})
    names = [("process_name", 0, title), *(("thread_name", n, stream.format(n)) for n in streams)]
    found = [event_of(kind, "M", thread, args={"name": name}) for kind, thread, name in names]
    for event in events:
        times = {"cat": event.category, "ts": 1e3 * event.start, "dur": 1e3 * event.length}
        found.append(event_of(event.name, "X", event.stream, **times))
    total, hidden = copies_under_kernels(events)
    other = {"title": title, "interrupted": interrupted}
    other |= {"copies_ms": total, "copies_under_kernels_ms": hidden}
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": other}
