"""Runners of host images: a GPU's on one that is pretended, a CPU's slices."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from pretended_gpu import PretendedGpu, PretendedPipeline, pixels

from lenetgpu.files.reading import MemorySource
from lenetgpu.net import runners, streaming
from lenetgpu.net.runners import Feed, GpuRunner
from lenetgpu.net.streaming import Streamer
from lenetgpu.network import CLASSES


@pytest.fixture
def gpu(monkeypatch):
    made = PretendedGpu()
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda index: nullcontext()))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(streaming, "Streamer", partial(Streamer, device=made))
    monkeypatch.setattr(
        streaming,
        "host_results",
        lambda n, scored: (
            made.pinned((n,), "int32"), made.pinned((n, CLASSES), "float32") if scored else None
        ),
    )  # fmt: skip
    monkeypatch.setattr(runners, "host_empty", made.pinned)
    return made


def runner_on(gpu, size=4, streams=2, scores=True, **feed):
    def make(n):
        gpu.allocate(n)
        return PretendedPipeline(gpu, n, scores)

    return GpuRunner(make, Feed(streams, size, **feed), 0)


def test_the_streamer_is_fed_as_asked(gpu):
    runner = runner_on(gpu, 7, 3, taper=0.5, zero_copy=True)
    made = runner._streamer
    assert (made.chunk, made.streams, made.taper, made.zero_copy) == (7, 3, 0.5, True)


def expected(images):
    labels = images[:, 0, 0, 0].astype(np.int32)
    return labels, labels[:, None] + np.arange(CLASSES)


@pytest.mark.parametrize("n", [0, 1, 5, 6, 9, 10, 40])
def test_few_images_go_through_staged_arrays_and_many_through_the_ring(gpu, monkeypatch, n):
    """Staged ones are recorded at their second pass, and answers are not views of what is held."""
    monkeypatch.setattr(runners, "_STAGES", (5, 9))
    monkeypatch.setattr(runners, "_COPIED_AT_ONCE", 2)
    runner, kept = runner_on(gpu), []
    for seed in range(4):
        images = pixels(n, seed=seed)
        labels, scores = runner.answer(images, True)
        np.testing.assert_array_equal(labels, expected(images)[0])
        np.testing.assert_array_equal(scores, expected(images)[1])
        kept.append((labels, labels.copy()))
    for labels, copy in kept:
        np.testing.assert_array_equal(labels, copy)
    assert gpu.launches == (3 if 0 < n <= 9 else 0)


def test_a_source_is_read_whole_into_page_locked_memory_or_in_order_by_parts(gpu):
    runner, images = runner_on(gpu), pixels(30)
    source = MemorySource(images, None, "memory")
    whole = runner.whole(source)
    assert gpu.is_pinned(whole.ctypes.data, whole.nbytes) and (whole == images).all()
    labels, scores = runner.results(30, True)
    told = []
    runner.run(whole, labels, scores, told.append)
    assert (labels == expected(images)[0]).all() and sum(told) == runner.done == 30
    found = []
    runner.run_source(source, lambda labels, scores: found.append((labels.copy(), scores.copy())))
    np.testing.assert_array_equal(np.concatenate([part[0] for part in found]), labels)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in found]), scores)


def test_a_lack_of_memory_is_a_note(gpu):
    gpu.room = 6
    runner = runner_on(gpu, size=8, streams=1, scores=False)
    assert runner.chunk < 8
    (note,) = runner.notes
    assert note.startswith("the GPU's memory did not hold chunks of 8 images")
    assert runner_on(gpu, size=1, streams=1).notes == []
