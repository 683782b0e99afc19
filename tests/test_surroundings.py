"""Environments: folders without access, no folder for temporary files, Numba switched off."""

import os
import shutil
import subprocess

import numpy as np
import pytest
from conftest import ROOT
from terminal import python

DROPPED = "-dac_override,-dac_read_search"
TRACE = "Traceback"


def run(*words, prefix=(), **env):
    done = python("-m", "lenetgpu", *words, prefix=prefix, **env)
    assert TRACE not in done.stderr, done.stderr
    return done


@pytest.fixture
def images(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 28, 28), np.uint8))
    return tmp_path / "x.npy"


@pytest.fixture
def closed(tmp_path, images):
    """A folder with files in it that may not be entered."""
    folder = tmp_path / "closed"
    folder.mkdir()
    shutil.copy(images, folder / "x.npy")
    shutil.copy(ROOT / "weights" / "lenet-mnist.h5", folder / "w.h5")
    folder.chmod(0o600)
    yield folder
    folder.chmod(0o700)


@pytest.fixture
def bound(closed):
    """Command prefix that subjects a process to file permissions; root loses two capabilities."""
    if os.geteuid():
        return ()
    prefix = ("setpriv", f"--bounding-set={DROPPED}", f"--inh-caps={DROPPED}")
    if shutil.which("setpriv") is None:
        pytest.skip("root enters every folder, and there is no setpriv")
    tried = subprocess.run([*prefix, "cat", closed / "x.npy"], capture_output=True, check=False)
    if tried.returncode == 0:
        pytest.skip("root enters every folder here")
    return prefix


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("infer", "CLOSED/x.npy"), "CLOSED/x.npy: cannot be read: "),
        (("infer", "IMAGES", "--output", "CLOSED/y.csv"), "CLOSED/y.csv: cannot be written"),
    ],
)
def test_inaccessible_folder_is_one_sentence(closed, bound, images, words, said):
    def real(word):
        return word.replace("CLOSED", str(closed)).replace("IMAGES", str(images))

    done = run(*map(real, words), prefix=bound)
    assert done.returncode == 2
    assert real(said) in done.stderr and "Permission denied" in done.stderr
    assert done.stderr.count("\n") == 1


def test_disabled_numba_gives_the_same_labels(tmp_path):
    """Python then runs the loops that Numba would compile."""
    found = []
    for off in ("0", "1"):
        target = tmp_path / f"{off}.npy"
        words = "infer", "--device", "cpu", "--plan", "unrolled", "--limit", 20, "--output", target
        done = run(*words, NUMBA_DISABLE_JIT=off)
        assert done.returncode == 0, done.stderr
        found.append(np.load(target).tolist())
    assert found[0] == found[1] and len(found[0]) == 20
