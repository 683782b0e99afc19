"""Ctrl-C while an HDF5 file is being written: leftover files, and the exit status."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from lenetgpu.files.assets import default_weights

# A moment is a line about to run, in h5py's Python code or in hdf5.py, after `new_hdf5` began. The
# first child counts the moments; each later child sends SIGINT to itself at one of them.
DRIVER = """
import json, os, signal, sys
import h5py, numpy
import lenetgpu.lab.listing, lenetgpu.files.convert
from lenetgpu.cli import main
from lenetgpu.files import hdf5

places = hdf5.__file__, os.path.dirname(h5py.__file__)
folder, log, moments, arguments = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4:]
begun, passed = False, 0

def child(at):
    def line(frame, event, argument):
        global begun, passed
        begun = begun or frame.f_code.co_name == "new_hdf5"
        if begun and event == "line":
            passed += 1
            if passed == at:
                os.kill(os.getpid(), signal.SIGINT)
        return line

    if os.fork():
        status = os.waitstatus_to_exitcode(os.wait()[1])
        left = os.listdir(folder)
        for name in left:
            os.remove(os.path.join(folder, name))
        with open(log) as file:
            return at, status, file.read(), left
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1), os.dup2(stream, 2)
    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.startswith(places) else None)
    try:
        main(arguments, prog_name="lenetgpu")
    finally:
        sys.settrace(None)
        if at == 0:
            print(passed, file=sys.stderr)

whole = child(0)
count = int(whole[2].split()[-1])
ends = [child(1 + count * index // moments) for index in range(moments)]
print(json.dumps([whole, ends]))
"""


@pytest.mark.parametrize(
    ("words", "moments"),
    [
        ("data convert", 8),
        pytest.param("data convert", 60, marks=pytest.mark.slow),
        pytest.param("weights convert", 60, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_leaves_no_partial_files(tmp_path, rng, words, moments):
    source, folder = tmp_path / "x.npy", tmp_path / "made"
    np.save(source, rng.integers(0, 256, (2_500, 28, 28), dtype=np.uint8))
    folder.mkdir()
    asked = [*words.split(), source if "data" in words else default_weights(), folder / "x.h5"]
    command = [sys.executable, "-c", DRIVER, folder, tmp_path / "log", moments, *asked]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    whole, ends = json.loads(done.stdout)
    assert whole[1] == 0 and whole[3] == ["x.h5"]
    assert len({at for at, *_ in ends}) == moments
    wrong = [end for end in ends if end[1:] != [130, "lenetgpu: interrupted\n", []]]
    assert wrong == []
