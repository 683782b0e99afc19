"""Chrome traces: times, processes, streams, and which copies are hidden under kernels."""

import json
import os

import pytest
from terminal import run

from lenetgpu.measure import trace
from lenetgpu.measure.trace import TraceEvent, Tracer, chrome_trace, copies_under_kernels


def parts(document):
    """Return the spans, and the names by (kind, thread)."""
    events = document["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    names = {(e["name"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert len(names) + len(spans) == len(events)
    assert {event["pid"] for event in events} == {os.getpid()}
    return spans, names


def test_trace_names_streams_and_uses_microseconds():
    events = [TraceEvent("conv1", stream, 2.0, 1.0) for stream in (0, 3)]
    spans, names = parts(chrome_trace(events, "lenetgpu profile --plan fp16 on Card"))
    assert [(span["ts"], span["dur"]) for span in spans] == [(2000.0, 1000.0)] * 2
    assert names == {
        ("process_name", 0): "lenetgpu profile --plan fp16 on Card",
        ("thread_name", 0): "stream 0",
        ("thread_name", 3): "stream 3",
    }


class Event:
    """Stand-in for CuPy's event; its time (ms) comes from a clock that the test moves."""

    now = 10.0

    def record(self):
        self.at = 1e3 * Event.now

    def synchronize(self):
        pass


@pytest.mark.parametrize("on_gpu", [False, True])
def test_operations_are_timed_on_their_stream_slots(on_gpu, monkeypatch):
    monkeypatch.setattr(trace, "clock", lambda: Event.now)
    monkeypatch.setattr(trace, "hold_events", lambda: (Event, lambda one, two: two.at - one.at))
    tracer = Tracer(on_gpu)
    for stream, name, step in ((0, None, 1), (1, None, 0.001), (0, "images to device", 0.002),
                             (1, "conv1", 0.004)):  # fmt: skip
        Event.now += step
        tracer.mark(stream, name)
    first, second = tracer.events()
    assert (first.name, first.category, first.stream) == ("images to device", "copy", 0)
    assert (first.start, first.length) == (0, pytest.approx(3))
    assert (second.name, second.category, second.stream) == ("conv1", "stage", 1)
    assert (second.start, second.length) == (pytest.approx(1), pytest.approx(6))


def test_copy_is_hidden_only_by_other_stream_slots():
    def hidden(stream, *spans):
        copy = TraceEvent("labels to host", 0, 1.0, 4.0)
        stages = [TraceEvent("fc1", stream, *span) for span in spans]
        return copies_under_kernels([copy, *stages])

    assert hidden(0, (0.0, 9.0)) == (4.0, 0.0)
    assert hidden(1, (0.0, 2.0)) == hidden(1, (4.0, 9.0)) == (4.0, 1.0)
    assert hidden(1, (0.0, 2.5), (1.5, 1.5)) == (4.0, 2.0), "once, what two stages hide"
    assert hidden(1, (5.0, 9.0)) == (4.0, 0.0)


def test_profile_trace_is_named_after_its_command(tmp_path):
    path, report = tmp_path / "t.json", tmp_path / "p.json"
    words = ["profile", "--limit", "70", "--device", "cpu", "--plan", "tiled", "--trace", str(path)]
    assert run(*words, "--json", report).exit_code == 0
    spans, names = parts(json.loads(path.read_text()))
    device = json.loads(report.read_text())["device"]["name"]
    assert names == {
        ("process_name", 0): f"lenetgpu profile --plan tiled on {device}",
        ("thread_name", 0): "all cores",
    }
    assert [span["name"] for span in spans].count("conv1") == 2  # chunks of 64 and 6 images
    ends = [span["ts"] + span["dur"] for span in spans]
    assert [span["ts"] for span in spans[1:]] == pytest.approx(ends[:-1])
    assert 10 < ends[-1] < 60e6
    assert json.loads(path.read_text())["otherData"]["interrupted"] is False
