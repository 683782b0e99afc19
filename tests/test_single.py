"""Single images on a simulated GPU: the path that answers them, and synchronization."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu.errors import LenetError
from lenetgpu.net import single
from lenetgpu.net.single import OneImage, Single, one_image
from lenetgpu.stages.fused import persistent


class Stream:
    """A stream whose launches complete when it is synchronized."""

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
    """A graph that completes at once, or when its stream is synchronized."""

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
        labels[0] = int(image[0, 3, 4, 0])
        return labels

    def scores(self, n):
        return np.arange(10, dtype=np.float32)[None]


@pytest.fixture
def gpu(monkeypatch):
    device = SimpleNamespace(stream=Stream, mapped=lambda array: array)
    monkeypatch.setattr(single, "Cuda", lambda: device)
    monkeypatch.setattr(single, "pinned_empty", np.empty)
    monkeypatch.setattr(single, "_POLLS", 50)
    kind = type("Kind", (Recorded,), {})
    monkeypatch.setattr(single, "Graph", kind)
    return kind


def image(label):
    made = np.zeros((28, 28), np.uint8)
    made[3, 4] = label
    return made


def test_labels_are_read_without_synchronizing(gpu):
    one = OneImage(lambda n: Pipe())
    for label in (3, 0, 9, 9, 4):
        assert one.label(image(label)) == label
        assert one.label(image(label)[..., None]) == label
    assert one._graph.stream.waits == 0
    np.testing.assert_array_equal(one.scores(), np.arange(10))
    assert one._graph.stream.waits == 1


def test_late_labels_are_waited_for_after_ctrl_c(gpu, monkeypatch):
    """Otherwise its label would be taken for the next image's."""
    gpu.prompt = False
    one = OneImage(lambda n: Pipe())
    assert [one.label(image(label)) for label in (3, 3, 7)] == [3, 3, 7]
    with monkeypatch.context() as interrupted:

        def leave():
            raise KeyboardInterrupt

        interrupted.setattr(one._graph.stream, "synchronize", leave)
        with pytest.raises(KeyboardInterrupt):
            one.label(image(5))
    assert one._graph.stream.pending
    before = one._graph.stream.waits
    assert one.label(image(2)) == 2 and one._graph.stream.waits == before + 2
    one._graph.work = lambda: None
    with pytest.raises(LenetError, match="expected a label from the GPU, found none"):
        one.label(image(1))


def test_plans_that_cannot_be_graphs_are_refused(gpu):
    gpu.fails = True
    with pytest.raises(
        LenetError, match="plan pretended: expected one that a CUDA graph can record"
    ):
        OneImage(lambda n: Pipe())
    elsewhere = type("Elsewhere", (Pipe,), {"labels_by_kernel": False})
    with pytest.raises(LenetError, match="expected labels computed on the GPU, found the CPU"):
        OneImage(lambda n: elsewhere())


@pytest.fixture
def ways(monkeypatch):
    """Return a dict from the name of a path to the error that it raises."""
    refusing = {}

    def made(name, *given):
        if name in refusing:
            raise refusing[name]
        return name

    monkeypatch.setattr(persistent, "Once", partial(made, "once"))
    monkeypatch.setattr(single, "OneImage", partial(made, "recorded"))
    monkeypatch.setattr(single, "check_persistent", partial(made, "check"))
    return refusing


def asked(precision="fp32", dtype="uint8", auto=True):
    return one_image(SimpleNamespace(precision=precision), "weights", dtype, auto, None)


def test_plans_of_fp32_accuracy_use_the_persistent_kernel(ways):
    assert asked("fp32") == asked("fp16x3") == "once"
    assert asked("fp16") == asked(dtype="float32") == asked(auto=False) == "recorded"


@pytest.mark.parametrize("refusal", ["once", "check"])
def test_persistent_kernel_falls_back_to_the_plan(ways, refusal):
    ways[refusal] = LenetError("not here")
    assert asked() == "recorded"
    ways["recorded"] = MemoryError()
    assert asked() is None
    ways[refusal] = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        asked()


class Persistent:
    """A stub with scores ten times the last image's first pixel; another call may interleave."""

    def __init__(self, weights):
        self.asked, self.other = threading.Event(), threading.Event()

    def label(self, image):
        self.last = int(image[0, 0])
        if self.asked.is_set():
            self.other.set()
        return self.last

    def scores(self):
        self.asked.set()
        self.other.wait(0.2)
        return np.full(10, self.last, np.float32)


def test_label_waits_for_pending_scores(monkeypatch):
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda index: nullcontext()))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(persistent, "Persistent", Persistent)
    monkeypatch.setattr(single, "check_persistent", lambda net, weights: None)
    net = Single(SimpleNamespace(index=1), "so", None)
    with ThreadPoolExecutor(1) as other:
        scored = other.submit(net.answer, np.full((1, 28, 28, 1), 3, np.uint8), True)
        assert net._persistent.asked.wait(10)
        assert net.label(np.full((28, 28), 7, np.uint8)) == 7
        labels, scores = scored.result()
    assert labels.tolist() == [3]
    assert scores.tolist() == [[3.0] * 10]
