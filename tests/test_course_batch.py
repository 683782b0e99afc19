"""The course's figures are of 10,000 images: beside another batch they make no ratio."""

from __future__ import annotations

import numpy as np
import pytest

from lenetgpu.check.judge import Verdict
from lenetgpu.check.truth import truth
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.papers import course_ladder, course_passes
from lenetgpu.papers.course import FIGURES, IMAGES, SERIAL_MEAN, SERIAL_RELU
from lenetgpu.papers.course_ladder import CourseRun


class Quick:
    """A stage's bench that takes 2 ms a sample and is right."""

    scaled_from = 100
    launched = ()

    def __init__(self, variant, unit, images, facts, layouts=None):
        self.images, self.problem = images, unit.problem

    def check(self):
        return type("Checked", (), {"verdict": Verdict(True, 0.0, 1.0), "flips": 0})()

    recheck = check

    def sample(self):
        return 2.0


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A run of so many images as on a GPU's machine, its kernels replaced by Quick."""
    monkeypatch.setattr(course_ladder, "StageBench", Quick)
    monkeypatch.setattr(course_ladder, "_explanation", lambda *about: "")

    def make(images, device="cuda"):
        return CourseRun(
            device, np.empty((images, 28, 28, 1), np.uint8), None, None, lambda _: None
        )

    return make


@pytest.mark.parametrize(("images", "ratio"), [(IMAGES, 17200 / 2), (100, None), (20_000, None)])
def test_a_ratio_is_of_as_many_images_or_there_is_none(on_a_gpu, images, ratio):
    run = on_a_gpu(images)
    figure = next(f for f in FIGURES if (f.stage, f.table) == ("conv2", "1"))
    row = {"report_ms": figure.milliseconds, **run._measure(figure.stage, figure.variant)}
    row = run._with_speedup(row)
    assert row["median_ms"] == 2.0
    assert row.get("speedup") == ratio
    assert ("of 10,000 images" in (row.get("note") or "")) == (ratio is None)


def test_two_rows_of_one_measurement_do_not_share_their_notes(on_a_gpu):
    run = on_a_gpu(200)
    rows = [run._with_speedup({"report_ms": 1.0, **run._measure("conv1", "serial.loops")})
            for _ in range(2)]  # fmt: skip
    assert rows[0]["note"] == rows[1]["note"]
    assert rows[0]["note"].count("10,000") == 1


def test_a_serial_row_beside_a_gpu_names_its_cpu(on_a_gpu):
    run = on_a_gpu(IMAGES)
    for stage, variant in (("conv1", "serial.loops"), ("pool2", SERIAL_RELU)):
        note = run._measure(stage, variant)["note"]
        assert cpu_name() in note and "scaled from 100 images" in note
    assert cpu_name() not in run._measure("conv1", "direct.basic").get("note", "")


@pytest.mark.parametrize("name", [SERIAL_RELU, SERIAL_MEAN])
def test_few_images_are_timed_themselves(name):
    notes = {n: course_passes.serial_pass("pool2", name, n)["note"] for n in (20, 100, 101)}
    assert "scaled" not in notes[20] + notes[100]
    assert notes[101].startswith("scaled from 100 images, on one thread")


def test_the_suite_of_a_small_batch_says_why_it_has_no_ratios(shipped_weights, rng):
    images = rng.integers(0, 256, (4, 28, 28, 1), dtype=np.uint8)
    run = CourseRun("cpu", images, truth(images, shipped_weights), None, lambda line: None)
    found = run._with_speedup({"report_ms": 3.2, **run._measure("argmax", "serial.loops")})
    assert found["status"] == "right" and found["median_ms"] > 0
    assert "speedup" not in found and "10,000 images" in found["note"]
