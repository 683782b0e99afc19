"""Which operations are copies, and how much of them runs under other streams' stages."""

from __future__ import annotations

import pytest

from lenetgpu.measure.trace import TraceEvent, category_of, copies_under_kernels


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
