"""One image by a recorded pass, on a GPU that is pretended: who waits for what."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu.errors import LenetError
from lenetgpu.net.streaming import one as module
from lenetgpu.net.streaming.one import OneImage


class Stream:
    """What is launched on it is done when it is waited for."""

    def __init__(self):
        self.pending, self.waits = [], 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def synchronize(self):
        self.waits += 1
        while self.pending:
            self.pending.pop(0)()


class Recorded:
    """A graph that is over at once, or when its stream is waited for."""

    prompt, fails = True, False

    def __init__(self, work, calls):
        if self.fails:
            raise RuntimeError("operation not permitted")
        assert calls == 1
        self.work, self.stream = work, Stream()

    def launch_alone(self):
        if self.prompt:
            self.work()
        else:
            self.stream.pending.append(self.work)


class Pipe:
    input_dtype, labels_by_kernel = "uint8", True
    plan = SimpleNamespace(name="pretended")

    def run(self, image, observer=None, labels=None):
        labels[0] = self.found(image)
        return labels

    def found(self, image):
        return int(image[0, 3, 4, 0])

    def scores(self, n):
        return np.arange(10, dtype=np.float32)[None]


@pytest.fixture
def gpu(monkeypatch):
    device = SimpleNamespace(stream=Stream, mapped=lambda array: array)
    monkeypatch.setattr(module, "Cuda", lambda: device)
    monkeypatch.setattr(module, "pinned_empty", np.empty)
    monkeypatch.setattr(module, "_LOOKS", 50)
    kind = type("Kind", (Recorded,), {})
    monkeypatch.setattr(module, "Graph", kind)
    return kind


def image(label):
    made = np.zeros((28, 28), np.uint8)
    made[3, 4] = label
    return made


def test_labels_are_seen_without_a_wait(gpu):
    one = OneImage(lambda n: Pipe())
    for label in (3, 0, 9, 9, 4):
        assert one.label(image(label)) == label
        assert one.label(image(label)[..., None]) == label
    assert one._graph.stream.waits == 0
    np.testing.assert_array_equal(one.scores(), np.arange(10))
    assert one._graph.stream.waits == 1


def test_a_label_that_is_long_in_coming_is_waited_for(gpu):
    gpu.prompt = False
    one = OneImage(lambda n: Pipe())
    assert [one.label(image(label)) for label in (3, 3, 7)] == [3, 3, 7]


def test_a_pass_that_ctrl_c_left_is_over_before_the_next(gpu, monkeypatch):
    """Its label would be taken for the next one's."""
    gpu.prompt = False
    one = OneImage(lambda n: Pipe())
    with monkeypatch.context() as interrupted:

        def leave():
            raise KeyboardInterrupt

        interrupted.setattr(one._graph.stream, "synchronize", leave)
        with pytest.raises(KeyboardInterrupt):
            one.label(image(5))
    assert one._graph.stream.pending
    assert one.label(image(2)) == 2
    assert one._graph.stream.waits == 2


def test_no_label_is_said(gpu):
    one = OneImage(lambda n: Pipe())
    one._graph.work = lambda: None
    with pytest.raises(LenetError, match="expected a label from the GPU, found none"):
        one.label(image(1))


def test_plans_that_cannot_be_recorded_are_refused(gpu):
    gpu.fails = True
    with pytest.raises(LenetError, match="plan pretended: expected one that a CUDA graph can hold"):
        OneImage(lambda n: Pipe())
    elsewhere = type("Elsewhere", (Pipe,), {"labels_by_kernel": False})
    with pytest.raises(LenetError, match="expected labels of the GPU, found them on the CPU"):
        OneImage(lambda n: elsewhere())
