"""Chrome traces: times, processes and lanes as chrome://tracing and Perfetto read them."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.measure import trace
from lenetgpu.measure.trace import CpuTracer, GpuTracer, TraceEvent, chrome_trace


def parts(document):
    """The spans, and the names by (what is named, thread)."""
    events = json.loads(document)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    names = {(e["name"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert len(names) + len(spans) == len(events)
    assert {event["pid"] for event in events} == {os.getpid()}
    return spans, names


def test_a_millisecond_is_a_thousand_microseconds():
    spans, _ = parts(chrome_trace([TraceEvent("conv1", "stage", 0, 2.0, 1.0)], "t"))
    assert [(span["ts"], span["dur"]) for span in spans] == [(2000.0, 1000.0)]


def test_the_process_and_its_streams_have_names():
    events = [TraceEvent("conv1", "stage", lane, 0.0, 1.0) for lane in (0, 3)]
    _, names = parts(chrome_trace(events, "lenetgpu profile --plan fp16 on Card"))
    assert names == {
        ("process_name", 0): "lenetgpu profile --plan fp16 on Card",
        ("thread_name", 0): "stream 0",
        ("thread_name", 3): "stream 3",
    }


class Clock:
    """A clock in seconds that is moved by hand."""

    now = 10.0

    def __call__(self):
        return self.now


def test_the_clock_is_in_seconds_and_events_in_milliseconds(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(trace, "clock", clock)
    tracer = CpuTracer()
    clock.now += 0.005
    tracer.mark(0, None)
    clock.now += 0.001
    tracer.mark(0, "conv1")
    clock.now += 0.25
    tracer.mark(0, "pool1")
    found = [(e.name, e.category, e.start, e.length) for e in tracer.events()]
    assert found == [
        ("conv1", "stage", pytest.approx(5), pytest.approx(1)),
        ("pool1", "stage", pytest.approx(6), pytest.approx(250)),
    ]


class Event:
    """As CuPy's: its time in milliseconds is when it was recorded."""

    clock = Clock()

    def record(self):
        self.at = 1e3 * self.clock.now

    def synchronize(self):
        pass


def test_a_gpus_events_are_in_milliseconds_on_their_lanes(monkeypatch):
    monkeypatch.setattr(trace, "hold_events", lambda: (Event, lambda one, two: two.at - one.at))
    tracer = GpuTracer()
    for lane, name, step in ((0, None, 1), (1, None, 0.001), (0, "images to device", 0.002),
                             (1, "conv1", 0.004)):  # fmt: skip
        Event.clock.now += step
        tracer.mark(lane, name)
    first, second = tracer.events()
    assert (first.name, first.category, first.lane) == ("images to device", "copy", 0)
    assert (first.start, first.length) == (0, pytest.approx(3))
    assert (second.category, second.lane) == ("stage", 1)
    assert (second.start, second.length) == (pytest.approx(1), pytest.approx(6))


def test_a_profile_traces_under_the_name_of_its_command(tmp_path):
    path, report = tmp_path / "t.json", tmp_path / "p.json"
    words = ["profile", "--limit", "70", "--device", "cpu", "--plan", "tiled", "--trace", str(path)]
    assert CliRunner().invoke(main, [*words, "--json", str(report)]).exit_code == 0
    spans, names = parts(path.read_text())
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
