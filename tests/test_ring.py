"""Images that threads read into a ring ahead of a pretended GPU: order, memory, errors."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from pretended_gpu import (
    FailingCopies,
    Interrupts,
    PretendedGpu,
    assert_right,
    pinned,
    pixels,
    results,
    streamer_on,
)

from lenetgpu.errors import LenetError
from lenetgpu.net.streaming import ring as ring_module
from lenetgpu.network import CLASSES


def readers():
    return [t.name for t in threading.enumerate() if t.name.startswith("lenetgpu-read")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """The threads of a ring end with it."""
    yield
    gc.collect()
    end = time.monotonic() + 5
    while readers() and time.monotonic() < end:
        time.sleep(0.01)
    assert readers() == []


@pytest.fixture
def small_slots(monkeypatch):
    """Four images a slot, three readers."""
    monkeypatch.setattr(ring_module, "SLOT_BYTES", 4 * 28 * 28)
    monkeypatch.setattr(ring_module, "core_count", lambda: 3)


@pytest.mark.parametrize("locked", [(), ("images",), ("images", "labels"), ("labels", "scores")])
def test_arrays_that_are_not_page_locked_go_through_the_ring(locked, small_slots):
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
    """Images by number; `slow(lo)` is called by the reading thread first."""

    dtype = "uint8"

    def __init__(self, images, slow=lambda lo: None):
        self.images, self.slow = images, slow
        self.threads, self.reading = set(), 0

    def __len__(self):
        return len(self.images)

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
def test_a_source_is_delivered_in_order(with_scores, seed, small_slots):
    """Readers that take turns in being slow, a GPU that takes any order."""
    gpu = PretendedGpu(seed=seed)
    streamer = streamer_on(gpu, 9, 2, with_scores)
    source = Source(pixels(61), slow=lambda lo: time.sleep(0.002 * (lo // 4 % 3)))
    for _ in range(2):
        found, told = Delivered(), []
        streamer.run_source(source, found, told.append)
        assert_right(source.images, found.labels, found.scores if with_scores else None)
        assert streamer.done == sum(told) == 61 and set(told) == {4, 1}
    assert bool(found.scores) == with_scores
    assert len(source.threads) > 1


def test_a_long_source_takes_no_more_memory_than_a_short_one(small_slots):
    """At most readers + lanes + 1 slots of four images, however slow labels are taken."""
    taken = []
    for n in (60, 2_000):
        gpu = PretendedGpu()
        streamer = streamer_on(gpu, 9, 2, with_scores=False)
        source, behind = Source(pixels(n)), [0]
        read_to = []

        def slow(lo, behind=behind, read_to=read_to):
            read_to.append(lo - behind[0])

        def deliver(labels, scores, behind=behind):
            behind[0] += len(labels)

        source.slow = slow
        streamer.run_source(source, deliver)
        assert max(read_to) <= 4 * (3 + 2 + 1)
        taken.append(gpu.pinned_bytes)
    assert taken[0] == taken[1] == 6 * 4 * (28 * 28 + 4)


def test_what_a_reader_raises_ends_it_with_the_threads_joined(small_slots):
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


def test_what_deliver_raises_ends_it_with_the_gpu_idle(small_slots):
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 9, 2)
    calls = []

    def full(labels, scores):
        calls.append(len(labels))
        if len(calls) == 3:
            raise LenetError("labels.csv: expected room on the disk, found none")

    with pytest.raises(LenetError, match="room on the disk"):
        streamer.run_source(Source(pixels(61)), full)
    assert streamer.done == 8 and len(calls) == 3 and gpu.pending == [] and readers() == []


def test_ctrl_c_between_deliveries_delivers_what_is_queued(small_slots):
    gpu = FailingCopies()
    gpu.error = KeyboardInterrupt
    streamer = streamer_on(gpu, 9, 2)
    source, found = Source(pixels(161)), Delivered()
    with pytest.raises(KeyboardInterrupt):
        streamer.run_source(source, found)
    assert streamer.done == len(found.labels) == 4 * 4 and gpu.pending == [] and readers() == []
    assert_right(source.images[: streamer.done], found.labels)


def test_what_is_ready_is_delivered_before_more_can_be_read(small_slots):
    """A reader that waits for the first labels does not wait for ever."""
    first = threading.Event()

    def slow(lo):
        assert lo < 12 or first.wait(5), "the first labels did not come"

    def deliver(labels, scores):
        first.set()

    streamer = streamer_on(PretendedGpu(), 9, 2)
    streamer.run_source(Source(pixels(61), slow), deliver)
    assert streamer.done == 61


def test_ctrl_c_inside_a_delivery_is_the_last_of_them(small_slots):
    gpu = PretendedGpu()
    streamer, calls = streamer_on(gpu, 9, 2), []

    def deliver(labels, scores):
        calls.append(labels)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streamer.run_source(Source(pixels(161)), deliver)
    assert streamer.done == 4 and len(calls) == 2 and gpu.pending == [] and readers() == []


def test_ctrl_c_does_not_wait_for_what_was_not_begun(small_slots, monkeypatch):
    """Only the read under way is waited for."""
    begun, gpu = [], PretendedGpu()
    monkeypatch.setattr(ring_module, "core_count", lambda: 1)

    def slow(lo):
        begun.append(lo)
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        streamer_on(gpu, 9, 2).run_source(
            Source(pixels(4_000), slow), Delivered(), Interrupts(at=1)
        )
    assert len(begun) <= 2


def test_a_source_that_runs_out_of_memory_goes_on_in_smaller_chunks(small_slots):
    """Behind what was delivered, which is not delivered again."""
    gpu = FailingCopies()
    gpu.at = 14
    streamer, found = streamer_on(gpu, 4, 2), Delivered()
    streamer.run_source(Source(pixels(90)), found)
    assert_right(pixels(90), found.labels)
    assert (streamer.done, streamer.chunk) == (90, 2)


def test_nothing_of_the_larger_chunks_is_used_again():
    """Neither a graph nor the ring."""
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
