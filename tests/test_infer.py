"""Runs of the pipeline: what Ctrl-C leaves, how many passes there are, what is said of them."""

from __future__ import annotations

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.files.dataset import load_dataset
from lenetgpu.pipeline import CPU_CHUNK

CPU = ("--device", "cpu")
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


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def stopped(chunk, *arguments, code=DRIVER):
    """The command, interrupted as chunk `chunk` begins; the first only warms up."""
    words = [sys.executable, "-c", code, str(chunk), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("ending", [".npy", ".csv", ".h5", ".json"])
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
    assert "(the first pass alone, cold)" in done.stdout
    document = json.loads(report.read_text())
    assert document["interrupted"] is True
    assert (document["images_done"], document["images_asked"]) == (count, 600)
    assert document["images"] == count
    truth = load_dataset(ROOT / "data" / "digits-10k.h5").labels[:count]
    whole = tmp_path / f"whole{ending}"
    assert run(*asked, "--output", whole).exit_code == 0
    (labels, scores), (all_labels, all_scores) = read(target), read(whole)
    assert len(labels) == len(scores) == count
    np.testing.assert_array_equal(labels, all_labels[:count])
    np.testing.assert_array_equal(scores, all_scores[:count])
    assert document["correct"] == (labels == truth).sum()
    assert document["accuracy"] == document["correct"] / count
    assert f"accuracy {document['correct']}/{count}" in done.stdout
    assert document["timing_ms"]["end_to_end"]["samples"] == [document["timing_ms"]["first"]]


def read(path):
    """Labels and scores of a file, which says itself that it is a part where it can."""
    part = path.stem == "labels"
    if path.suffix == ".npy":
        rows = np.load(path)
        return rows["label"], rows["scores"]
    if path.suffix == ".csv":
        rows = np.loadtxt(path, delimiter=",", skiprows=1)
        return rows[:, 1].astype(int), rows[:, 2:].astype(np.float32)
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            assert dict(file.attrs) == ({"interrupted": True, "images_asked": 600} if part else {})
            return file["labels"][()], file["scores"][()]
    document = json.loads(path.read_text())
    assert document.get("interrupted", False) is part
    assert document.get("images_asked") == (600 if part else None)
    return np.array(document["labels"]), np.array(document["scores"], np.float32)


def test_ctrl_c_in_the_repeats_keeps_all_labels_and_the_samples(tmp_path):
    target, report = tmp_path / "labels.npy", tmp_path / "out.json"
    each = -(-300 // CPU_CHUNK)
    done = stopped(
        1 + 3 * each + 2, "infer", "--limit", 300, *CPU, "--output", target, "--json", report
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("lenetgpu: interrupted: 300 of 300 images classified;")
    document = json.loads(report.read_text())
    assert document["interrupted"] is True
    assert document["images_done"] == document["images_asked"] == len(np.load(target)) == 300
    assert len(document["timing_ms"]["compute"]["samples"]) == 2
    assert "medians of 2 and 2 passes" in done.stdout


def test_ctrl_c_before_the_first_label_writes_nothing(tmp_path):
    target, report = tmp_path / "labels.npy", tmp_path / "out.json"
    done = stopped(2, "infer", "--limit", 300, *CPU, "--output", target, "--json", report)
    assert (done.returncode, done.stderr) == (130, "lenetgpu: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    again = DRIVER.replace(
        "main(arg",
        "import lenetgpu.files.output as files\n"
        "files.write_labels = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "main(arg",
    )
    target, report = tmp_path / "labels.npy", tmp_path / "out.json"
    arguments = "infer", "--limit", 300, *CPU, "--output", target, "--json", report
    done = stopped(4, *arguments, code=again)
    assert (done.returncode, done.stderr) == (130, "lenetgpu: interrupted\n")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("whole", "timed"), [(3, 0), (5 + 2 + 1, 2)])
def test_ctrl_c_in_a_profile_keeps_the_passes_that_were_whole(tmp_path, monkeypatch, whole, timed):
    """Of 64 images: one to warm up, the first pass, 5 or more unprofiled, 1 and 5 profiled."""
    forms = {form: tmp_path / f"p.{form}" for form in ("json", "csv", "markdown", "trace")}
    options = [word for form, path in forms.items() for word in (f"--{form}", path)]
    code = DRIVER.replace(
        "main(arg", "import lenetgpu.commands.infer as i; i._CPU_BUDGET_S = 0\nmain(arg"
    )
    done = stopped(whole + 2, "profile", "--limit", CPU_CHUNK, *CPU, *options, code=code)
    assert done.returncode == 130, done.stderr
    document = json.loads(forms["json"].read_text())
    assert document["interrupted"] is True
    assert document["images_done"] == CPU_CHUNK
    assert f"stages timed in {timed - 1 if timed else 0} passes" in done.stderr
    assert not forms["trace"].exists()
    assert f"{forms['trace']} is not written" in done.stderr
    if timed:
        assert len(document["timing_ms"]["compute"]["samples"]) == 5
        assert len(document["stages"]) == 8
        assert forms["csv"].read_text().count("\n") == 9
    else:
        assert len(document["timing_ms"]["compute"]["samples"]) == whole - 1
        assert document["stages"] == []
        assert document["residual_ms"] is document["hint"] is None
        assert not forms["csv"].exists() and not forms["markdown"].exists()
