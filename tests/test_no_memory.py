"""Failed allocations of any library at any place: smaller chunks, same labels, a message."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from pretended_gpu import PretendedGpu, pinned, pixels, results, streamer_on

from lenetgpu import LeNet
from lenetgpu.dispatch import auto as choice
from lenetgpu.errors import LenetError
from lenetgpu.gpu import faults, workspace
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.faults import lacks_memory, within_memory
from lenetgpu.measure import rounds
from lenetgpu.net.streaming import streamer as streamer_module

HOPPER = Gpu(0, "Some Hopper", 90)


def named(name, status=None, text="refused", result=None):
    """Return an error with the name and number of one of CuPy's classes."""
    error = type(name, (RuntimeError,), {})(text)
    for word, value in (("status", status), ("result", result)):
        if value is not None:
            setattr(error, word, value)
    return error


def wrapped(cause):
    error = LenetError("a 3D texture: expected the device to make one")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (MemoryError(), True),
        (named("OutOfMemoryError"), True),
        (named("CUBLASError", 3), True),
        (named("CuFFTError", result=2), True),
        (named("CuDNNError", 99, "CUDNN_STATUS_ALLOC_FAILED: no"), True),
        (wrapped(named("CUDARuntimeError", 2)), True),
        (named("CUDARuntimeError", 700), False),
        (named("CUBLASError", 13, "CUBLAS_STATUS_EXECUTION_FAILED"), False),
        (named("NVRTCError", 2), False),
        (ValueError("CUBLAS_STATUS_ALLOC_FAILED"), False),
    ],
)
def test_out_of_memory_errors_of_all_libraries_are_recognized(error, lacks):
    assert lacks_memory(error) == lacks
    assert faults.sentence(error).startswith("memory: expected enough") == lacks
    assert (rounds.why(error).startswith("requires more memory")) == lacks


@pytest.mark.parametrize(("free", "lacks"), [(64 << 20, True), (1 << 30, False), (None, False)])
def test_cufft_internal_error_with_little_memory_is_oom(monkeypatch, free, lacks):
    def mem_info():
        if free is None:
            raise named("CUDARuntimeError", 700)
        return free, 80 << 30

    runtime = SimpleNamespace(memGetInfo=mem_info)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    assert lacks_memory(named("CuFFTError", result=5)) == lacks
    assert not lacks_memory(named("CuFFTError", result=3))


def test_smaller_sizes_are_tried_after_freeing_memory(monkeypatch):
    tried, given_back = [], []
    monkeypatch.setattr(faults, "release", lambda: given_back.append(len(tried)))

    def make(n):
        tried.append(n)
        if n > 30:
            raise named("CUBLASError", 3)
        return "made"

    assert within_memory(make, 100, "plan x") == ("made", 25)
    assert (tried, given_back) == ([100, 50, 25], [1, 2])

    def full(n):
        tried.append(n)
        raise MemoryError("line one\nline two")

    with pytest.raises(LenetError, match="plan x: expected memory for one image, found: line one$"):
        within_memory(full, 3, "plan x")
    assert tried[3:] == [3, 2, 1, 1], "what was given back may be enough for one"
    with pytest.raises(ZeroDivisionError):
        within_memory(lambda n: n // 0, 3, "plan x")


def test_pageable_memory_is_the_fallback_for_pinned(monkeypatch):
    def refuse(shape, dtype):
        raise named("CUDARuntimeError", 2)

    monkeypatch.setattr(workspace, "pinned_empty", refuse)
    array = workspace.host_empty((3, 5), "float32")
    assert (array.shape, array.dtype) == ((3, 5), np.float32)
    monkeypatch.setattr(workspace, "pinned_empty", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        workspace.host_empty((3, 5), "float32")


class Refusing(PretendedGpu):
    """Counts allocations of memory and resources; fails `times` of them from the `at`-th on."""

    def __init__(self, at, times=1, **how):
        super().__init__(**how)
        self.asked, self.at, self.times = 0, at, times

    def take(self):
        self.asked += 1
        if self.at <= self.asked < self.at + self.times:
            kinds = (MemoryError(), named("CUDARuntimeError", 2), named("CUBLASError", 3))
            raise kinds[self.asked % 3]

    def stream(self):
        self.take()
        return super().stream()

    def event(self):
        self.take()
        return super().event()

    def allocate(self, images):
        self.take()
        super().allocate(images)

    def pinned(self, shape, dtype):
        self.take()
        return super().pinned(shape, dtype)

    def record_graph(self, work, streams):
        self.take()
        graph = super().record_graph(work, streams)
        launch = graph.launch_alone

        def launch_alone(*stream):
            self.take()
            launch(*stream)

        graph.launch_alone = launch_alone
        return graph


def passes(gpu, locked):
    """Check labels and scores of five passes, each with other pixels; return the streamer."""
    free, gpu.take = gpu.take, lambda: None
    given, (labels, scores) = pixels(23), results(gpu, 23)
    images = pinned(gpu, given) if locked else given.copy()
    if not locked:
        labels, scores = labels.copy(), scores.copy()
    gpu.take = free
    streamer = streamer_on(gpu, 8, 2)
    for again in range(5):
        images[...] = pixels(23, seed=again)
        labels[...], scores[...] = -1, np.nan
        streamer.run(images, labels, scores)
        np.testing.assert_array_equal(labels, images[:, 0, 0, 0])
        np.testing.assert_array_equal(scores[:, 0], images[:, 0, 0, 0])
        assert streamer.done == 23
    return streamer


@pytest.mark.parametrize("locked", [True, False])
def test_labels_survive_any_failed_allocation(locked, monkeypatch):
    """Every allocation in turn fails once: slots, ring, events, graphs, and their launches."""
    monkeypatch.setattr(streamer_module, "core_count", lambda: 2)
    probe = Refusing(1 << 30)
    assert passes(probe, locked).chunk == 8
    assert probe.asked >= 14
    chunks = set()
    for at in range(1, probe.asked + 1):
        gpu = Refusing(at, seed=at)
        chunks.add(passes(gpu, locked).chunk)
        assert gpu.asked >= at
    assert chunks == {4, 8}  # a graph that cannot be recorded is no reason for smaller chunks


def test_missing_memory_for_one_image_is_reported():
    for at in range(1, 8):
        with pytest.raises(LenetError, match="expected room for one image on 2 streams, found no"):
            passes(Refusing(at, times=1 << 30), False)


class TimedGpu:
    """Plan `auto`'s candidates: the time of each, and the images at which each step runs out."""

    def __init__(self, monkeypatch, tmp_path):
        monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path))
        self.ms = {"fp32": 4, "sgemm": 1, "fp16x3": 2, "fp16x3_winograd": 2.5, "mma_fp16x3": 3}
        self.capacity = {}
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=self.resident))
        monkeypatch.setattr(choice, "default_chunk", lambda device: 40_000)
        monkeypatch.setattr("lenetgpu.gpu.nvrtc.compile_together", lambda kernels, arch: None)
        monkeypatch.setattr("lenetgpu.check.warmup.kernels_of", lambda plan, size: ())
        for module in (choice, faults):
            monkeypatch.setattr(module, "release", lambda: None)
        monkeypatch.setattr(choice, "verify_once", self.verify)
        monkeypatch.setattr(choice, "Pipeline", self.pipeline)
        monkeypatch.setattr(choice, "time_compute", self.time)
        monkeypatch.setattr(choice, "load_dataset", lambda path: SimpleNamespace(
            images=np.zeros((10_000, 1), np.uint8)))  # fmt: skip

    def ask(self, name, where, images):
        if images > self.capacity.get((name, where), 1 << 30):
            raise named("CUBLASError", 3, "CUBLAS_STATUS_ALLOC_FAILED")

    def resident(self, digits):
        self.ask("images", "resident", len(digits))
        return digits

    def verify(self, plan, device, dtype, images):
        self.ask(plan.name, "verify", images)

    def pipeline(self, plan, weights, images, dtype):
        self.ask(plan.name, "pipeline", images)
        return SimpleNamespace(name=plan.name, calls=0)

    def time(self, pipeline, resident):
        pipeline.calls += 1
        self.ask(pipeline.name, "first" if pipeline.calls == 1 else "later", len(resident))
        return self.ms[pipeline.name]


@pytest.fixture
def timed(monkeypatch, tmp_path):
    return TimedGpu(monkeypatch, tmp_path)


@pytest.mark.parametrize("where", ["verify", "pipeline", "first", "later"])
def test_auto_skips_and_names_candidates_without_memory(timed, where):
    timed.capacity["sgemm", where] = 0
    found = choice.measure(HOPPER, "fp32", 10_000)
    assert (found.plan, found.images) == ("fp16x3", 10_000)
    assert list(found.medians_ms) == ["fp32", "fp16x3", "fp16x3_winograd", "mma_fp16x3"]
    assert list(found.lacking) == ["sgemm"] and not found.wrong
    assert "sgemm without memory" in str(found)
    assert choice.remembered(HOPPER, "fp32", 10_000) is None, "the next may have the memory"
    timed.capacity.clear()
    again = choice.measure(HOPPER, "fp32", 10_000)
    assert again.plan == "sgemm" and choice.remembered(HOPPER, "fp32", 10_000) == again


def test_auto_measures_smaller_chunks_if_memory_is_short(timed):
    for name in timed.ms:
        timed.capacity[name, "pipeline"] = 1_250
    found = choice.measure(HOPPER, "fp32", 10_000)
    assert (found.plan, found.images, found.lacking) == ("sgemm", 1_250, {})
    assert choice.remembered(HOPPER, "fp32", 10_000) is None
    timed.capacity["images", "resident"] = 300
    assert choice.measure(HOPPER, "fp32", 10_000).images == 157
    timed.capacity["images", "resident"] = 0
    with pytest.raises(LenetError, match=r"plan auto \(fp32\): expected memory for one image"):
        choice.measure(HOPPER, "fp32", 10_000)


@pytest.mark.parametrize("ask", ["__call__", "scores", "probabilities", "top", "stream"])
def test_images_beyond_any_memory_are_refused(ask):
    """A view may have any number of images; nothing iterates over them."""
    one = np.zeros((28, 28), np.uint8)
    with LeNet.load(device="cpu") as net:
        call = getattr(net, ask) if ask != "stream" else lambda x: list(net.stream([x]))
        with pytest.raises(LenetError, match="free memory hold, found 40,000,000,000,000 bytes"):
            call(np.broadcast_to(one, (10**13, 28, 28)))
