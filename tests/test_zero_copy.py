"""Kernels that read images where they lie in the host's memory, on a GPU that is pretended."""

from __future__ import annotations

import numpy as np
import pytest
from pretended_gpu import (
    PretendedGpu,
    assert_right,
    assert_right_each_time,
    pinned,
    pixels,
    results,
    streamer_on,
)

from lenetgpu.net.streaming import ring as ring_module
from lenetgpu.network import CLASSES


@pytest.fixture
def gpu():
    return PretendedGpu()


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("reaches_host", [True, False])
def test_labels_are_the_same_and_no_image_is_copied(gpu, streams, reaches_host):
    gpu.reaches_host = reaches_host
    streamer = streamer_on(gpu, 8, streams, zero_copy=True)
    assert_right_each_time(gpu, streamer, pinned(gpu, pixels(31)))
    assert set(gpu.copied) <= {4 * n * by for n in (8, 7) for by in (1, CLASSES)}
    assert gpu.taken == 0


def test_images_at_an_odd_address_are_copied(gpu):
    streamer = streamer_on(gpu, 8, 1, zero_copy=True)
    raw = pinned(gpu, np.zeros(31 * 784 + 8, np.uint8))
    images, (labels, _) = raw[8:].reshape(31, 28, 28, 1), results(gpu, 31)
    for again in range(3):
        images[...] = pixels(31, seed=again)
        streamer.run(images, labels)
        assert_right(images, labels)
    assert gpu.copied == 2 * [6272, 6272, 6272, 5488]


def test_the_ring_is_read_where_it_lies(gpu, monkeypatch):
    monkeypatch.setattr(ring_module, "SLOT_BYTES", 4 * 28 * 28)
    images, labels = pixels(31), np.full(31, -1, np.int32)
    streamer_on(gpu, 8, 2, with_scores=False, zero_copy=True).run(images, labels)
    assert_right(images, labels)
    assert gpu.copied == []


def test_what_is_marked_are_the_kernels(gpu):
    streamer = streamer_on(gpu, 31, 1, zero_copy=True)
    images, (labels, scores), marks = pinned(gpu, pixels(31)), results(gpu, 31), []
    streamer.run(images, labels, scores, mark=lambda lane, name: marks.append(name))
    assert marks == [None, "features", "classifier", "labels to host"]
