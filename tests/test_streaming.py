"""Chunks over lanes and graphs, on a GPU that is pretended: order, memory, errors."""

from __future__ import annotations

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
from lenetgpu.net.streaming import schedule
from lenetgpu.net.streaming import streamer as streamer_module


@pytest.mark.parametrize("reaches_host", [True, False])
@pytest.mark.parametrize("taper", [1.0, 2.0, 0.25])
@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_order_that_the_gpu_may_take_gives_the_same_labels(
    streams, seed, taper, reaches_host
):
    gpu = PretendedGpu(seed=seed, reaches_host=reaches_host)
    streamer = streamer_on(gpu, 4, streams, taper=taper)
    assert_right_each_time(gpu, streamer, pinned(gpu, pixels(31)))


def test_a_graph_is_of_its_arrays():
    """Others of the same length, or fewer of the same images, are not what was recorded."""
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


def test_graphs_are_few_and_of_few_chunks(monkeypatch):
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 2)
    labels, _ = results(gpu, 10)
    for _ in range(12):
        streamer.run(pinned(gpu, pixels(10)), labels)
    assert len(streamer._replays) == 4
    monkeypatch.setattr(streamer_module, "MOST_RECORDED", 2)
    images = pinned(gpu, pixels(10))
    for _ in range(3):
        streamer.run(images, labels)
    assert gpu.launches == 0


@pytest.mark.parametrize("reaches_host", [True, False])
def test_a_traced_pass_is_launched_and_says_where_it_is(reaches_host):
    """Labels that a kernel writes to the host are not copied."""
    gpu = PretendedGpu(reaches_host=reaches_host)
    streamer = streamer_on(gpu, 4, 2)
    images, (labels, _) = pinned(gpu, pixels(10)), results(gpu, 10)
    marks, streams = [], []

    def mark(lane, name):
        marks.append((lane, name))
        streams.append(gpu.current)

    for _ in range(2):
        streamer.run(images, labels)
    before = gpu.launches
    streamer.run(images, labels, mark=mark)
    assert gpu.launches == before
    names = [None, "images to device", "features", "classifier"]
    names += [] if reaches_host else ["labels to host"]
    assert marks == [(lane, name) for lane in (0, 1, 0) for name in names]
    n = len(names)
    assert streams[0] is streams[1] is streams[n] and streams[2] is streams[3] is not streams[n + 2]


def test_what_cannot_be_recorded_is_launched():
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
    assert streamer.not_recorded == "not permitted" and gpu.tried == 1


def test_arrays_that_do_not_fit_are_refused_in_a_sentence():
    streamer = streamer_on(PretendedGpu(), 4, 1)
    images, labels = pixels(6), np.zeros(6, np.int32)
    for wrong in (
        (images.astype(np.float32), labels),
        (images[..., 0], labels),
        (images[::2], labels[:3]),
        (images, labels[:5]),
        (images, labels.astype(np.int64)),
        (images, labels, np.zeros((6, 9), np.float32)),
    ):
        with pytest.raises(LenetError, match=r"expected a C-contiguous array .* found"):
            streamer.run(*wrong)


def test_labels_of_chunks_that_were_queued_before_ctrl_c_are_there():
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 2)
    images, (labels, _) = pinned(gpu, pixels(30)), results(gpu, 30)
    told = Interrupts(at=3)
    with pytest.raises(KeyboardInterrupt):
        streamer.run(images, labels, on_chunk=told)
    assert streamer.done == 12 and told.told == [4, 4, 4]
    assert_right(images[:12], labels[:12])
    assert (labels[12:] == -1).all() and gpu.pending == []


def test_ctrl_c_beside_a_replay_has_all_labels():
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 2)
    images, (labels, _) = pinned(gpu, pixels(30)), results(gpu, 30)
    streamer.run(images, labels)
    labels[...] = -1
    with pytest.raises(KeyboardInterrupt):
        streamer.run(images, labels, on_chunk=Interrupts(at=1))
    assert streamer.done == 30 and gpu.launches == 1
    assert_right(images, labels)


def test_a_second_ctrl_c_while_lanes_are_waited_for_counts_no_label():
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 2)
    images, (labels, _) = pinned(gpu, pixels(30)), results(gpu, 30)

    def impatient():
        raise KeyboardInterrupt

    gpu.step = impatient
    with pytest.raises(KeyboardInterrupt):
        streamer.run(images, labels, on_chunk=Interrupts(at=3))
    assert streamer.done == 0


@pytest.mark.parametrize("room", [16, 9, 8, 2])
def test_lanes_that_do_not_fit_are_made_smaller(room):
    gpu = PretendedGpu(room=room)
    streamer = streamer_on(gpu, 16, 2)
    fitting = {16: 8, 9: 4, 8: 4, 2: 1}[room]
    assert streamer.chunk == fitting and streamer.asked == 16 and gpu.released
    assert f"are of {fitting}" in streamer.shrunk and "of 16 images on 2 streams" in streamer.shrunk
    images, (labels, scores) = pinned(gpu, pixels(31)), results(gpu, 31)
    for _ in range(2):
        labels[...] = -1
        streamer.run(images, labels, scores)
        assert_right(images, labels, scores)


def test_a_gpu_without_room_for_an_image_is_said():
    with pytest.raises(LenetError, match="GPU memory: expected room for one image on 2 streams"):
        streamer_on(PretendedGpu(room=1), 16, 2)


def test_a_pass_that_runs_out_of_memory_goes_on_in_smaller_chunks():
    gpu = FailingCopies()
    streamer, told = streamer_on(gpu, 4, 2), []
    images, (labels, _) = pinned(gpu, pixels(30)), results(gpu, 30)
    streamer.run(images, labels, on_chunk=told.append)
    assert_right(images, labels)
    assert told == [4] * 4 + [2] * 7 and (streamer.done, streamer.chunk) == (30, 2)


def test_chunks_taper_as_they_are_asked_to(monkeypatch):
    monkeypatch.setattr(schedule, "_LEAST", 2)
    gpu = PretendedGpu()
    streamer, told = streamer_on(gpu, 16, 2, taper=2.0), []
    images, (labels, _) = pinned(gpu, pixels(30)), results(gpu, 30)
    streamer.run(images, labels, on_chunk=told.append)
    assert_right(images, labels)
    assert told == [1, 2, 4, 8, 15]
    with pytest.raises(LenetError, match="taper: expected more than 0, found 0"):
        streamer_on(gpu, 16, 2, taper=0)
