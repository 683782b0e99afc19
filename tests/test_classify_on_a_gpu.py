"""`lenetgpu classify --workers cuda`: one Dask worker per GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from lenetgpu.files.assets import default_digits
from lenetgpu.files.source import load_dataset
from lenetgpu.jobs.manifest import read

pytestmark = pytest.mark.gpu
FILES, SHARD = 6, 500
RUN = "from lenetgpu.jobs import crew; crew.SHARE = 1; from lenetgpu.cli import main; main()"


@pytest.fixture
def folder(tmp_path):
    digits = load_dataset(default_digits()).images
    read = tmp_path / "read"
    read.mkdir()
    for i in range(FILES):
        np.save(read / f"{i}.npy", digits[i * 1000 : (i + 1) * 1000])
    return read


def start(folder, out, *words):
    command = [sys.executable, "-c", RUN, "classify", folder, "--out", out, "--shard", SHARD]
    command += ["--device", "cuda", "--plan", "fp32", "--no-progress", *words]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    pipe = subprocess.PIPE
    return subprocess.Popen(list(map(str, command)), env=env, stdout=pipe, stderr=pipe)


def parts(out):
    return {path.name: path.read_bytes() for path in out.glob("part-*")}


@pytest.fixture
def expected(tmp_path, folder):
    out = tmp_path / "one"
    process = start(folder, out)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return parts(out)


def test_one_worker_per_gpu_gives_the_same_files(tmp_path, folder, expected):
    pytest.importorskip("dask_cuda", reason="no Dask-CUDA")
    out = tmp_path / "workers"
    process = start(folder, out, "--workers", "cuda")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert parts(out) == expected and len(expected) == FILES * 1000 // SHARD
    assert {row.worker for row in read(out).done.values()}.isdisjoint({"", None})
