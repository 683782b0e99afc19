"""Runs of the pipeline: passes, files read in parallel, results after Ctrl-C."""

import json
import threading
import tracemalloc
from itertools import count
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from conftest import ROOT
from terminal import run, weights_were_checked
from test_signals import ended, in_the_pass

from lenetgpu.cpu import threads
from lenetgpu.files import source as source_module
from lenetgpu.files.reading import Source
from lenetgpu.files.source import load_dataset, open_source
from lenetgpu.lab import infer as job
from lenetgpu.measure import timing
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import expected, repeat, summarise
from lenetgpu.pipeline import CPU_CHUNK, Pipeline

CPU = ("--device", "cpu", "--plan", "tiled")


@pytest.fixture
def passes(monkeypatch):
    """Number of images in each run of the pipeline, including the warm-up's single image."""
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


def test_repeats_exclude_the_first_pass(passes, monkeypatch):
    monkeypatch.setattr(job.timing, "time_compute", lambda pipeline, images: 60.0)
    result = run("infer", "--limit", 5, *CPU, "--repeat", 3, "--json", "-")
    assert passes == [1, 5]
    timing = json.loads(result.stdout)["timing_ms"]
    assert timing["end_to_end"]["samples"] == timing["compute"]["samples"] == [60.0] * 3
    assert timing["first"] != 60.0
    assert "60.00 ms host to host (median of 3 passes, 60.00 to 60.00), " in result.stderr


def test_stage_times_add_up_to_the_pass(monkeypatch):
    """Stages of 1 and 3 ms, twice per batch; three batches of five images; slower first passes."""
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


def test_sample_count_is_within_limits(monkeypatch):
    monkeypatch.setattr(timing, "clock", count(1.0).__next__)
    assert repeat(lambda: 5.0, budget_s=3.0) == [5.0] * 3
    assert repeat(lambda: 5.0, budget_s=0.0, least=4) == [5.0] * 4
    assert repeat(lambda: 5.0, budget_s=0.0, least=0) == []
    assert repeat(lambda: 5.0, budget_s=99.0, most=6) == [5.0] * 6
    assert [expected(1.0, 3.0), expected(1.0, 0.0, 4), expected(1.0, 0.0, 0)] == [3, 4, 0]
    assert [expected(1.0, 99.0, most=6), expected(0.0, 1.0, most=6)] == [6, 6]


def test_low_accuracy_is_reported_after_the_results(tmp_path):
    target = tmp_path / "labels.npy"
    words = ["infer", "--limit", 2000, *CPU, "--min-accuracy"]
    assert run(*words, 0.9).exit_code == 0
    low = run(*words, 1.0, "--output", target)
    said = "WRONG: --min-accuracy: expected a share of at least 1, found 1,"
    assert low.exit_code == 1 and low.stderr.startswith(said)
    assert len(np.load(target)) == 2000


def test_progress_ends_at_its_total():
    calls = []
    job.infer(
        Request(limit=130, batch=100, device="cpu", plan="tiled", timing=True, trace=True),
        lambda done, total: calls.append((done, total)),
    )
    done, totals = zip(*calls, strict=True)
    assert list(done) == sorted(done) and done[0] == CPU_CHUNK
    assert all(one <= total for one, total in calls)
    assert min(totals) >= 130 * (1 + 5 + 6 + 1)
    assert done[-1] == totals[-1] and done[-1] % 130 == 0


DIGITS = ROOT / "data" / "digits-10k.h5"
N = 330


@pytest.fixture
def streamed(monkeypatch):
    """Set the limits so that no file is small enough to be read whole or in advance."""
    monkeypatch.setattr(job, "WHOLE_BYTES", 0)
    monkeypatch.setattr(source_module, "EARLY_BYTES", 0)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "many.h5"
    with open_source(DIGITS, limit=N) as source, h5py.File(path, "w") as file:
        whole = source.whole()
        file["x"], file["y"] = whole.images, whole.labels
    return path


def asked(path, **options):
    return Request(data=path, device="cpu", plan="tiled", batch=100, **options)


@pytest.mark.parametrize("ending", ["csv", "h5"])
def test_parts_give_labels_and_scores_of_a_whole_read(data, tmp_path, monkeypatch, ending):
    files = tmp_path / f"whole.{ending}", tmp_path / f"parts.{ending}"
    whole = job.infer(asked(data, scores=True), output=files[0])
    monkeypatch.setattr(job, "WHOLE_BYTES", N * 784 - 1)
    calls = []
    parts = job.infer(asked(data, scores=True), lambda *at: calls.append(at), files[1])
    np.testing.assert_array_equal(parts.labels, whole.labels)
    assert parts.correct == whole.correct
    assert (whole.streamed, parts.streamed) == (False, True)
    if ending == "h5":
        with h5py.File(files[0]) as one, h5py.File(files[1]) as other:
            for name in ("labels", "scores"):
                np.testing.assert_array_equal(one[name][()], other[name][()])
    else:
        assert files[0].read_bytes() == files[1].read_bytes()
    assert calls[-1] == (N, N) and [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_file_to_labels_time_is_reported(data, streamed):
    result = run("infer", data, "--device", "cpu", "--json", "-", "--repeat", 2)
    assert "ms file to labels (median of 2 passes, " in result.stderr
    document = json.loads(result.stdout)
    assert document["from"] == "file"
    assert document["timing_ms"]["compute"]["samples"] == []
    assert len(document["timing_ms"]["end_to_end"]["samples"]) == 2


def test_only_requested_images_are_read(data, streamed, monkeypatch):
    """With --skip and --limit, two slices at a time."""
    read, plain = [], Source.read

    def watched(self, lo, out):
        read.append((self.selection.start + lo, len(out)))
        plain(self, lo, out)

    monkeypatch.setattr(Source, "read", watched)
    whole = job.infer(asked(DIGITS, limit=N)).labels
    read.clear()
    part = job.infer(asked(data, skip=17, limit=230))
    assert read == [(17, 100), (117, 100), (217, 30)]
    np.testing.assert_array_equal(part.labels, whole[17:247])
    assert len(part.truth) == 230


def stop_at(images):
    """Return a progress callback that raises KeyboardInterrupt once so many images have passed."""

    def stop(done, total):
        if done >= images:
            raise KeyboardInterrupt

    return stop


def test_ctrl_c_writes_finished_labels(data, tmp_path, streamed):
    target = tmp_path / "labels.json"
    whole = job.infer(asked(data)).labels
    outcome = job.infer(asked(data), stop_at(130), target)
    count = outcome.done
    assert outcome.interrupted and 130 <= count < N
    written = json.loads(target.read_text())
    assert written["labels"] == whole[:count].tolist()
    assert (written["interrupted"], written["images_asked"]) == (True, N)
    assert not [t for t in threading.enumerate() if t.name.startswith("lenetgpu-read")]


def test_thread_count_is_as_requested(data, monkeypatch):
    used, plain = set(), threads.thread_count

    def counted():
        used.add(plain())
        return plain()

    monkeypatch.setattr(threads, "thread_count", counted)
    for asked_for in (1, 3):
        used.clear()
        assert run("infer", data, "--device", "cpu", "--threads", asked_for).exit_code == 0
        assert used == {asked_for}


def test_memory_is_bounded(tmp_path, streamed):
    """Less than 100 MB of 400 MB of images are in memory at any time."""
    path, count = tmp_path / "long.npy", 500_000
    header = np.lib.format.header_data_from_array_1_0(np.empty((0, 28, 28), np.uint8))
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header | {"shape": (count, 28, 28)})
        file.truncate(file.tell() + count * 784)
    tracemalloc.start()
    try:
        outcome = job.infer(Request(data=path, device="cpu"), stop_at(60_000), tmp_path / "l.csv")
        assert outcome.done >= 60_000
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2 * 10_000 * 784 < most < 100e6


def stopped(chunk, *arguments, code=""):
    """Run the command and interrupt it as chunk `chunk` begins; the first chunk only warms up."""
    weights_were_checked()
    return ended("INT", in_the_pass(chunk) + code, *arguments)


def test_ctrl_c_in_first_pass_keeps_finished_labels(tmp_path):
    target, report = tmp_path / "labels.h5", tmp_path / "out.json"
    asked = ["infer", "--limit", 600, "--batch", 250, "--scores", *CPU]
    done = stopped(7, *asked, "--output", target, "--json", report)
    count = 250 + CPU_CHUNK  # chunk 1 warms up, 2 to 5 are the first batch, 6 is the next one's
    assert done.returncode == 130, done.stderr
    assert done.stderr == (
        f"lenetgpu: interrupted: {count} of 600 images classified, {600 - count} not; "
        f"{target} holds their labels only\n"
    )
    assert f"{count} of 600 images in batches of 250" in done.stdout
    assert "ms host to host (one pass)" in done.stdout
    document = json.loads(report.read_text())
    assert document["interrupted"] is True
    assert (document["images_done"], document["images_asked"]) == (count, 600)
    assert (document["images"], document["batch"]) == (count, 250)
    truth = load_dataset(ROOT / "data" / "digits-10k.h5").labels[:count]
    whole = job.infer(Request(limit=600, batch=250, device="cpu", plan="tiled", scores=True))
    with h5py.File(target) as file:
        assert file.attrs["interrupted"] and file.attrs["images_asked"] == 600
        labels = file["labels"][()]
        np.testing.assert_array_equal(labels, whole.labels[:count])
        np.testing.assert_array_equal(file["scores"][()], whole.scores[:count])
    assert document["correct"] == (labels == truth).sum()


def test_ctrl_c_in_repeats_keeps_labels_and_samples(tmp_path):
    target, report = tmp_path / "labels.npy", tmp_path / "out.json"
    each = -(-300 // CPU_CHUNK)
    asked = ["infer", "--limit", 300, *CPU, "--repeat", 4, "--output", target, "--json", report]
    done = stopped(1 + 3 * each + 2, *asked)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("lenetgpu: interrupted: 300 of 300 images classified;")
    document = json.loads(report.read_text())
    assert document["interrupted"] is True
    assert document["images_done"] == document["images_asked"] == len(np.load(target)) == 300
    assert len(document["timing_ms"]["compute"]["samples"]) == 2
    assert "(median of 2 passes, " in done.stdout


def test_ctrl_c_before_first_label_writes_nothing(tmp_path):
    target, report = tmp_path / "labels.npy", tmp_path / "out.json"
    done = stopped(2, "infer", "--limit", 300, *CPU, "--output", target, "--json", report)
    assert (done.returncode, done.stderr) == (130, "lenetgpu: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_profile_keeps_complete_passes(tmp_path):
    """Interrupt the last of 13 chunks: warm-up, first, 5 unprofiled, one profiled, 5 samples."""
    forms = {form: tmp_path / f"p.{form}" for form in ("json", "csv", "markdown", "trace")}
    options = [word for form, path in forms.items() for word in (f"--{form}", path)]
    code = "import lenetgpu.lab.infer as i; i._CPU_BUDGET_S = 0"
    done = stopped(13, "profile", "--limit", CPU_CHUNK, *CPU, *options, code=code)
    assert done.returncode == 130, done.stderr
    document = json.loads(forms["json"].read_text())
    assert document["interrupted"] is True
    assert document["images_done"] == CPU_CHUNK
    assert "stages timed in 4 passes" in done.stderr
    assert not forms["trace"].exists()
    assert f"{forms['trace']} is not written" in done.stderr
    assert len(document["timing_ms"]["compute"]["samples"]) == 5
    assert len(document["stages"]) == 8
    assert forms["csv"].read_text().count("\n") == 9


@pytest.mark.gpu
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize(("chunk", "done"), [(200, 2000), (7, 1106)])
def test_ctrl_c_on_gpu_keeps_queued_work(streams, chunk, done):
    """A recorded pass is queued at once, one of more than 256 chunks chunk by chunk."""
    asked = Request(device="cuda", batch=600, chunk=chunk, streams=streams, limit=2000, scores=True)
    whole = job.infer(asked)
    part = job.infer(asked, stop_at(1100))
    assert part.interrupted and not part.repeated and not whole.interrupted
    assert part.ended()["images_done"] == done
    np.testing.assert_array_equal(part.labels, whole.labels[:done])
    np.testing.assert_array_equal(part.scores.argmax(axis=1), part.labels)
    assert part.compute.samples == whole.compute.samples == []
    assert len(part.end_to_end.samples) == len(whole.end_to_end.samples) == 1


@pytest.mark.gpu
def test_ctrl_c_in_gpu_repeats_keeps_labels_and_samples():
    asked = Request(device="cuda", limit=500, timing=True, roofline=True)
    part = job.infer(asked, stop_at(500 * (1 + 1 + 4)))
    assert part.interrupted and not part.rows
    assert part.ended()["images_done"] == 500
    assert len(part.compute.samples) == 3
    np.testing.assert_array_equal(part.labels, job.infer(asked).labels)
