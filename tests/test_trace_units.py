"""Chrome's traces are in microseconds; ours come in milliseconds."""

from __future__ import annotations

import json

import pytest

from lenetgpu.measure.trace import TraceEvent, category_of, chrome_trace, copies_under_kernels


def spans(events):
    return [e for e in json.loads(chrome_trace(events, "t"))["traceEvents"] if e["ph"] == "X"]


def test_a_millisecond_is_a_thousand_of_a_traces_units():
    (copy, first, second) = spans(
        [
            TraceEvent("images to device", "copy", 0, 0.0, 0.25),
            TraceEvent("conv1", "stage", 0, 0.25, 1.5),
            TraceEvent("pool1", "stage", 3, 1.75, 0.125),
        ]
    )
    assert (copy["ts"], copy["dur"]) == (0, 250)
    assert (first["ts"], first["dur"], first["tid"]) == (250, 1500, 0)
    assert (second["ts"], second["dur"], second["tid"]) == (1750, 125, 3)
    assert [event["cat"] for event in (copy, first, second)] == ["copy", "stage", "stage"]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("copy to cuda", "copy"),
        ("images to device", "copy"),
        ("labels to host", "copy"),
        ("conv1", "stage"),
        ("NHWC to NCHW", "stage"),
    ],
)
def test_what_moves_between_host_and_device_is_a_copy(name, category):
    assert category_of(name) == category


def test_only_another_lanes_stage_hides_a_copy():
    copy = TraceEvent("labels to host", "copy", 0, 1.0, 4.0)
    assert copies_under_kernels([copy, TraceEvent("fc1", "stage", 0, 0.0, 9.0)]) == (4.0, 0.0)
    assert copies_under_kernels([copy, TraceEvent("fc1", "stage", 1, 0.0, 2.0)]) == (4.0, 1.0)
    assert copies_under_kernels([copy, TraceEvent("fc1", "stage", 1, 4.0, 9.0)]) == (4.0, 1.0)
    assert copies_under_kernels([copy, TraceEvent("fc1", "stage", 1, 5.0, 9.0)]) == (4.0, 0.0)
