"""Operations, bytes, peaks and rates, against figures worked out by hand."""

from contextlib import nullcontext

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
        (stage("conv2").problem, 1, 6_553_600, 4 * (4_608 + 4_096 + 51_200)),
        # 24*24*32 read and a quarter as many written; four ReLUs, three adds, a multiply an output
        (stage("pool1").problem, 10, 368_640, 921_600),
        (Pool(2, 2, 1), 3, 24, 60),
        # 1,024 floats in and 128 out an image, and the matrix once
        (stage("fc1").problem, 10, 2_621_440, 570_368),
        (stage("argmax").problem, 7, 63, 308),
        (Scale(28, 28, 1, "uint8"), 10, 7_840, 39_200),
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
def test_work_by_hand(problem, n, flop, moved):
    assert (problem.flop(n), problem.bytes(n)) == (flop, moved)


def test_rates_are_in_the_stated_units():
    limits = roofline.Ceilings("x", copy_gbs=100, fma_tflops=1, tensor_tflops=0)
    found = rates_json(3 * 10**9, 8 * 10**6, 4e-3, "fp32", limits)
    assert found["gflop"] == pytest.approx(3)
    assert found["mbytes"] == pytest.approx(8)
    assert found["tflops"] == pytest.approx(0.75)
    assert found["gbs"] == pytest.approx(2)
    assert found["roofline"] == pytest.approx(0.75)
    assert found["bound"] == "compute"


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
def test_share_is_of_the_limiting_ceiling(flop, moved, precision, share, bound):
    limits = roofline.Ceilings("x", copy_gbs=100, fma_tflops=1, tensor_tflops=8)
    assert limits.share(flop, moved, 2.0, precision) == (pytest.approx(share), bound)
    without = roofline.Ceilings("x", copy_gbs=100, fma_tflops=1, tensor_tflops=0)
    assert without.share(1e12, 1.0, 2.0, precision)[0] == pytest.approx(0.5)


class Recorded:
    """A graph that takes 30 ms, and the stream that it requires."""

    def __init__(self):
        self.launched, self.stream = 0, nullcontext()

    def launch(self):
        self.launched += 1


@pytest.mark.parametrize("times", [1, 4])
def test_replay_sample_is_the_time_of_one_call(monkeypatch, times):
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
def test_sample_is_half_a_millisecond_or_64_replays(monkeypatch, ms, times):
    monkeypatch.setattr(calls, "gpu_ms", lambda work, repeats=1: ms * repeats)
    replays = calls.Replays(Recorded(), 10)
    replays.fill()
    assert replays.passes == 10 * times
