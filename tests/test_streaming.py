"""Chunks over stream slots, graphs and buffer rings, on a simulated GPU: order, memory."""

import gc
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from pretended_gpu import (
    FailingCopies,
    Interrupts,
    PretendedGpu,
    assert_right,
    assert_right_each_time,
    pinned,
    pixels,
    results,
    streamer_on,
)

from lenetgpu.errors import LenetError
from lenetgpu.files.reading import RawSource
from lenetgpu.files.source import open_source
from lenetgpu.jobs import worker
from lenetgpu.net.streaming import streamer as streamer_module
from lenetgpu.net.streaming.stream_slots import Chunk
from lenetgpu.network import CLASSES


@pytest.mark.parametrize("reaches_host", [True, False])
@pytest.mark.parametrize(("streams", "taper"), [(1, 1.0), (2, 2.0), (3, 0.25)])
@pytest.mark.parametrize("seed", range(3))
def test_every_execution_order_gives_the_same_labels(seed, streams, taper, reaches_host):
    gpu = PretendedGpu(seed=seed, reaches_host=reaches_host)
    streamer = streamer_on(gpu, 4, streams, taper=taper)
    assert_right_each_time(gpu, streamer, pinned(gpu, pixels(31)))


@pytest.mark.parametrize("reaches_host", [True, False])
@pytest.mark.parametrize(
    ("streams", "kind"), [(1, PretendedGpu), (3, PretendedGpu), (2, FailingCopies)]
)
def test_images_may_be_filled_during_a_pass(streams, kind, reaches_host):
    gpu, sizes = kind(seed=streams, reaches_host=reaches_host), (8, 8, 7, 5, 3)
    streamer, held = streamer_on(gpu, 8, streams), Chunk(pinned(gpu, pixels(31)), *results(gpu, 31))

    def filled(k):
        part = slice(sum(sizes[:k]), sum(sizes[: k + 1]))
        held.images[part] = images[part]
        for _ in gpu.pending[:3]:
            gpu.step()
        return True

    for again in range(4):
        images = pixels(31, seed=again)
        held.images[...], held.labels[...], held.scores[...] = 0, -1, np.nan
        assert streamer.run_filled(held, sizes, filled) and streamer.done == 31
        assert_right(images, held.labels, held.scores)
    assert gpu.launches == 3 * len(sizes)
    assert not streamer.run_filled(held, sizes, lambda k: k < 2)
    assert streamer.done == 0 and gpu.pending == []


def test_graph_is_bound_to_its_arrays():
    """Other arrays of the same length, or fewer of the same images, do not match the graph."""
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 2)
    images, others = pinned(gpu, pixels(10)), pinned(gpu, pixels(10, seed=1))
    labels, _ = results(gpu, 10)
    for given in (images, images, others, images[:7], images):
        labels[...] = -1
        streamer.run(given, labels[: len(given)])
        assert_right(given, labels[: len(given)])
        assert (labels[len(given) :] == -1).all()
    assert gpu.launches == 2


@pytest.mark.parametrize("reaches_host", [True, False])
def test_traced_pass_is_launched_and_marks_its_chunks(reaches_host):
    """Labels that a kernel writes to the host are not copied."""
    gpu = PretendedGpu(reaches_host=reaches_host)
    streamer, marks = streamer_on(gpu, 4, 2), []
    images, (labels, _) = pinned(gpu, pixels(10)), results(gpu, 10)
    for _ in range(2):
        streamer.run(images, labels)
    before = gpu.launches
    streamer.run(images, labels, mark=lambda *at: marks.append(at))
    assert gpu.launches == before
    names = [None, "images to device", "features", "classifier"]
    names += [] if reaches_host else ["labels to host"]
    assert marks == [(stream, name) for stream in (0, 1, 0) for name in names]


def test_unrecordable_work_is_launched():
    class Unrecorded(PretendedGpu):
        tried = 0

        def record_graph(self, work, streams):
            self.tried += 1
            raise RuntimeError("not permitted")

    gpu = Unrecorded()
    streamer = streamer_on(gpu, 4, 2)
    images, (labels, _) = pinned(gpu, pixels(10)), results(gpu, 10)
    for _ in range(4):
        labels[...] = -1
        streamer.run(images, labels)
        assert_right(images, labels)
    assert streamer._replays.refusal == "not permitted" and gpu.tried == 1


def test_mismatched_arrays_are_refused():
    streamer = streamer_on(PretendedGpu(), 4, 1)
    images, labels = pixels(6), np.zeros(6, np.int32)
    for wrong in (
        (images.astype(np.float32), labels),
        (images[::2], labels[:3]),
        (images, labels[:5]),
        (images, labels, np.zeros((6, 9), np.float32)),
    ):
        with pytest.raises(LenetError, match=r"expected a C-contiguous array .* found"):
            streamer.run(*wrong)


def test_chunks_queued_before_ctrl_c_have_labels():
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 2)
    images, (labels, _) = pinned(gpu, pixels(30)), results(gpu, 30)
    counts = Interrupts(at=3)
    with pytest.raises(KeyboardInterrupt):
        streamer.run(images, labels, on_chunk=counts)
    assert streamer.done == 12 and counts.counts == [4, 4, 4]
    assert_right(images[:12], labels[:12])
    assert (labels[12:] == -1).all() and gpu.pending == []


@pytest.mark.parametrize("capacity", [16, 9, 8, 2])
def test_chunks_shrink_until_stream_slots_fit(capacity):
    gpu = PretendedGpu(capacity=capacity)
    with pytest.raises(LenetError, match="GPU memory: expected room for one image on 2 streams"):
        streamer_on(PretendedGpu(capacity=1), 16, 2)
    streamer = streamer_on(gpu, 16, 2)
    fitting = {16: 8, 9: 4, 8: 4, 2: 1}[capacity]
    assert streamer.chunk == fitting and streamer.requested == 16 and gpu.released
    assert f"are of {fitting}" in streamer.shrunk and "of 16 images on 2 streams" in streamer.shrunk
    images, (labels, scores) = pinned(gpu, pixels(31)), results(gpu, 31)
    for _ in range(2):
        labels[...] = -1
        streamer.run(images, labels, scores)
        assert_right(images, labels, scores)


def test_out_of_memory_during_a_pass_shrinks_chunks():
    gpu = FailingCopies()
    streamer, counts = streamer_on(gpu, 4, 2), []
    images, (labels, _) = pinned(gpu, pixels(30)), results(gpu, 30)
    streamer.run(images, labels, on_chunk=counts.append)
    assert_right(images, labels)
    assert counts == [4] * 4 + [2] * 7 and (streamer.done, streamer.chunk) == (30, 2)


@pytest.mark.parametrize(("streams", "reaches_host"), [(1, True), (2, False)])
def test_zero_copy_gives_same_labels_without_copies(streams, reaches_host):
    gpu = PretendedGpu(reaches_host=reaches_host)
    streamer = streamer_on(gpu, 8, streams, zero_copy=True)
    assert_right_each_time(gpu, streamer, pinned(gpu, pixels(31)))
    assert set(gpu.copied) <= {4 * n * by for n in (8, 7) for by in (1, CLASSES)}
    assert gpu.used == 0


def test_unaligned_images_are_copied():
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 8, 1, zero_copy=True)
    raw = pinned(gpu, np.zeros(31 * 784 + 8, np.uint8))
    images, (labels, _) = raw[8:].reshape(31, 28, 28, 1), results(gpu, 31)
    for again in range(3):
        images[...] = pixels(31, seed=again)
        streamer.run(images, labels)
        assert_right(images, labels)
    assert gpu.copied == 2 * [6272, 6272, 6272, 5488]


def readers():
    return [t.name for t in threading.enumerate() if t.name.startswith("lenetgpu-read")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Check that the threads of a ring end with it."""
    yield
    gc.collect()
    end = time.monotonic() + 5
    while readers() and time.monotonic() < end:
        time.sleep(0.01)
    assert readers() == []


@pytest.fixture
def small_buffers(monkeypatch):
    """Set four images per buffer and three readers."""
    monkeypatch.setattr(streamer_module, "STAGING_BYTES", 4 * 28 * 28)
    monkeypatch.setattr(streamer_module, "core_count", lambda: 3)


@pytest.mark.parametrize("locked", [(), ("images",), ("images", "labels"), ("labels", "scores")])
def test_pageable_arrays_are_staged(locked, small_buffers):
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 5, 2)
    found = {"images": pixels(31)}
    found["labels"], found["scores"] = np.full(31, -1, np.int32), np.zeros((31, CLASSES), "f4")
    for name in locked:
        found[name] = pinned(gpu, found[name])
    for _ in range(2):
        found["labels"][...] = -1
        streamer.run(**found)
        assert_right(**found)
    assert streamer.done == 31


class Source:
    """A source of numbered images; the reading thread calls `slow(lo)` before each read."""

    dtype = "uint8"

    def __init__(self, images, slow=lambda lo: None):
        self.images, self.slow, self.threads = images, slow, set()

    def __len__(self):
        return len(self.images)

    def raw(self, lo, count):
        return None

    def read(self, lo, out):
        self.threads.add(threading.current_thread().name)
        self.slow(lo)
        out[...] = self.images[lo : lo + len(out)]


class Delivered:
    def __init__(self):
        self.labels, self.scores = [], []

    def __call__(self, labels, scores):
        self.labels += labels.tolist()
        self.scores += [] if scores is None else scores.tolist()


@pytest.mark.parametrize("with_scores", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_source_is_delivered_in_order(with_scores, seed, small_buffers):
    """Readers take turns in being slow, and the GPU accepts any order."""
    gpu = PretendedGpu(seed=seed)
    streamer = streamer_on(gpu, 9, 2, with_scores)
    source = Source(pixels(61), slow=lambda lo: time.sleep(0.002 * (lo // 4 % 3)))
    for _ in range(2):
        found, counts = Delivered(), []
        streamer.run_source(source, found, counts.append)
        assert_right(source.images, found.labels, found.scores if with_scores else None)
        assert streamer.done == sum(counts) == 61 and set(counts) == {4, 1}
    assert bool(found.scores) == with_scores
    assert len(source.threads) > 1


def test_memory_is_independent_of_source_length(small_buffers):
    """At most readers + streams + 1 buffers of four images, however slowly labels are consumed."""
    for n in (60, 2_000):
        gpu, found, ahead = PretendedGpu(), Delivered(), []
        source = Source(pixels(n), lambda lo, f=found, a=ahead: a.append(lo - len(f.labels)))
        streamer_on(gpu, 9, 2, with_scores=False).run_source(source, found)
        assert max(ahead) <= 4 * (3 + 2 + 1)
        assert gpu.pinned_bytes == 6 * 4 * (28 * 28 + 4)


def test_reader_error_ends_the_run_and_joins_threads(small_buffers):
    def shrunk(lo):
        if lo == 20:
            raise LenetError("data.h5: expected 61 images, found 20")
        time.sleep(0.001)

    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 9, 2)
    source, found = Source(pixels(61), shrunk), Delivered()
    with pytest.raises(LenetError, match="found 20"):
        streamer.run_source(source, found)
    assert streamer.done == len(found.labels) <= 20 and gpu.pending == [] and readers() == []
    assert_right(source.images[: streamer.done], found.labels)
    source.slow, found = lambda lo: None, Delivered()
    streamer.run_source(source, found)
    assert_right(source.images, found.labels)


def test_ctrl_c_between_deliveries_delivers_queued_chunks(small_buffers):
    gpu = FailingCopies()
    gpu.error = KeyboardInterrupt
    streamer = streamer_on(gpu, 9, 2)
    source, found = Source(pixels(161)), Delivered()
    with pytest.raises(KeyboardInterrupt):
        streamer.run_source(source, found)
    assert streamer.done == len(found.labels) == 4 * 4 and gpu.pending == [] and readers() == []
    assert_right(source.images[: streamer.done], found.labels)


def test_finished_chunks_are_delivered_before_more_is_read(small_buffers):
    """A reader that waits for the first labels does not deadlock."""
    first = threading.Event()

    def slow(lo):
        assert lo < 12 or first.wait(5), "the first labels did not come"

    def deliver(labels, scores):
        first.set()

    streamer = streamer_on(PretendedGpu(), 9, 2)
    streamer.run_source(Source(pixels(61), slow), deliver)
    assert streamer.done == 61


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LenetError("full")])
def test_failed_delivery_is_the_last(small_buffers, error):
    gpu = PretendedGpu()
    streamer, calls = streamer_on(gpu, 9, 2), []

    def deliver(labels, scores):
        calls.append(labels)
        if len(calls) == 2:
            raise error

    with pytest.raises(type(error)):
        streamer.run_source(Source(pixels(161)), deliver)
    assert streamer.done == 4 and len(calls) == 2 and gpu.pending == [] and readers() == []


def test_graphs_and_buffers_of_larger_chunks_are_discarded():
    """Neither a graph nor the ring is reused."""
    gpu = FailingCopies()
    gpu.at = 0
    streamer = streamer_on(gpu, 4, 2)
    images, others = pinned(gpu, pixels(30)), pinned(gpu, pixels(30, seed=1))
    labels, _ = results(gpu, 30)
    for _ in range(3):
        streamer.run(images, labels)
    streamer.run(pixels(30), labels)
    gpu.at, before = gpu.copies + 1, gpu.launches
    streamer.run(others, labels)
    assert streamer.chunk == 2
    for given in (images, pixels(30, seed=2)):
        labels[...] = -1
        streamer.run(given, labels)
        assert_right(given, labels)
    assert gpu.launches == before


@pytest.mark.parametrize("seed", range(4))
def test_files_of_bytes_are_read_by_native_threads(small_buffers, tmp_path, seed):
    """Full buffers replay graphs from the second pass on; partial ones share their slots."""
    gpu, images, before = PretendedGpu(seed=seed), pixels(61), threading.active_count()
    np.save(path := tmp_path / "images.npy", images)
    streamer = streamer_on(gpu, 9, 2)
    with open_source(path) as source:
        for lo in (0, 1, 5, 0):
            streamer.run_source(source.part(lo, 61 - lo), found := Delivered())
            assert_right(images[lo:], found.labels, found.scores)
        assert gpu.launches > 30 and not readers()
        with pytest.raises(KeyboardInterrupt) as stopped:
            streamer.run_source(source, found, Interrupts(at=1))
        assert stopped.tb and threading.active_count() == before  # while its frames live
        os.truncate(path, 128 + 784 * 38)
        with pytest.raises(
            LenetError, match="3,136 bytes from byte 28,352 on, found 1,568: the fi"
        ):
            streamer.run_source(source, found := Delivered())
        assert_right(images[: streamer.done], found.labels)
    assert threading.active_count() == before


def test_chain_of_shards_is_read_natively_within_each(small_buffers, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_AHEAD", 32)
    np.save(path := tmp_path / "images.npy", images := pixels(110))
    fill, found, ends = RawSource._fill, Delivered(), []

    def shard(lo, n):
        def add(labels, scores):
            found(labels, scores)
            one.done += len(labels)

        one = SimpleNamespace(source=source.part(lo, n), add=add, done=0)
        return one

    with open_source(path) as source:
        shards, filled = iter([shard(70, 40), shard(60, 1), shard(41, 19)]), []
        monkeypatch.setattr(RawSource, "_fill", lambda *a: (filled.append(a[1]), fill(*a)))
        chain = worker._Chain(shard(0, 41), lambda: next(shards, None), 1e9, ends.append)
        streamer_on(PretendedGpu(), 9, 2).run_source(chain, chain.add)
    assert_right(images[[*range(41), *range(70, 110), 60, *range(41, 60)]], found.labels)
    assert len(ends) == 4 and 40 in filled and not {0, 4, 8, 73} & set(filled)
