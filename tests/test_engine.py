"""Preparing and running a request on a simulated GPU: memory, schedules, threads."""

import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from pretended_gpu import PretendedGpu, PretendedPipeline, pinned, pixels

from lenetgpu.check import warmup
from lenetgpu.errors import LenetError
from lenetgpu.files.reading import MemorySource
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.outcome import Request
from lenetgpu.net import engine as engine_module
from lenetgpu.net import runners
from lenetgpu.net.engine import Engine
from lenetgpu.net.runners import GpuRunner
from lenetgpu.net.streaming import streamer as streamer_module
from lenetgpu.net.streaming.schedule import Costs, Schedule
from lenetgpu.network import CLASSES


@pytest.fixture
def fits(monkeypatch):
    """Record the calls of `fit`; more images than `capacity` raise the error made by `refusal`."""
    asked = SimpleNamespace(capacity=1 << 30, refusal=MemoryError, sizes=[], alive=[], held=[])

    def fit(plan, weights, device, dtype, size, precision):
        asked.alive.append(sum(ref() is not None for ref in asked.held))
        asked.sizes.append((dtype, size))
        buffer = np.empty(size)
        asked.held.append(weakref.ref(buffer))
        if size > asked.capacity:
            raise asked.refusal()

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setattr(engine_module, "choose_device", lambda *_: (Gpu(0, "pretended", 90), "so"))
    monkeypatch.setattr(engine_module.gpu_device, "activate", lambda gpu: None)
    monkeypatch.setattr(engine_module, "default_chunk", lambda device, fused: 40_000)
    monkeypatch.setattr(warmup, "compile_plan", lambda plan, images: None)
    monkeypatch.setattr(engine_module, "fit", fit)
    return asked


def test_memory_is_freed_before_smaller_chunks_are_tried(fits):
    fits.capacity = 30
    engine = Engine(Request(plan="fp32"))
    assert engine.check("uint8", 100) == 25
    assert fits.sizes == [("uint8", 100), ("uint8", 50), ("uint8", 25)]
    assert fits.alive == [0, 0, 0]
    assert engine.check("uint8", 25) == 25 and len(fits.sizes) == 3
    engine.pipeline = lambda *asked: asked
    assert engine.whole_pipeline("uint8", 25) == ("uint8", 25, None, None)


def test_exhausted_memory_and_other_errors_are_raised(fits):
    fits.capacity = 0
    sentence = "plan fp32: expected memory for one image, found: no more memory"
    with pytest.raises(LenetError, match=sentence):
        Engine(Request(plan="fp32")).check("uint8", 1)
    fits.refusal = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        Engine(Request(plan="fp32")).check("uint8", 8)
    assert len(fits.sizes) == 3


@pytest.fixture
def schedules(monkeypatch):
    """Return the list of schedules that runners are made with; no GPU runs them."""
    made = []
    monkeypatch.setattr(
        engine_module, "GpuRunner", lambda make, schedule, *more: made.append(schedule)
    )
    return made


@pytest.mark.parametrize(("batch", "zero_copy"), [(None, True), (5_000, True), (100, False)])
def test_zero_copy_is_used_where_faster(fits, schedules, monkeypatch, batch, zero_copy):
    """Each chunk of a batch has a start-up cost, so small chunks are copied."""
    costs = Costs(50, 2, 3, 5, 3, 10, 784, 48, 6)
    monkeypatch.setattr("lenetgpu.net.streaming.costs.costs_of", lambda *_: costs)
    engine = Engine(Request(plan="fp32", batch=batch))
    engine.start("uint8", 10_000)
    engine.runner("uint8", 10_000)
    (schedule,) = schedules
    assert schedule == engine.schedule("uint8") and schedule.zero_copy == zero_copy
    assert schedule.chunk <= (batch or 10_000)
    if zero_copy:
        chunks = -(-10_000 // schedule.chunk)
        assert schedule.model["predicted"] == pytest.approx((10 + 6 * chunks + 7_840 / 48) / 1e3)


def test_each_dtype_keeps_its_schedule(fits, schedules, monkeypatch):
    """A later runner of the first type uses the schedule that was checked for it."""
    costs = {
        "uint8": Costs(50, 1, 2, 5, 3, 10, 784, 40, 900),
        "float32": Costs(50, 1, 2, 5, 3, 10, 3_136, 40, 900),
    }
    monkeypatch.setattr(
        "lenetgpu.net.streaming.costs.costs_of", lambda plan, weights, gpu, dtype: costs[dtype]
    )
    engine = Engine(Request(plan="fp32"))
    engine.start("uint8", 10_000)
    engine.runner("uint8", 10_000)
    before = engine.schedule("uint8")
    fits.capacity = 200
    engine.start("float32", 10_000)
    assert engine.schedule("float32").chunk <= 200 < before.chunk
    engine.runner("uint8", 10_000)
    engine.runner("float32", 10_000)
    assert schedules[0] == schedules[1] == before != schedules[2]
    assert engine.schedule("uint8") == before and before.model != engine.schedule("float32").model
    assert ("uint8", before.chunk) in fits.sizes


def test_threads_prepare_runners_one_at_a_time(fits, schedules, monkeypatch):
    """A single image is checked once, and no thread's time is lost or counted for another."""
    inside, most, plain = [], [], engine_module.fit

    def slowly(*asked):
        inside.append(1)
        time.sleep(0.02)
        most.append(len(inside))
        inside.pop()
        plain(*asked)

    engine = Engine(Request(plan="fp32", streams=2, chunk=50))
    engine.start("uint8", 100)
    fits.sizes.clear()
    monkeypatch.setattr(engine_module, "fit", slowly)
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(lambda _: engine.runner("uint8", 100, False, True), range(4)))
    assert fits.sizes == [("uint8", 1)] and most == [1]
    assert [(s.chunk, s.streams, s.taper) for s in schedules] == [(50, 2, 1.0)] * 4


@pytest.fixture
def gpu(monkeypatch):
    made = PretendedGpu()
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda index: nullcontext()))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(streamer_module, "Streamer", partial(streamer_module.Streamer, device=made))
    monkeypatch.setattr(
        streamer_module,
        "host_results",
        lambda n, scored: (
            made.pinned((n,), "int32"), made.pinned((n, CLASSES), "float32") if scored else None
        ),
    )  # fmt: skip
    monkeypatch.setattr(runners, "host_empty", made.pinned)
    return made


def runner_on(gpu, size=4, streams=2, scores=True, **schedule):
    def make(n):
        gpu.allocate(n)
        return PretendedPipeline(gpu, n, scores)

    return GpuRunner(make, Schedule(streams, size, **schedule), 0)


def expected(images):
    labels = images[:, 0, 0, 0].astype(np.int32)
    return labels, labels[:, None] + np.arange(CLASSES)


@pytest.mark.parametrize("page_locked", [False, True])
@pytest.mark.parametrize("n", [0, 1, 5, 6, 9, 40])
def test_few_images_are_staged_and_many_are_streamed(gpu, monkeypatch, n, page_locked):
    """Passes are recorded at the second call; results are no views of reused buffers."""
    monkeypatch.setattr(runners, "_STAGES", (5, 9))
    monkeypatch.setattr(runners, "MANY", 6)
    runner, kept = runner_on(gpu), []
    runner._one = n != 1 or None  # for single images only
    images = pinned(gpu, pixels(n)) if page_locked else pixels(n)
    for seed in range(4):
        images[...] = pixels(n, seed=seed)
        labels, scores = runner.answer(images, True)
        np.testing.assert_array_equal(labels, expected(images)[0])
        np.testing.assert_array_equal(scores, expected(images)[1])
        kept.append((labels, labels.copy()))
    for labels, copy in kept:
        np.testing.assert_array_equal(labels, copy)
    parts = 1 if page_locked or n < 6 else n // 3
    if n > 9:
        assert gpu.launches > 0  # of graphs of the ring's buffers
    else:
        assert gpu.launches == (3 * parts if n else 0)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_of_whole_pixels_travel_as_bytes(gpu, monkeypatch, kind):
    monkeypatch.setattr(runners, "_STAGES", (5, 9))
    monkeypatch.setattr(runners, "MANY", 6)
    runner, images = runner_on(gpu), pixels(20)
    floats = (images / kind(255)).astype(kind)
    for _ in range(3):
        labels, scores = runner.answer_exact(floats, True)
        np.testing.assert_array_equal(labels, expected(images)[0])
        np.testing.assert_array_equal(scores, expected(images)[1])
    assert max(gpu.copied) == 784 * 4
    floats[19, 3, 3] += 1e-6
    assert runner.answer_exact(floats, True) is None
    assert (runner.answer(images, True)[0] == labels).all() and gpu.pending == []
    runner._page_locked = False
    assert runner.answer_exact(floats[:8], True) is None
    assert (runner.answer(images[:8], True)[0] == labels[:8]).all()


def test_source_is_read_pinned_or_in_parts(gpu):
    runner, images = runner_on(gpu), pixels(30)
    source = MemorySource(images, None, "memory")
    labels, scores = runner.results(30, True)
    whole = runner.whole(source, labels, scores)
    assert gpu.is_pinned(whole.ctypes.data, whole.nbytes) and (whole == images).all()
    assert (labels == 0).all() and runner.done == 0 and gpu.launches == 1
    counts = []
    runner.run(whole, labels, scores, counts.append)
    assert (labels == expected(images)[0]).all() and sum(counts) == runner.done == 30
    assert gpu.launches == 2
    found = []
    runner.run_source(source, lambda labels, scores: found.append((labels.copy(), scores.copy())))
    np.testing.assert_array_equal(np.concatenate([part[0] for part in found]), labels)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in found]), scores)
