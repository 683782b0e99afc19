"""`lenetgpu classify` while somebody else writes where it reads, or where it writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.commands import classify
from lenetgpu.files.assets import default_digits
from lenetgpu.files.dataset import load_dataset
from lenetgpu.shards import manifest, worker

CPU = ("--device", "cpu", "--plan", "fp32", "--no-progress")


@pytest.fixture
def images(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, load_dataset(default_digits()).images[:300])
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def run(*words, code=0):
    done = CliRunner().invoke(main, ["classify", *map(str, words), *CPU])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def meanwhile(monkeypatch):
    """Have something happen when the first shard's labels are there."""

    def happens(call):
        add, calls = worker._Labelled.add, [call]

        def disturbed(self, labels, scores):
            if calls:
                calls.pop()()
            add(self, labels, scores)

        monkeypatch.setattr(worker._Labelled, "add", disturbed)

    return happens


def test_ctrl_c_in_the_second_shard(images, out, monkeypatch):
    """The first has its line, which nobody was told of yet."""
    begin = worker.Worker._begin

    def interrupted(self, shard, writer):
        if shard.number == 1:
            raise KeyboardInterrupt
        return begin(self, shard, writer)

    monkeypatch.setattr(worker.Worker, "_begin", interrupted)
    done = run(images, "--out", out, "--shard", 100, code=130)
    assert "100 images, 1 shards" in done.stdout and "2 left" in done.stdout
    assert "for 100 images of this run" in done.stdout


@pytest.mark.parametrize("name", ["manifest.json", "part-000000.npy", "report.json"])
def test_nothing_else_is_written_into_the_folder(images, out, name):
    run(images, "--out", out, "--shard", 200)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for more in ((), ("--predict",)):
        done = run(images, "--out", out, "--shard", 200, "--json", out / name, *more, code=2)
        assert "expected a file outside" in done.stderr and done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_file_that_a_pattern_matches_is_not_written_over(images, out):
    before = images.read_bytes()
    done = run(images.parent / "*.npy", "--out", out, "--json", images, code=2)
    assert "expected another file to write" in done.stderr and images.read_bytes() == before


@pytest.mark.parametrize("name", ["manifest.json", "summary.json", "part-000000.npy"])
def test_a_pipe_in_a_files_place_is_not_waited_for(images, out, name):
    run(images, "--out", out)
    (out / name).unlink()
    os.mkfifo(out / name)
    command = [sys.executable, "-m", "lenetgpu", "classify", images, "--out", out, *CPU]
    process = subprocess.Popen(
        list(map(str, command)), env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
    )
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 2 and b"found a folder, a pipe or a device" in said


def test_a_folder_that_is_removed_gets_no_summary(images, out, meanwhile):
    def remove():
        shutil.rmtree(out)
        raise KeyboardInterrupt

    meanwhile(remove)
    run(images, "--out", out, code=130)
    assert not out.exists()
    run(images, "--out", out)


def test_more_shards_than_their_names_have_an_order_for(images, out, monkeypatch):
    monkeypatch.setattr(classify, "MOST", 3)
    done = run(images, "--out", out, "--shard", 99, code=2)
    assert "--shard 99: expected at most 3 shards, found 4 of 300 images" in done.stderr
    assert not (out / "manifest.json").exists()
    run(images, "--out", out, "--shard", 100)
    job = manifest.read(out).job
    assert job.count == len(job.shards) and job.valid is job.valid  # it is asked at every shard
