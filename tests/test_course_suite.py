"""Rows of the course suite other than variants: merged stages, transfers, streams, layouts."""

from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu.check.judge import Verdict
from lenetgpu.check.reference import network_reference, random_input, reference
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.net.streaming import streamer
from lenetgpu.network import stage
from lenetgpu.papers import course, course_ladder
from lenetgpu.papers.course_ladder import CourseRun, step_rows
from lenetgpu.pipeline import build_steps
from lenetgpu.plan import resolve
from lenetgpu.problems import Conv, Fc, Pool
from lenetgpu.stages import find

POOLED = [
    (Pool(12, 10, 3), Conv(6, 5, 3, 7, 3, 2)),
    (Pool(8, 8, 2), Conv(4, 4, 2, 5, 3, 3, stride=2, pad=1)),
    (Pool(8, 6, 5), Fc(60, 11, relu=True)),
]


@pytest.mark.parametrize(("pool", "after"), POOLED, ids=str)
def test_mean_pool_merges_into_the_next_linear_stage(pool, after, rng):
    kind = "fc" if isinstance(after, Fc) else "conv"
    x = np.abs(rng.standard_normal((3, *pool.in_shape)))
    _, w = random_input(kind, after, 3, rng)
    w = w.astype(np.float64)
    mean = reference("pool", x, None, pool).reshape(3, *after.in_shape)
    apart = reference(kind, mean, w, after)
    one = course_ladder.merged_problem(pool, after)
    weights = course_ladder.merged_weights(pool, after, w)
    assert weights.shape == one.weight_shape
    merged = reference(kind, x.reshape(3, *one.in_shape), weights, one)
    np.testing.assert_allclose(merged, apart, rtol=1e-12, atol=1e-12)


def test_merging_a_mean_pool_quadruples_products():
    """By hand: 8*8*64 outputs of 100*32 products, not of 25*32 and 24*24*32 additions."""
    found = course_ladder.count(stage("pool1").problem, stage("conv2").problem)
    assert found.merged == 8 * 8 * 64 * 100 * 32
    assert found.apart == 8 * 8 * 64 * 25 * 32 + 24 * 24 * 32
    assert "13.11 M" in str(found) and "3.98x" in str(found)
    found = course_ladder.count(stage("pool2").problem, stage("fc1").problem)
    assert found.merged == 4096 * 128 and found.apart == 1024 * 128 + 4096


@pytest.fixture(scope="module")
def run(shipped_weights):
    images = np.random.default_rng(7).integers(0, 256, (40, 28, 28, 1), dtype=np.uint8)
    facts = network_reference(images, shipped_weights)
    return CourseRun("cpu", images, facts, None, lambda line: None)


@pytest.mark.parametrize(("span", "name"), [(s, v) for *_, s, v in course.LINEAR])
def test_merged_stages_are_checked_and_timed(run, span, name):
    row = run._one(span, name)
    assert row["status"] == "right" and row["median_ms"] > 0
    assert "multiply-adds an image merged" in row["explanation"]
    assert row["explanation"].count(" + ") == (name == course.APART)


@pytest.mark.parametrize("span", ["pool1+conv2", "pool2+fc1"])
def test_wrongly_merged_weights_are_not_timed(run, span, monkeypatch):
    right = course_ladder.merged_weights
    monkeypatch.setattr(course_ladder, "merged_weights", lambda *about: right(*about)[::-1].copy())
    row = run._one(span, course.MERGED)
    assert row["status"] == "wrong" and "median_ms" not in row


def test_bytes_crossing_the_bus_between_stages():
    n = 10
    plan = resolve("course", "cuda")
    outputs = [24 * 24 * 32, 12 * 12 * 32, 8 * 8 * 64, 1024, 128, 10]
    by_host = build_steps(plan, "float32", "host")
    assert course_ladder.crossed_bytes(by_host, n) == 2 * 4 * n * sum(outputs)
    resident = build_steps(plan, "float32")
    assert course_ladder.crossed_bytes(resident, n) == 0
    together, least = course_ladder.activation_bytes(resident, n)
    assert together == 4 * n * (sum(outputs) + 1)
    assert least == 4 * n * (outputs[0] + outputs[1])


@pytest.mark.parametrize(
    ("where", "name", "expected"),
    [
        ("conv1", "direct.shared_constant", ("NHWC", "NHWC")),
        ("pool2", "basic.in_place", ("NHWC", "NHWC")),
        ("conv1", "unrolled.constant_layout", ("NCHW", "QUAD")),
        ("conv2", "unrolled.image_layout", ("NCHW", "QUAD")),
        ("pool1", "layout.quad_looped", ("QUAD", "NCHW")),
        ("pool2", "layout.quad_looped", ("QUAD", "NHWC")),
        ("conv1", "direct.four_maps", None),
    ],
)
def test_early_kernels_read_the_reports_layouts(where, name, expected):
    variant = find("conv" if where.startswith("conv") else "pool", name, "cuda")
    assert course.layouts_of(where, variant) == expected
    assert variant.refusal(stage(where).problem) is None


def test_every_ladder_step_is_a_row():
    rows = {(f.stage, f.variant) for f in course.FIGURES}
    rows |= {(where, name) for *_, where, name in (*course.UNTIMED, *course.LINEAR, *course.MOVES)}
    steps = [(where, name) for where, ladder in course.LADDERS for name, _ in ladder]
    assert set(steps) <= rows
    timed = [
        {"stage": where, "variant": name, "median_ms": 1.0 + index}
        for index, (where, name) in enumerate(dict.fromkeys(steps))
    ]
    found = step_rows(timed)
    assert len(found) == sum(len(ladder) - 1 for _, ladder in course.LADDERS)
    without = [row for row in found if row["report_gain"] is None]
    assert {row["stage"] for row in without} >= {"all", "pool1+conv2", "conv2"}
    assert course.streamed(2, 2) in without[-1]["step"]


class FakePipeline:
    """Pipeline that returns labels 0 to 9."""

    def __init__(self, *about):
        pass

    def run(self, images):
        return SimpleNamespace(get=lambda: np.arange(10))


@pytest.fixture
def checked(run, monkeypatch):
    """Return a run whose plans pass their check."""
    right = {"variant": "", "status": "right"}
    bench = SimpleNamespace(input=None)
    monkeypatch.setattr(run, "_checked", lambda pipeline, name: (bench, dict(right)))
    monkeypatch.setattr(run, "_plan", lambda: None)
    monkeypatch.setattr(course_ladder, "Pipeline", FakePipeline)
    return run


@pytest.mark.parametrize("wrong", [False, True])
def test_transfers_with_wrong_labels_are_not_timed(checked, monkeypatch, wrong):
    moved = FakePipeline(), lambda: np.arange(10) + wrong, "so many bytes"
    monkeypatch.setattr(course_ladder, "transfers", lambda *about: moved)
    monkeypatch.setattr(course_ladder, "cpu_ms", lambda work: 3.0)
    row = checked._one("all", course.HOST)
    assert row["status"] == ("wrong" if wrong else "right")
    assert row.get("median_ms") == (None if wrong else 3.0)


class FakeStreamer:
    """Streamer that returns label 7 everywhere."""

    def __init__(self, make, chunk, streams):
        assert (chunk, streams) == (20, 2)  # of 40 images

    def run(self, images, labels):
        labels[:] = 7


def test_streams_with_wrong_labels_are_not_timed(checked, monkeypatch):
    monkeypatch.setattr(streamer, "Streamer", FakeStreamer)
    monkeypatch.setattr(streamer, "pinned_copy", np.copy)
    results = np.empty(10, np.int32), None
    monkeypatch.setattr(streamer, "host_results", lambda n, with_scores: results)
    row = checked._one("all", course.streamed(2, 2))
    assert row["status"] == "wrong" and "found 9 others" in row["note"]
    assert "median_ms" not in row


# The figures are for 10,000 images: other batches get no ratio


class Quick:
    """Bench of a stage that is correct and takes 2 ms a sample."""

    scaled_from = 100
    launched = ()

    def __init__(self, variant, unit, images, facts, layouts=None):
        self.images, self.problem = images, unit.problem

    def check(self):
        return SimpleNamespace(verdict=Verdict(True, 0.0, 1.0), flips=0)

    recheck = check

    def sample(self):
        return 2.0


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Return a function that makes a GPU run of so many images, with kernels replaced by Quick."""
    monkeypatch.setattr(course_ladder, "StageBench", Quick)
    monkeypatch.setattr(course_ladder, "_explanation", lambda *about: "")

    def make(images):
        pictures = np.empty((images, 28, 28, 1), np.uint8)
        return CourseRun("cuda", pictures, None, None, lambda _: None)

    return make


@pytest.mark.parametrize(
    ("images", "ratio"), [(course.IMAGES, 17200 / 2), (100, None), (20_000, None)]
)
def test_ratios_require_equal_batch_sizes(on_a_gpu, images, ratio):
    run = on_a_gpu(images)
    figure = next(f for f in course.FIGURES if (f.stage, f.table) == ("conv2", "1"))
    for _ in range(2):  # the second has a note of its own
        row = {"report_ms": figure.milliseconds, **run._measure(figure.stage, figure.variant)}
        row = run._with_speedup(row)
        assert row["median_ms"] == 2.0
        assert row.get("speedup") == ratio
        assert (row.get("note") or "").count("of 10,000 images") == (ratio is None)


def test_serial_row_on_a_gpu_names_the_cpu(on_a_gpu):
    run = on_a_gpu(course.IMAGES)
    for where, variant in (("conv1", "serial.loops"), ("pool2", course.SERIAL_RELU)):
        note = run._measure(where, variant)["note"]
        assert cpu_name() in note and "scaled from 100 images" in note
    assert cpu_name() not in run._measure("conv1", "direct.basic").get("note", "")


@pytest.mark.parametrize("name", [course.SERIAL_RELU, course.SERIAL_MEAN])
def test_small_batches_are_not_scaled(name):
    notes = {n: course_ladder.serial_pass("pool2", name, n)["note"] for n in (100, 101)}
    assert "scaled" not in notes[100]
    assert notes[101].startswith("scaled from 100 images, on one thread")
