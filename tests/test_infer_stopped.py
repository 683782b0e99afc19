"""Runs of the pipeline that Ctrl-C ends: what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from conftest import ROOT
from pretended_gpu import PretendedGpu, streamer_on
from test_infer import CPU, run, weights_were_checked

from lenetgpu.files.checksums import ATTRIBUTE
from lenetgpu.files.dataset import load_dataset
from lenetgpu.lab import console as progress
from lenetgpu.lab import infer as job
from lenetgpu.measure import timing
from lenetgpu.measure.outcome import Request
from lenetgpu.pipeline import CPU_CHUNK

# sends SIGINT to itself, as a terminal would, when the pipeline begins its Nth chunk
DRIVER = """
import os, signal, sys
from lenetgpu.cli import main
from lenetgpu.pipeline import Pipeline
signal.signal(signal.SIGINT, signal.default_int_handler)
at, arguments = int(sys.argv[1]), sys.argv[2:]
begun, plain = 0, Pipeline._output
def output(self, place, step, lo, n):
    global begun
    begun += step is self.steps[0]
    if begun == at and step is self.steps[0]:
        os.kill(os.getpid(), signal.SIGINT)
    return plain(self, place, step, lo, n)
Pipeline._output = output
main(arguments, prog_name="lenetgpu")
"""


def stopped(chunk, *arguments, code=DRIVER):
    """The command, interrupted as chunk `chunk` begins; the first only warms up."""
    weights_were_checked()
    words = [sys.executable, "-c", code, str(chunk), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("ending", [".h5", ".json"])
def test_ctrl_c_in_the_first_pass_keeps_the_labels_that_were_done(tmp_path, ending):
    target, report = tmp_path / f"labels{ending}", tmp_path / "out.json"
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
    whole = tmp_path / f"whole{ending}"
    assert run(*asked, "--output", whole).exit_code == 0
    (labels, scores), (all_labels, all_scores) = read(target), read(whole)
    assert len(labels) == len(scores) == count
    np.testing.assert_array_equal(labels, all_labels[:count])
    np.testing.assert_array_equal(scores, all_scores[:count])
    np.testing.assert_array_equal(scores.argmax(axis=1), labels)
    assert document["correct"] == (labels == truth).sum()
    assert document["accuracy"] == document["correct"] / count
    assert f"accuracy {document['correct']}/{count}" in done.stdout
    assert document["timing_ms"]["end_to_end"]["samples"] == [document["timing_ms"]["first"]]


def read(path):
    """Labels and scores of a file, which says itself that it is a part where it can."""
    part = path.stem == "labels"
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            said = {key: value for key, value in file.attrs.items() if key != ATTRIBUTE}
            assert said == ({"interrupted": True, "images_asked": 600} if part else {})
            return file["labels"][()], file["scores"][()]
    document = json.loads(path.read_text())
    assert document.get("interrupted", False) is part
    assert document.get("images_asked") == (600 if part else None)
    return np.array(document["labels"]), np.array(document["scores"], np.float32)


def test_ctrl_c_in_the_repeats_keeps_all_labels_and_the_samples(tmp_path):
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


def test_ctrl_c_before_the_first_label_writes_nothing(tmp_path):
    target, report = tmp_path / "labels.npy", tmp_path / "out.json"
    done = stopped(2, "infer", "--limit", 300, *CPU, "--output", target, "--json", report)
    assert (done.returncode, done.stderr) == (130, "lenetgpu: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_a_batch_is_counted_and_the_batch_is_the_one_that_was_asked_for():
    def stop(done, total):
        if done == 2 * CPU_CHUNK:
            raise KeyboardInterrupt

    outcome = job.infer(
        Request(limit=600, batch=500, device="cpu", plan="tiled", min_accuracy=1.0), stop
    )
    count = 2 * CPU_CHUNK
    assert outcome.ended() == {
        "interrupted": True, "images_asked": 600, "images_done": count, "batch": 500,
        "repeated": False, "streams": 1, "chunk": None, "zero_copy": False,
        "model_ms": None, "from": "memory", "notes": [],
    }  # fmt: skip
    assert len(outcome.labels) == outcome.done == len(outcome.truth) == count
    assert outcome.images_per_second == count / (outcome.phases["first"] / 1e3)


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    again = DRIVER.replace(
        "main(arg",
        "import lenetgpu.files.output as files\n"
        "files.LabelWriter.write = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "main(arg",
    )
    target, report = tmp_path / "labels.npy", tmp_path / "out.json"
    arguments = "infer", "--limit", 300, *CPU, "--output", target, "--json", report
    done = stopped(4, *arguments, code=again)
    assert (done.returncode, done.stderr) == (130, "lenetgpu: interrupted\n")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("whole", "timed"), [(3, 0), (11, 4)])
def test_ctrl_c_in_a_profile_keeps_the_passes_that_were_whole(tmp_path, whole, timed):
    """Of a chunk of images: the first pass, 5 unprofiled, one profiled that is no sample, 5 that
    are; a chunk before them warms up."""
    forms = {form: tmp_path / f"p.{form}" for form in ("json", "csv", "markdown", "trace")}
    options = [word for form, path in forms.items() for word in (f"--{form}", path)]
    code = DRIVER.replace(
        "main(arg", "import lenetgpu.lab.infer as i; i._CPU_BUDGET_S = 0\nmain(arg"
    )
    done = stopped(whole + 2, "profile", "--limit", CPU_CHUNK, *CPU, *options, code=code)
    assert done.returncode == 130, done.stderr
    document = json.loads(forms["json"].read_text())
    assert document["interrupted"] is True
    assert document["images_done"] == CPU_CHUNK
    assert f"stages timed in {timed} passes" in done.stderr
    assert not forms["trace"].exists()
    assert f"{forms['trace']} is not written" in done.stderr
    if timed:
        assert len(document["timing_ms"]["compute"]["samples"]) == 5
        assert len(document["stages"]) == 8
        assert forms["csv"].read_text().count("\n") == 9
    else:
        assert len(document["timing_ms"]["compute"]["samples"]) == min(whole - 1, 5)
        assert document["stages"] == []
        assert document["residual_ms"] is document["hint"] is None
        assert not forms["csv"].exists() and not forms["markdown"].exists()


def test_ctrl_c_in_a_gpus_first_pass_keeps_what_was_queued():
    gpu = PretendedGpu()
    made, ran = streamer_on(gpu, 4, 2), job._Ran()
    images, labels = gpu.pinned((10, 28, 28, 1), np.uint8), gpu.pinned((10,), np.int32)
    images[:, 0, 0, 0] = np.arange(10)
    told = []

    def stop(done, total):
        told.append((done, total))
        if len(told) == 2:
            raise KeyboardInterrupt

    made.results = lambda n, scored: (labels, None)
    asked = SimpleNamespace(
        engine=SimpleNamespace(phases=timing.Phases()), request=Request(), source=range(10),
        runner=made, images=images, tally=progress.Tally(10, stop),
    )  # fmt: skip
    asked.tally.expect(1)
    with pytest.raises(KeyboardInterrupt):
        job._classify(asked, ran)
    assert ran.done == 8
    np.testing.assert_array_equal(ran.labels[:8], range(8))
    assert asked.engine.phases["first"] > 0
    assert told == [(4, 10), (8, 10)]


def stop_at(images):
    """A progress that is interrupted as soon as so many images have passed."""

    def stop(done, total):
        if done >= images:
            raise KeyboardInterrupt

    return stop


@pytest.mark.gpu
@pytest.mark.parametrize("streams", [1, 3])
def test_ctrl_c_on_a_gpu_keeps_what_was_queued(streams):
    asked = Request(device="cuda", batch=600, chunk=200, streams=streams, limit=2000, scores=True)
    whole = job.infer(asked)
    part = job.infer(asked, stop_at(1100))
    assert part.interrupted and not part.repeated and not whole.interrupted
    assert part.ended()["images_done"] == 1200
    np.testing.assert_array_equal(part.labels, whole.labels[:1200])
    np.testing.assert_array_equal(part.scores.argmax(axis=1), part.labels)
    assert part.compute.samples == whole.compute.samples == []
    assert len(part.end_to_end.samples) == len(whole.end_to_end.samples) == 1


@pytest.mark.gpu
def test_ctrl_c_in_a_gpus_repeats_keeps_all_labels_and_the_samples():
    asked = Request(device="cuda", limit=500, timing=True, roofline=True)
    part = job.infer(asked, stop_at(500 * (1 + 1 + 4)))
    assert part.interrupted and not part.rows
    assert part.ended()["images_done"] == 500
    assert len(part.compute.samples) == 3
    np.testing.assert_array_equal(part.labels, job.infer(asked).labels)
