"""Schedules on a GPU: graphs of copies and kernels, the ring, one image, failed allocations."""

import numpy as np
import pytest
from conftest import plan_here

from lenetgpu.files import assets
from lenetgpu.files.reading import MemorySource
from lenetgpu.files.source import load_dataset
from lenetgpu.net.single import OneImage
from lenetgpu.net.streaming.schedule import best_schedule, predicted_ms
from lenetgpu.net.streaming.streamer import Streamer, host_results, pinned_copy
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.pipeline import Pipeline

pytestmark = pytest.mark.gpu
PLANS = ["fp16", "int8", "fp16x3", "fp32", "mma_fp16", "tiled"]
N = 3_210


@pytest.fixture(scope="module")
def digits():
    return np.ascontiguousarray(load_dataset(assets.default_digits()).images)


def on_device(plan, weights, images):
    """Return labels and scores of one pass over images on the device."""
    import cupy

    pipeline = Pipeline(plan, weights, len(images), str(images.dtype))
    labels = pipeline.run(cupy.asarray(images)).get()
    return labels, pipeline.scores(len(images))


@pytest.mark.parametrize("how", [(500, 3, False), (N, 1, True), (500, 2, True)],
                         ids=["copied", "zero-copy", "zero-copy in chunks"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("plan", PLANS)
def test_graph_replays_use_new_images(plan, dtype, how, digits, shipped_weights):
    """The same memory has other images each time, so a kernel that does not wait would fail."""
    chunk, streams, zero_copy = how
    chosen = plan_here(plan)
    images = digits[:N]
    if dtype == "float32":
        images = images.astype(np.float32) / np.float32(PIXEL_SCALE)
    expected, values = on_device(chosen, shipped_weights, images)
    streamer = Streamer(
        lambda n: Pipeline(chosen, shipped_weights, n, dtype), chunk, streams, zero_copy=zero_copy
    )
    held, (labels, scores) = pinned_copy(images), host_results(N, with_scores=True)
    generator = np.random.default_rng(0)
    for _ in range(12):
        order = generator.permutation(N)
        held[...] = images[order]
        labels[:], scores[:] = -1, np.nan
        streamer.run(held, labels, scores)
        np.testing.assert_array_equal(labels, expected[order])
        np.testing.assert_allclose(scores, values[order], rtol=1e-3, atol=1e-3)
    assert streamer._replays.refusal == ""
    assert [len(graphs) for graphs in streamer._replays.graphs.values()] == [1]


def test_pageable_arrays_and_sources_give_the_same_labels(digits, shipped_weights):
    plan = plan_here("tiled")
    expected, values = on_device(plan, shipped_weights, digits)
    streamer = Streamer(lambda n: Pipeline(plan, shipped_weights, n), 700, 2)
    labels = np.full(len(digits), -1, np.int32)
    scores = np.full((len(digits), 10), np.nan, np.float32)
    streamer.run(digits, labels, scores)
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_allclose(scores, values, rtol=1e-4, atol=1e-4)
    found = []
    streamer.run_source(
        MemorySource(digits, None, "memory"), lambda labels, scores: found.append(labels.copy())
    )
    np.testing.assert_array_equal(np.concatenate(found), expected)
    assert streamer.done == len(digits)


def test_chunks_shrink_when_memory_is_short(digits, shipped_weights, cupy):
    """CuPy's pool is limited to less than the stream slots require, and restored afterwards."""
    pool, plan = cupy.get_default_memory_pool(), plan_here("tiled")
    expected, _ = on_device(plan, shipped_weights, digits[:N])
    pool.free_all_blocks()
    images, (labels, _) = pinned_copy(digits[:N]), host_results(N, with_scores=False)
    pool.set_limit(size=pool.used_bytes() + (200 << 20))
    try:
        streamer = Streamer(lambda n: Pipeline(plan, shipped_weights, n), 4_096, 2)
        assert 1 < streamer.chunk < 4_096 and "did not hold chunks of 4,096" in streamer.shrunk
        for _ in range(3):
            labels[:] = -1
            streamer.run(images, labels)
            np.testing.assert_array_equal(labels, expected)
    finally:
        pool.set_limit(size=0)


@pytest.mark.parametrize("plan", ["fp16", "tiled"])
def test_single_image_gives_the_same_label(plan, digits, shipped_weights):
    chosen = plan_here(plan)
    expected, values = on_device(chosen, shipped_weights, digits[:300])
    one = OneImage(lambda n: Pipeline(chosen, shipped_weights, n))
    assert [one.label(image) for image in digits[:300]] == expected.tolist()
    one.label(digits[7, :, :, 0])
    np.testing.assert_allclose(one.scores(), values[7], rtol=1e-3, atol=1e-3)


@pytest.mark.alone
@pytest.mark.parametrize("plan", ["fp16", "fp16x3"])
def test_model_predicts_pass_time(plan, digits, shipped_weights):
    """The error is within 30 % for the chosen schedule and three others, by idle-GPU costs."""
    from lenetgpu.measure.timing import cpu_ms
    from lenetgpu.net.streaming.costs import measure_costs

    chosen = plan_here(plan)
    images, (labels, _) = pinned_copy(digits), host_results(len(digits), with_scores=False)

    def make(n):
        made = Pipeline(chosen, shipped_weights, n)
        made.with_scores = False
        return made

    costs = measure_costs(make)
    assert costs.bus_gbs > 1 and 0 <= costs.overlapped_us <= costs.chunk_us and costs.call_us > 1
    best = best_schedule(len(digits), costs)
    found = [(1, 10_000), (2, 5_000)] + ([] if best.zero_copy else [(best.streams, best.chunk)])
    expected = [(*how, False, predicted_ms(len(digits), *how, costs)) for how in found]
    expected.append((1, len(digits), True, costs.zero_copy_ms(len(digits))))
    for streams, chunk, zero_copy, predicted in expected:
        streamer = Streamer(make, chunk, streams, zero_copy=zero_copy)
        took = sorted(cpu_ms(lambda s=streamer: s.run(images, labels)) for _ in range(40))[20]
        assert took == pytest.approx(predicted, rel=0.3), (streams, chunk, zero_copy)
