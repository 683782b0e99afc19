"""`lenetgpu classify` while somebody else writes where it reads, or where it writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.files.assets import default_digits
from lenetgpu.files.dataset import load_dataset
from lenetgpu.jobs import manifest, worker
from lenetgpu.lab import classify

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


def test_images_that_are_written_over_while_they_are_read(images, out, meanwhile):
    def change():
        with open(images, "r+b") as file:
            file.seek(images.stat().st_size // 2)
            file.write(bytes(784))

    meanwhile(change)
    done = run(images, "--out", out, code=1)
    assert "found it changed since" in done.stderr
    assert not list(out.glob("part-*")) and manifest.read(out).done == {}
    assert [name for name in os.listdir(out) if name.startswith(".")] == [".lenetgpu.lock"]


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


def test_a_manifest_that_is_damaged_while_the_job_runs(images, out, meanwhile):
    def damage():
        with open(out / "manifest.json", "a") as file:
            file.write("no line\n")

    meanwhile(damage)
    done = run(images, "--out", out, "--shard", 100, code=2)
    assert "damaged while the job runs" in done.stderr and done.stderr.count("\n") == 1


def test_a_folder_that_is_removed_gets_no_summary(images, out, meanwhile):
    def remove():
        shutil.rmtree(out)
        raise KeyboardInterrupt

    meanwhile(remove)
    run(images, "--out", out, code=130)
    assert not out.exists()
    run(images, "--out", out)


def test_a_job_that_took_the_place_is_left_alone(images, out, meanwhile):
    """The folder was emptied, and another job begun in it, while a worker had a shard in hand."""
    seen = {}

    def another():
        job = manifest.read(out).job
        shutil.rmtree(out)
        out.mkdir()
        manifest.begin(out, replace(job, id="another"))
        (out / "part-000000.npy").write_bytes(b"its own")
        seen.update({path.name: path.read_bytes() for path in out.iterdir()})

    meanwhile(another)
    done = run(images, "--out", out, code=2)
    assert "another one begun since" in done.stderr and done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == seen


def test_a_job_that_is_begun_again_is_another_one(images, out):
    """A worker of a cluster that stays keeps what it knows of the first."""
    run(images, "--out", out)
    first = manifest.read(out).job
    shutil.rmtree(out)
    run(images, "--out", out)
    assert manifest.read(out).job.key != first.key
    assert replace(manifest.read(out).job, id=first.id) == first


def test_more_shards_than_their_names_have_an_order_for(images, out, monkeypatch):
    monkeypatch.setattr(classify, "MOST", 3)
    done = run(images, "--out", out, "--shard", 99, code=2)
    assert "--shard 99: expected at most 3 shards, found 4 of 300 images" in done.stderr
    assert not (out / "manifest.json").exists()
    run(images, "--out", out, "--shard", 100)
    job = manifest.read(out).job
    assert job.count == len(job.shards) and job.valid is job.valid  # it is asked at every shard


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_long_names_are_whole(images, out, form):
    """Cut in the middle, as a terminal gets them, those of two folders would be one."""
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="no pyarrow")
    folder, names = images.parent / ("y" * 150), []
    for middle in "ab":
        place = folder / ("y" * 150) / (middle * 60) / ("z" * 200)
        place.mkdir(parents=True)
        names.append(str(shutil.copy(images, place / f"{middle}.npy")))
    run(folder, "--out", out, "--form", form)
    found = []
    for part in sorted(out.glob("part-*")):
        if form == "csv":
            found += [line.split(",")[1] for line in part.read_text().splitlines()[1::300]]
        else:
            from pyarrow import parquet

            found += parquet.read_table(part)["file"].to_pylist()[::300]
    assert found == names
