"""`lenetgpu classify` while somebody else writes where it reads, or where it writes."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.files.assets import default_digits
from lenetgpu.files.dataset import load_dataset
from lenetgpu.shards import worker

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
