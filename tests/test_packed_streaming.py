"""Packed images over lanes, graphs and the ring, on a GPU that is pretended: the same labels."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import h5py
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

from lenetgpu.errors import LenetError
from lenetgpu.files.packed.records import LONGEST, pack
from lenetgpu.files.packed.write import pack_data
from lenetgpu.files.source import open_source
from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.net.streaming import PackedImages, packed_images
from lenetgpu.net.streaming import ring as ring_module
from lenetgpu.network import CLASSES


def digits(n, seed=0):
    """Images that their first pixels tell apart, of lengths that differ."""
    images = pixels(n, seed)
    rng = np.random.default_rng(seed + 1)
    images[:, 3:9, 4:9, 0] = rng.integers(0, 2, (n, 6, 5))
    return images


def packed_on(gpu, images, before=0):
    """Packed in page-locked memory, behind `before` images that are none of them."""
    payload, lengths = pack(np.concatenate([images[:before], images]))
    offsets = np.append(0, lengths.cumsum()).astype(np.uint32)
    return packed_images(pinned(gpu, payload), pinned(gpu, offsets))[before:]


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_every_order_that_the_gpu_may_take_gives_the_same_labels(streams, seed):
    gpu = PretendedGpu(seed=seed)
    streamer = streamer_on(gpu, 4, streams)
    images = digits(31)
    assert_right_each_time(gpu, streamer, packed_on(gpu, images, before=3), images)


@pytest.mark.parametrize("takes_packed", [False, True])
@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_kernels_read_records_where_they_lie_or_their_copy(seed, zero_copy, takes_packed):
    """Copied and unpacked where the kernels take pixels alone; recorded and not."""
    gpu = PretendedGpu(seed=seed)
    streamer = streamer_on(gpu, 8, 1, takes_packed=takes_packed, zero_copy=zero_copy)
    images = digits(31)
    assert_right_each_time(gpu, streamer, packed_on(gpu, images, before=3), images)
    sums = 4 * CLASSES * np.array([8, 8, 8, 7])
    read = zero_copy and takes_packed
    assert (gpu.copied[:4] == sums.tolist()) == read
    assert len(gpu.copied) == (8 if read else 24)


@pytest.mark.parametrize("lead", [0, 1, 15])
@pytest.mark.parametrize("tail", [0, 1, 15])
def test_records_beside_which_nothing_may_be_read_are_copied(lead, tail):
    """Page-locked memory that is not ours begins and ends anywhere; kernels read 16 bytes."""
    gpu, images = PretendedGpu(), digits(12)
    payload, lengths = pack(images)
    begin = 16 + lead
    raw = np.zeros(64 + len(payload), np.uint8)
    held = raw[begin : begin + len(payload) + (-(begin + len(payload)) + tail) % 16]
    held[: len(payload)] = payload
    gpu.page_locked.append(held)
    offsets = pinned(gpu, np.append(0, lengths.cumsum()).astype(np.uint32))
    labels, _ = results(gpu, 12)
    streamer = streamer_on(gpu, 4, 1, with_scores=False, takes_packed=True, zero_copy=True)
    streamer.run(packed_images(held, offsets), labels)
    assert_right(images, labels)
    beyond = held.ctypes.data + held.nbytes < -(-(held.ctypes.data + len(payload)) // 16) * 16
    assert len(gpu.copied) == 2 * ((lead > 0) + beyond)


def test_the_longest_records_are_copied_to_where_whole_units_are(monkeypatch):
    gpu, images = PretendedGpu(), np.full((6, 28, 28, 1), 7, np.uint8)
    packed = packed_on(gpu, images)
    assert packed.ends[1] == 6 * LONGEST and 3 * LONGEST % 16
    labels, _ = results(gpu, 6)
    streamer = streamer_on(gpu, 3, 1, with_scores=False, takes_packed=True)
    streamer.run(packed, labels)
    assert_right(images, labels)


def test_page_locked_memory_is_of_whole_units(monkeypatch):
    asked = []
    cuda = SimpleNamespace(
        PinnedMemory=lambda size: asked.append(size) or bytearray(size),
        PinnedMemoryPointer=lambda memory, offset: memory,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    assert [pinned_empty((n,), "uint8").nbytes for n in (0, 1, 16, 28_771)] == [0, 1, 16, 28_771]
    assert pinned_empty((3, 3), "float32").shape == (3, 3)
    assert asked == [1, 16, 16, 28_784, 48]


def test_offsets_where_no_kernel_reads_them_are_copied():
    """A view into bytes, an odd place: of whole words alone a kernel reads."""
    gpu = PretendedGpu()
    images = digits(9)
    packed = packed_on(gpu, images)
    raw = pinned(gpu, np.zeros(4 * 10 + 1, np.uint8))
    odd = raw[1:].view(np.uint32)
    odd[...] = packed.offsets
    labels, _ = results(gpu, 9)
    streamer = streamer_on(gpu, 9, 1, with_scores=False, takes_packed=True, zero_copy=True)
    streamer.run(PackedImages(packed.payload, odd), labels)
    assert_right(images, labels)
    assert len(gpu.copied) == 2


def test_a_graph_is_not_taken_for_records_of_other_lengths():
    """In the same arrays: as many images, packed to more bytes, or to as many in another order."""
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 2)
    few, many = pixels(10), np.maximum(digits(10, seed=5), 1)
    packed, (labels, _) = packed_on(gpu, many), results(gpu, 10)
    mixed = np.concatenate([few[:5], many[:5]])
    for images in (few, few, many, few, many, many, mixed, mixed, mixed[::-1], mixed[::-1], mixed):
        payload, lengths = pack(images)
        packed.payload[: len(payload)] = payload
        packed.offsets[1:] = lengths.cumsum()
        labels[...] = -1
        streamer.run(packed, labels)
        assert_right(images, labels)
    assert gpu.launches == 7


@pytest.mark.parametrize("made", [pinned, packed_on])
def test_the_arrays_of_the_last_replay_are_known_without_asking(made, monkeypatch):
    gpu, asked = PretendedGpu(), []
    plainly = gpu.is_pinned
    monkeypatch.setattr(gpu, "is_pinned", lambda *at: asked.append(at) or plainly(*at))
    streamer, images = streamer_on(gpu, 4, 2), digits(10)
    given, (labels, scores) = made(gpu, images), results(gpu, 10)
    for sums in (None, scores, None, scores):
        for _ in range(5):
            labels[...], before = -1, len(asked)
            streamer.run(given, labels, sums)
            assert_right(images, labels)
        assert len(asked) == before
    for other in (labels.copy(), labels[:]):
        other[...], before = -1, len(asked)
        streamer.run(given, other)
        assert_right(images, other)
        assert len(asked) > before


def test_a_recorded_pass_goes_with_its_lanes():
    """Chunks become smaller: what was recorded writes to buffers that are gone."""
    gpu = PretendedGpu()
    streamer, images = streamer_on(gpu, 4, 2), digits(10)
    packed, (labels, _) = packed_on(gpu, images), results(gpu, 10)
    for launches in (0, 1, 2):
        streamer.run(packed, labels)
        assert gpu.launches == launches
    streamer._halve()
    streamer.run(packed, labels)
    assert gpu.launches == 2
    assert_right(images, labels)


def test_what_is_not_page_locked_goes_through_the_ring(monkeypatch):
    monkeypatch.setattr(ring_module, "SLOT_BYTES", 4 * 28 * 28)
    gpu = PretendedGpu()
    images = digits(31)
    images[9:15] = np.random.default_rng(1).integers(1, 256, (6, 28, 28, 1))  # no slot's records
    payload, lengths = pack(images)
    packed = packed_images(payload, np.append(0, lengths.cumsum()).astype(np.uint32))
    labels = np.full(31, -1, np.int32)
    streamer_on(gpu, 5, 2).run(packed, labels)
    assert_right(images, labels)


@pytest.fixture
def file(tmp_path):
    images = np.concatenate([digits(700), np.full((300, 28, 28, 1), 7, np.uint8), digits(200)])
    with h5py.File(tmp_path / "x.h5", "w") as plain:
        plain["x"] = images
    pack_data(tmp_path / "x.h5", tmp_path / "packed.h5")
    return tmp_path / "packed.h5", images


def streamed(path, skip=0, limit=None, chunk=90, **how):
    """Labels and scores of a file, and what was unpacked of its images on the GPU."""
    gpu, unpacked = PretendedGpu(), []
    plainly = gpu.unpack

    def unpack(packed, out):
        unpacked.append(len(out))
        plainly(packed, out)

    gpu.unpack = unpack
    labels, scores = [], []
    with open_source(path, skip, limit) as source:
        streamer = streamer_on(gpu, chunk, 2, **how)
        streamer.run_source(source, lambda a, b: (labels.extend(a), scores.extend(b.copy())))
    return np.array(labels), np.array(scores).reshape(-1, CLASSES), sum(unpacked)


@pytest.mark.parametrize(("skip", "limit"), [(0, None), (130, 1), (250, 500), (1199, None)])
def test_a_packed_file_goes_over_the_bus_packed(file, skip, limit):
    path, images = file
    labels, scores, unpacked = streamed(path, skip, limit)
    chosen = images[skip : None if limit is None else skip + limit]
    assert_right(chosen, labels, scores)
    assert 0 < unpacked <= len(chosen)
    if limit is None and not skip:
        assert unpacked < 1200  # white ones are larger packed than not


@pytest.mark.parametrize("zero_copy", [False, True])
def test_a_packed_file_is_unpacked_by_kernels_that_can(file, zero_copy):
    path, images = file
    how = {"takes_packed": True, "zero_copy": zero_copy}
    labels, scores, unpacked = streamed(path, **how)
    assert_right(images, labels, scores)
    assert unpacked == 0


def test_a_damaged_block_is_a_sentence(file):
    path, _ = file
    with h5py.File(path, "a") as damaged:
        damaged["records"][9000] ^= 1
    with pytest.raises(LenetError, match="block .* to have the checksum"):
        streamed(path)


def test_arrays_that_are_no_records_are_refused_in_a_sentence():
    payload, lengths = pack(digits(3)[..., 0])
    offsets = np.append(0, lengths.cumsum()).astype(np.uint32)
    assert len(packed_images(payload, offsets)) == 3
    for wrong in (
        (payload.astype(np.int8), offsets),
        (payload[::2], offsets),
        (payload, offsets.astype(np.int64)),
        (payload, offsets[:1]),
        (payload, offsets[::-1].copy()),
        (payload, offsets + np.uint32(1)),
        (payload, offsets * np.uint32(0)),
        (payload[:-1], offsets),
    ):
        with pytest.raises(LenetError, match="^packed images: expected .* found"):
            packed_images(*wrong)


def test_pipelines_of_floats_take_none():
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 1)
    streamer._lanes.dtype = "float32"
    packed, (labels, _) = packed_on(gpu, digits(5)), results(gpu, 5)
    assert isinstance(packed, PackedImages)
    with pytest.raises(LenetError, match="images: expected float32"):
        streamer.run(packed, labels)
