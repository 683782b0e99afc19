"""The model that chooses streams and chunks, against measurements taken by hand."""

from contextlib import nullcontext
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu.net.streaming import costs as costs_module
from lenetgpu.net.streaming.schedule import (
    MOST_CHUNK,
    NEVER,
    Costs,
    Schedule,
    _ends,
    best_schedule,
    chunk_sizes,
    predicted_ms,
)
from lenetgpu.store import entries

# an H100's: the bus by its bare copy of 7.84 MB in 0.186 ms, less what a call takes
INT8 = Costs(
    bus_gbs=45.2, copy_us=1.5, image_ns=6.1, chunk_us=6, overlapped_us=2, call_us=12,
    image_bytes=784, zero_copy_gbs=40.0, zero_copy_us=NEVER,
)  # fmt: skip
FP16 = replace(INT8, image_ns=9.2)
SLOW = replace(INT8, image_ns=52.0)


@pytest.mark.parametrize(
    ("costs", "streams", "chunk", "measured"), [(INT8, 3, 4_000, 0.196), (FP16, 5, 2_000, 0.218)]
)
def test_model_predicts_hand_timed_schedules(costs, streams, chunk, measured):
    """One captured graph on an H100, timed by hand; the model is fitted to none of these times."""
    assert predicted_ms(10_000, streams, chunk, costs) == pytest.approx(measured, rel=0.1)


def test_model_by_hand():
    """In us: a copy 2 and 1 per image, kernels 3 and 2 per image, a call 10."""
    costs = Costs(
        bus_gbs=0.1, copy_us=2, image_ns=2_000, chunk_us=3, overlapped_us=1, call_us=10,
        image_bytes=100, zero_copy_gbs=0.05, zero_copy_us=5,
    )  # fmt: skip
    one = 10 + (2 + 6) + 2 + (3 + 12) + 2
    assert predicted_ms(6, 1, 6, costs) == pytest.approx(one / 1e3)
    # copied at 5, kernels 7 to 16; copied again at 10 or at 18 + 5, kernels to 16 + 7 or to 25 + 9
    assert predicted_ms(6, 2, 3, costs) == pytest.approx((10 + 23 + 2) / 1e3)
    assert predicted_ms(6, 1, 3, costs) == pytest.approx((10 + 34 + 2) / 1e3)
    # slow kernels: 7 to 37, overlapped to 37 + 28, the first stream again, alone, to 65 + 30
    slow = replace(costs, image_ns=9_000)
    assert predicted_ms(9, 2, 3, slow) == pytest.approx((10 + 95 + 2) / 1e3)
    assert best_schedule(6, costs).model["bare_copy"] == pytest.approx(8 / 1e3)
    # a call, what a pass takes beside its images, 2 an image over the bus: slower than the kernels
    assert costs.zero_copy_ms(6) == pytest.approx((10 + 5 + 12) / 1e3)


def test_zero_copy_is_scheduled_where_faster():
    quick = replace(INT8, zero_copy_gbs=45.0, zero_copy_us=5.0)
    slow = replace(quick, zero_copy_us=60.0)
    assert best_schedule(10_000, quick) == Schedule(1, 10_000, zero_copy=True)
    assert best_schedule(10_000, quick).model["predicted"] == pytest.approx(
        0.012 + 0.005 + 7.84 / 45
    )
    assert best_schedule(MOST_CHUNK, quick).zero_copy
    halves = best_schedule(10_000, quick, most=5_000)
    assert (halves.zero_copy, halves.chunk) == (True, 5_000)
    assert halves.model["predicted"] == pytest.approx(0.012 + 2 * 0.005 + 7.84 / 45)
    for found in (
        best_schedule(10_000, slow),
        best_schedule(10_000, quick, streams=1),
        best_schedule(10_000, quick, chunk=10_000),
        best_schedule(MOST_CHUNK + 1, quick),
    ):
        assert not found.zero_copy


@pytest.mark.parametrize("costs", [INT8, FP16, SLOW])
@pytest.mark.parametrize("images", [1, 100, 10_000, 1_000_000])
def test_best_schedule_beats_all_others(costs, images):
    best = best_schedule(images, costs)
    assert best.model["predicted"] == predicted_ms(
        images, best.streams, best.chunk, costs, best.taper
    )
    assert (best.taper > 1) == (costs is SLOW) or best.taper == 1
    assert 1 <= best.chunk <= min(images, MOST_CHUNK)
    assert best.streams <= -(-images // best.chunk)
    for streams in (1, 2, 3, 4):
        for chunk in (100, 1_000, 2_000, 2_500, 4_000, 5_000, 10_000, 20_000, 40_000):
            if chunk <= images:
                assert best.model["predicted"] <= 1.02 * predicted_ms(images, streams, chunk, costs)


def test_requested_streams_and_chunk_are_kept():
    assert best_schedule(10_000, FP16, streams=7).streams == 7
    assert best_schedule(10_000, FP16, chunk=123).chunk == 123
    both = best_schedule(10_000, FP16, streams=2, chunk=3_000)
    assert (both.streams, both.chunk) == (2, 3_000)
    assert both.model["predicted"] == predicted_ms(10_000, 2, 3_000, FP16)


def test_long_passes_are_extrapolated_correctly():
    """Extrapolation past a number of chunks agrees with simulating each."""
    for costs in (INT8, FP16, SLOW):
        for taper in (1.0, 2.0, 0.5):
            whole = (costs.call_us + _ends(chunk_sizes(1_000_000, 5_000, taper), 3, costs)) / 1e3
            found = predicted_ms(1_000_000, 3, 5_000, costs, taper)
            assert found == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("taper", [1.0, 3.0, 0.5])
@pytest.mark.parametrize("chunk", [1, 500, 4_000])
@pytest.mark.parametrize("images", [0, 1, 501, 10_000])
def test_chunks_sum_to_all_images_and_respect_the_limit(images, chunk, taper):
    sizes = chunk_sizes(images, chunk, taper)
    assert sum(sizes) == images and all(0 < size <= chunk for size in sizes)
    if taper == 1.0:
        assert len(set(sizes[:-1])) <= 1 and len(sizes) == -(-images // chunk)
    else:
        assert sizes == sorted(sizes, reverse=taper < 1)
        assert chunk < 1_000 or all(size >= min(250, images) for size in sizes)


def test_costs_are_lines_through_two_sizes(monkeypatch):
    """By hand, in us: a copy 2 + n/500, a pass 3 + n/1000, each call of a graph 0.5."""
    assert costs_module._line(2, 4, [3.0, 5.0]) == (1.0, 1.0)
    assert costs_module._line(2, 4, [4.0, 2.0]) == (4.0 - 2 * 5e-4, 5e-4)
    took = []

    def run(images):
        took.append(3 + len(images) / 1000)

    def timed(work):
        took.clear()
        work()
        return sum(took) / 1e3

    class Graph(nullcontext):
        def __init__(self, work, times, streams=()):
            super().__init__()
            self.launch, self.stream = lambda: [work() for _ in range(times)], self
            self.synchronize = int

    gpu = SimpleNamespace(current=lambda: Graph(int, 0), stream=nullcontext, mapped=np.asarray)
    gpu.empty, gpu.pinned = type("Array", (np.ndarray,), {"set": np.copyto}), np.empty
    gpu.copy = lambda to, source, stream: took.append(2 + len(to) / 500)
    for name, value in {"Cuda": lambda: gpu, "Graph": Graph, "gpu_ms": timed, "cpu_ms": timed,
                        "pinned_copy": np.asarray}.items():  # fmt: skip
        monkeypatch.setattr(costs_module, name, value)
    found = costs_module.measure_costs(lambda n: SimpleNamespace(input_dtype="uint8", run=run))
    expected = Costs(392, 2, 1, 3, 3, 2.002, 784, 784, 3)
    assert asdict(found) == pytest.approx(asdict(expected))


def test_costs_are_measured_once_or_if_unreadable(tmp_path, monkeypatch):
    asked, plan = [], SimpleNamespace()
    gpu = SimpleNamespace(name="pretended", index=0)
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path))
    monkeypatch.setattr(costs_module, "plan_key", lambda plan, *facts: "-".join(map(str, facts)))
    monkeypatch.setattr(costs_module, "Pipeline", lambda *given: SimpleNamespace(dtype=given[3]))

    def measure(make):
        assert not make(7).with_scores
        asked.append(make(7).dtype)
        return FP16

    monkeypatch.setattr(costs_module, "measure_costs", measure)
    for dtype in ("uint8", "float32", "uint8"):
        assert costs_module.costs_of(plan, None, gpu, dtype) == FP16
    assert asked == ["uint8", "float32"]
    for path in (tmp_path / "schedule").iterdir():
        path.write_text("{")
    costs_module.costs_of(plan, None, gpu, "uint8")
    assert asked == ["uint8", "float32", "uint8"]
    names = [path.stem for path in (tmp_path / "schedule").iterdir()]
    kept = {str(entries.load("schedule", name, Costs)) for name in names}
    assert kept == {str(FP16), "None"}
