"""Operations, bytes, peaks and rates against figures worked out by hand."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from lenetgpu.measure import roofline
from lenetgpu.measure import timing as calls
from lenetgpu.measure.document import rates_json
from lenetgpu.network import CLASSIFIER, FEATURES, SPANS, stage
from lenetgpu.problems import Conv, Pool, Relayout, Scale


def span(kind):
    return next(span.problem for span in SPANS if span.kind == kind)


def first_conv_pool():
    return next(span.problem for span in SPANS if span.stages == ("conv1", "pool1"))


@pytest.mark.parametrize(
    ("problem", "n", "flop", "moved"),
    [
        # maps of 784 and 24*24*32 floats, 800 of filters; 2 * 25 operations an output
        (stage("conv1").problem, 1, 921_600, 80_064),
        (stage("conv1").problem, 10, 9_216_000, 4 * (10 * (784 + 18_432) + 800)),
        (stage("conv2").problem, 1, 6_553_600, 4 * (4_608 + 4_096 + 51_200)),
        # 24*24*32 read and a quarter as many written; four ReLUs, three adds, a multiply an output
        (stage("pool1").problem, 10, 368_640, 921_600),
        (stage("pool2").problem, 1, 8_192, 20_480),
        (Pool(2, 2, 1), 3, 24, 60),
        # 1,024 floats in and 128 out an image, and the matrix once
        (stage("fc1").problem, 10, 2_621_440, 570_368),
        (stage("fc2").problem, 1, 2_560, 5_672),
        (stage("argmax").problem, 7, 63, 308),
        (Scale(28, 28, 1, "uint8"), 10, 7_840, 39_200),
        (Scale(28, 28, 1, "float32"), 10, 7_840, 62_720),
        (Relayout(8, 8, 64, "NHWC", "NCHW"), 3, 0, 98_304),
        # 784 floats in, 12*12*32 out: the map between is not moved
        (first_conv_pool(), 10, 9_216_000 + 368_640, 218_880),
        # a byte a pixel and two a feature, float filters
        (span(FEATURES), 10, 75_202_560, 236_320),
        (span(CLASSIFIER), 10, 2_647_130, 549_928),
        (Conv(11, 13, 3, 7, 3, 2, stride=2, pad=1), 1, 2 * 6 * 7 * 7 * 18, 4 * (429 + 294 + 126)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_work_is_what_a_hand_counts(problem, n, flop, moved):
    assert (problem.flop(n), problem.bytes(n)) == (flop, moved)


def test_rates_are_in_the_units_of_their_names():
    limits = roofline.Ceilings("x", copy_gbs=100, fma_tflops=1, tensor_tflops=0)
    found = rates_json(3 * 10**9, 8 * 10**6, 4e-3, "fp32", limits)
    assert found["gflop"] == pytest.approx(3)
    assert found["mbytes"] == pytest.approx(8)
    assert found["tflops"] == pytest.approx(0.75)
    assert found["gbs"] == pytest.approx(2)
    assert found["roofline"] == pytest.approx(0.75)
    assert found["bound"] == "compute"


def test_the_gpus_peaks_count_every_byte_and_every_operation(monkeypatch):
    """Four multiprocessors and a clock that says 1 ms."""
    copied = []
    runtime = SimpleNamespace(
        memGetInfo=lambda: (4 << 20, 8 << 20),
        memcpyDeviceToDevice=3,
        memcpyAsync=lambda to, what, size, kind, stream: copied.append(size),
    )
    data = SimpleNamespace(ptr=0)
    fake = SimpleNamespace(
        uint8="uint8",
        float32="float32",
        ones=lambda size, dtype: SimpleNamespace(data=data, nbytes=size),
        empty=lambda size, dtype: SimpleNamespace(data=data, nbytes=size),
        cuda=SimpleNamespace(runtime=runtime, get_current_stream=lambda: SimpleNamespace(ptr=0)),
    )
    launched = []

    def one_ms(work):
        work()
        return 1.0

    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(roofline, "multiprocessors", lambda: 4)
    monkeypatch.setattr(roofline, "gpu_ms", one_ms)
    monkeypatch.setattr(roofline, "launch", lambda kernel, *where: launched.append((kernel, where)))
    found = roofline._measure_gpu("x")
    assert found.copy_gbs == pytest.approx(2 * (1 << 20) / 1e-3 / 1e9)
    assert set(copied) == {1 << 20}
    assert {kernel.entry for kernel, _ in launched} == {"fma_rate", "mma_rate"}
    assert {(grid, block) for _, (grid, block, _) in launched} == {((32,), (256,))}
    for kernel, _ in launched:
        assert dict(kernel.defines) == {"CHAINS": 8, "STEPS": 4096, "THREADS": 256}
    # 32 * 256 threads x 8 chains x 4,096 steps x 2; 256 warps x 8 x 4,096 x 2 * 16 * 8 * 8
    assert found.fma_tflops == pytest.approx(0.536870912)
    assert found.tensor_tflops == pytest.approx(17.179869184)


@pytest.mark.parametrize(
    ("flop", "moved", "precision", "share", "bound"),
    [
        (1e12, 1e6, "fp32", 0.5, "compute"),
        (8e12, 1e6, "fp16", 0.5, "compute"),
        (8e12, 1e6, "int8", 0.5, "compute"),
        (8e12, 1e6, "fp16x3", 0.5, "compute"),
        (1e9, 1e11, "fp16", 0.5, "memory"),
        (1e12, 1e11, "fp32", 0.5, "compute"),
    ],
)
def test_a_share_is_of_the_roof_above(flop, moved, precision, share, bound):
    limits = roofline.Ceilings("x", copy_gbs=100, fma_tflops=1, tensor_tflops=8)
    assert limits.share(flop, moved, 2.0, precision) == (pytest.approx(share), bound)
    without = roofline.Ceilings("x", copy_gbs=100, fma_tflops=1, tensor_tflops=0)
    assert without.share(1e12, 1.0, 2.0, precision)[0] == pytest.approx(0.5)


class Recorded:
    """A graph that takes 30 ms, and the stream that it wants."""

    def __init__(self):
        self.launched, self.stream = 0, nullcontext()

    def launch(self):
        self.launched += 1


@pytest.mark.parametrize("times", [1, 4])
def test_a_sample_of_replays_is_one_calls_time(monkeypatch, times):
    def elapsed(work, repeats=1):
        for _ in range(repeats):
            work()
        return 30.0 * repeats

    monkeypatch.setattr(calls, "gpu_ms", elapsed)
    graph = Recorded()
    replays = calls.Replays(graph, 10)
    replays._times = times
    assert replays.sample() == pytest.approx(3.0)
    assert graph.launched == times and replays.passes == 10 * times


@pytest.mark.parametrize(("ms", "times"), [(0.1, 5), (0.001, 64), (30.0, 1)])
def test_a_sample_is_half_a_millisecond_or_64_replays(monkeypatch, ms, times):
    monkeypatch.setattr(calls, "gpu_ms", lambda work, repeats=1: ms * repeats)
    replays = calls.Replays(Recorded(), 10)
    replays.fill()
    assert replays.passes == 10 * times
