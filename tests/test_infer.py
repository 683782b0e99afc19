"""Runs of the pipeline: how many passes there are, what is said of them."""

from __future__ import annotations

import json
from functools import cache
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.files.dataset import load_dataset
from lenetgpu.lab import infer as job
from lenetgpu.measure import timing
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import expected, repeat, summarise
from lenetgpu.pipeline import CPU_CHUNK, Pipeline

CPU = ("--device", "cpu", "--plan", "tiled")


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@cache
def weights_were_checked():
    """So that no later run passes images to check the plan with the weights."""
    assert run("infer", "--limit", 1, *CPU).exit_code == 0


@pytest.fixture
def passes(monkeypatch):
    """How many images each run of a pipeline had, the warm-up's one among them."""
    weights_were_checked()
    seen, plain = [], Pipeline.run

    def run(self, x, observer=None):
        seen.append(len(x))
        return plain(self, x, observer)

    monkeypatch.setattr(Pipeline, "run", run)
    return seen


def test_each_image_is_classified_once(passes):
    result = run("infer", "--limit", 70, "--batch", 30, *CPU, "--json", "-")
    assert passes == [1, 30, 30, 10]
    assert "ms host to host (one pass), " in result.stderr
    document = json.loads(result.stdout)
    assert document["repeated"] is False and document["interrupted"] is False
    timing = document["timing_ms"]
    assert timing["end_to_end"]["samples"] == timing["compute"]["samples"] == [timing["first"]]
    assert document["images_per_second"] == pytest.approx(70e3 / timing["first"])


def test_repeats_are_as_many_as_asked_and_the_first_pass_is_none(passes, monkeypatch):
    monkeypatch.setattr(job, "time_compute", lambda pipeline, images: 60.0)
    result = run("infer", "--limit", 5, *CPU, "--repeat", 3, "--json", "-")
    assert passes == [1, 5]
    timing = json.loads(result.stdout)["timing_ms"]
    assert timing["end_to_end"]["samples"] == timing["compute"]["samples"] == [60.0] * 3
    assert timing["first"] != 60.0
    assert "60.00 ms host to host (median of 3 passes, 60.00 to 60.00), " in result.stderr


class SteppedClock:
    """A clock that goes on by `step` seconds whenever it is read twice."""

    def __init__(self, step):
        self.step, self.reads = step / 2, 0

    def __call__(self):
        self.reads += 1
        return self.reads * 2 * self.step


def test_a_stages_time_is_the_median_of_five_warm_passes(monkeypatch):
    """The first, of 90 ms a stage, is none of them; nor is infer's own first."""
    monkeypatch.setattr(job, "_CPU_BUDGET_S", 0.0)
    passes = [90.0, 1.0, 2.0, 8.0, 9.0, 3.0]
    monkeypatch.setattr(
        timing, "_profile_cpu", lambda pipeline, part: [(passes[0], [])] * 7 + [(passes.pop(0), [])]
    )
    result = run("profile", "--limit", 5, *CPU, "--json", "-")
    assert result.exit_code == 0, result.output
    assert passes == []
    document = json.loads(result.stdout)
    assert [row["median_ms"] for row in document["stages"]] == [3.0] * 8
    assert document["stages"][0]["p05_ms"] == pytest.approx(1.2)
    assert len(document["timing_ms"]["compute"]["samples"]) == 5
    assert "medians of 5 passes" in result.stderr
    median = document["timing_ms"]["compute"]["median"]
    assert document["residual_ms"] == pytest.approx(median - 8 * 3.0)


def test_stages_add_up_to_the_pass(monkeypatch):
    """Steps of 1 and 3 ms, twice a batch; three batches of five images, the first passes slower."""
    now, slow = [5.0], [2.0]

    class Steps:
        plan, steps, batch = SimpleNamespace(device="cpu", plan="tiled"), ("one", "two"), 2

        def run(self, part, observer=lambda step, output: None):
            for _ in range(2):
                for step, seconds in zip(self.steps, (0.001, 0.003), strict=True):
                    now[0] += slow[0] * seconds
                    observer(step, None)

    monkeypatch.setattr(timing, "clock", lambda: now[0])
    passed = []

    def count(images):
        passed.append(images)
        slow[0] = 1.0 if len(passed) >= 3 else 2.0

    rows = timing.profile(Steps(), range(5), 6, passed=count)
    assert [row.samples for row in rows] == [pytest.approx([6.0] * 6), pytest.approx([18.0] * 6)]
    assert timing.time_compute(Steps(), range(5)) == pytest.approx(24.0)
    assert passed == [2, 2, 1] * 7


def test_percentiles_are_interpolated():
    hundred = summarise([float(ms) for ms in range(101)])
    assert (hundred.p05, hundred.median, hundred.p95, hundred.p99) == (5, 50, 95, 99)
    few = summarise([1.0, 2.0, 4.0])
    assert (few.median, few.p95, few.p99) == (2.0, pytest.approx(3.8), pytest.approx(3.96))
    assert few.as_json() == {
        "median": few.median, "p05": few.p05, "p95": few.p95, "p99": few.p99,
        "samples": [1.0, 2.0, 4.0],
    }  # fmt: skip
    nothing = summarise([]).as_json()
    assert nothing == {"median": None, "p05": None, "p95": None, "p99": None, "samples": []}


def test_samples_are_taken_between_least_and_most(monkeypatch):
    monkeypatch.setattr(timing, "clock", SteppedClock(1.0))
    assert repeat(lambda: 5.0, budget_s=3.0) == [5.0] * 3
    assert repeat(lambda: 5.0, budget_s=0.0, least=4) == [5.0] * 4
    assert repeat(lambda: 5.0, budget_s=0.0, least=0) == []
    assert repeat(lambda: 5.0, budget_s=99.0, most=6) == [5.0] * 6
    assert [expected(1.0, 3.0), expected(1.0, 0.0, 4), expected(1.0, 0.0, 0)] == [3, 4, 0]
    assert [expected(1.0, 99.0, most=6), expected(0.0, 1.0, most=6)] == [6, 6]


def test_headings_say_the_batch_that_was_run():
    words = "600 images in batches of 250, "
    result = run("infer", "--timing", "--limit", 600, "--batch", 250, *CPU)
    assert result.exit_code == 0, result.output
    (data,) = [line for line in result.output.splitlines() if line.startswith("data ")]
    assert data.removeprefix("data").strip().startswith(words)
    (title,) = [line for line in result.output.splitlines() if "plan tiled, medians" in line]
    assert title.strip() == f"{words}plan tiled, medians of 5 passes"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--limit", 0], "--limit: expected at least 1 image, found 0"),
        (["--repeat", -2], "--repeat: expected at least 0, found -2"),
        (["--streams", 129], "--streams: expected at most 128, found 129"),
        (["--transfers", "none"], "--transfers: expected device or host, found 'none'"),
    ],
)
def test_numbers_that_cannot_be_run_are_one_sentence(arguments, words):
    result = run("infer", *arguments, *CPU)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lenetgpu: error: {words}")
    assert result.stderr.count("\n") == 1


def test_too_few_right_labels_are_said_with_their_number(tmp_path):
    """9 of 10: exactly the share asked for passes, more does not; results are written first."""
    digits = load_dataset(ROOT / "data" / "digits-10k.h5").head(200)
    right = job.infer(Request(limit=200, device="cpu", plan="tiled")).labels
    path, target = tmp_path / "d.h5", tmp_path / "labels.npy"
    truth = right[:10].copy()
    truth[3] = (truth[3] + 1) % 10
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = digits.images[:10], truth
    assert run("infer", path, *CPU, "--min-accuracy", 0.9).exit_code == 0
    low = run("infer", path, *CPU, "--min-accuracy", 0.91, "--output", target)
    assert low.exit_code == 1
    assert low.stderr == (
        "WRONG: --min-accuracy: expected a share of at least 0.91, found 9 of 10 right\n"
    )
    np.testing.assert_array_equal(np.load(target), right[:10])


def test_progress_ends_at_its_total():
    told = []
    job.infer(
        Request(limit=130, batch=100, device="cpu", plan="tiled", timing=True, trace=True),
        lambda done, total: told.append((done, total)),
    )
    done, totals = zip(*told, strict=True)
    assert list(done) == sorted(done) and done[0] == CPU_CHUNK
    assert all(one <= total for one, total in told)
    assert min(totals) >= 130 * (1 + 5 + 6 + 1)
    assert done[-1] == totals[-1] and done[-1] % 130 == 0
