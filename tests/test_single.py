"""The net's way to a GPU that is not there: whose turn it is, and which device is current."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu.net import images as module
from lenetgpu.net import single as single_module
from lenetgpu.net.homes import Home
from lenetgpu.net.single import Single
from lenetgpu.stages.fused import resident


@pytest.fixture
def current(monkeypatch):
    """The GPUs that are current, the last of which is: a CuPy of nothing but devices."""
    entered = [0]

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            entered.append(self.index)

        def __exit__(self, *error):
            entered.pop()

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(Device=Device)))
    return entered


class Resident:
    """Scores are ten times the last image's first pixel; another image may come before them."""

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


def test_a_label_waits_for_the_scores_of_the_image_before(current, monkeypatch):
    monkeypatch.setattr(resident, "Resident", Resident)
    monkeypatch.setattr(single_module, "check_resident", lambda net, weights: None)
    single = Single(SimpleNamespace(gpu=SimpleNamespace(index=1), weights=None))
    with ThreadPoolExecutor(1) as other:
        scored = other.submit(single.answer, np.full((1, 28, 28, 1), 3, np.uint8), True)
        assert single._resident.asked.wait(10)
        assert single.label(np.full((28, 28), 7, np.uint8)) == 7
        labels, scores = scored.result()
    assert labels.tolist() == [3]
    assert scores.tolist() == [[3.0] * 10]


def test_images_are_viewed_on_their_own_gpu(current, monkeypatch):
    """CuPy refuses to enter a stream of a GPU that is not the current one."""
    held = np.zeros((3, 28, 28), np.uint8)

    @contextmanager
    def stream():
        assert current[-1] == 1
        yield

    class There(Home):
        index = 1

        def stream(self):
            assert current[-1] == 1
            return stream()

    monkeypatch.setattr(module, "home_of", lambda images: There())
    assert module.take(held, "cuda:1").raw is held
    assert current == [0]
