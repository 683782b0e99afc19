"""Signals at moments when Python alone would lose them or crash."""

import json

import numpy as np
import pytest
from conftest import ROOT
from terminal import python, weights_were_checked

from lenetgpu.pipeline import CPU_CHUNK

CODES = {"INT": 130, "TERM": 143, "HUP": 129}
CPU = ("--device", "cpu", "--plan", "tiled", "--no-progress")
INTERRUPTED = "lenetgpu: interrupted\n"

# Runs a command in a process of its own; `kill` sends it the signal named by the first argument.
# Default handlers are set, because a background job or nohup may have disabled them.
HEAD = """
import os, signal, sys, time
number = getattr(signal, "SIG" + sys.argv.pop(1))
signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
def kill(*_):
    os.kill(os.getpid(), number)
def before(where, name, act=kill):
    plain = getattr(where, name)
    def both(*words, **more):
        act()
        return plain(*words, **more)
    setattr(where, name, both)
def on_import(module, act=kill):
    class Finder:
        def find_spec(name, *_):
            if name == module:
                act()
    sys.meta_path.insert(0, Finder)
def in_data_info(act):
    import lenetgpu.lab.listing as listing
    before(listing, "data_rows", act)
from lenetgpu.__main__ import main
"""


def ended(name, code, *words, cwd=ROOT):
    """Run `code`, followed by a call of main(), in a process of its own, and return it."""
    return python("-c", f"{HEAD}{code}\nmain()", name, *words, cwd=cwd, limit=120)


MOMENTS = {
    "before its handlers are imported": """
on_import("lenetgpu.cli.signals", lambda: os.kill(os.getpid(), signal.SIGINT))
""",
    "before the commands are imported": "on_import('click')",
    "in the middle of an import": """
def act():
    try:
        kill()
    except BaseException:
        print("raised", file=sys.stderr)
on_import("numpy", act)
""",
    "in a destructor": """
class Made:
    def __del__(self):
        kill()
def act():
    Made()
    time.sleep(30)
in_data_info(act)
""",
    "while it waits": """
import threading
def act():
    threading.Timer(0.2, kill).start()
    time.sleep(30)
in_data_info(act)
""",
    "when the command is done": "import atexit; atexit.register(kill)",
    "when the command is nearly done": "import click; before(click.Context, 'exit')",
}


@pytest.mark.parametrize(
    ("name", "moment"),
    [*zip([*CODES] * 3, MOMENTS), ("INT", "in a destructor")],  # noqa: B905
)
def test_signals_have_their_exit_code_and_one_line(name, moment):
    done = ended(name, MOMENTS[moment], "data", "info")
    assert (done.returncode, done.stderr) == (CODES[name], INTERRUPTED)


CONVERTED = """
import atexit
@atexit.register
def last():
    import h5py
    with h5py.File("x", "w", driver="core", backing_store=False) as file:
        file.attrs["text"] = "HDF5 still converts"
        print(file.attrs["text"])
"""


def test_normal_exit_is_unchanged():
    """Exit handlers run in reverse order: at the last one, h5py's converters still exist."""
    done = ended("INT", CONVERTED, "data", "info")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("HDF5 still converts\n")
    done = ended("INT", "", "data", "info", "none.h5")
    assert done.returncode == 2 and done.stderr.startswith("lenetgpu: error: none.h5: ")
    assert ended("INT", "", "--version").returncode == 0


def test_initially_ignored_signals_stay_ignored():
    """Signals ignored by nohup stay ignored."""
    code = "signal.signal(number, signal.SIG_IGN)" + MOMENTS["while it waits"].replace("30", "0.3")
    done = ended("HUP", code, "data", "info")
    assert (done.returncode, done.stderr) == (0, "")
    assert "10,000 of 28x28" in done.stdout


def in_the_pass(chunk=7, act="kill()"):
    """Return code that acts as chunk number `chunk` begins."""
    return f"""
from lenetgpu.pipeline import Pipeline
begun, plain = 0, Pipeline._output
def output(self, target, step, lo, n):
    global begun
    begun += step is self.steps[0]
    if begun == {chunk} and step is self.steps[0]:
        {act}
    return plain(self, target, step, lo, n)
Pipeline._output = output
"""


LABELS = ("infer", "--limit", 600, "--batch", 250, *CPU, "--output", "x.npy", "--json", "r.json")


@pytest.mark.parametrize(("name", "twice"), [("HUP", False), ("TERM", True)])
def test_finished_labels_are_written(tmp_path, name, twice):
    """Results are as after Ctrl-C; two signals at once, as from `timeout`, count as one."""
    weights_were_checked()
    code = in_the_pass(act="kill(), kill()" if twice else "kill()")
    done = ended(name, code, *LABELS, cwd=tmp_path)
    count = 250 + CPU_CHUNK
    assert done.returncode == CODES[name], done.stderr
    assert done.stderr.startswith(f"lenetgpu: interrupted: {count} of 600 images classified")
    assert done.stderr.count("\n") == 1
    assert len(np.load(tmp_path / "x.npy")) == count
    assert json.loads((tmp_path / "r.json").read_text())["images_done"] == count
    assert len(list(tmp_path.iterdir())) == 2


def test_second_signal_ends_at_once(tmp_path):
    weights_were_checked()
    code = f"""{in_the_pass()}
import lenetgpu.files.output as files
def act():
    time.sleep(0.3)
    try:
        kill()
    finally:
        print("went on", file=sys.stderr)
before(files.LabelWriter, "close", act)
"""
    done = ended("INT", code, *LABELS, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (CODES["INT"], INTERRUPTED, "")
    assert list(tmp_path.iterdir()) == []


def test_failure_after_a_signal_has_its_own_exit_code(tmp_path):
    weights_were_checked()
    code = f"""{in_the_pass()}
import lenetgpu.files.output as files
def full(*_):
    raise OSError(28, "No space left on device")
files.Temporary.put = full
"""
    done = ended("TERM", code, *LABELS, cwd=tmp_path)
    assert done.returncode == 2 and "x.npy: cannot be written: " in done.stderr


@pytest.mark.parametrize("signalled", [False, True])
def test_profiler_gets_normal_exit_except_after_a_signal(signalled):
    code = """
import threading
os.environ["CUDA_INJECTION64_PATH"] = ""
threading._register_atexit(lambda: print("taken down"))
"""
    if signalled:
        code += MOMENTS["while it waits"]
    done = ended("TERM", code, "data", "info")
    assert done.returncode == (CODES["TERM"] if signalled else 0)
    assert done.stdout.endswith("taken down\n") is not signalled


@pytest.mark.parametrize(
    ("name", "where"),
    [("INT", "lenetgpu.store._locked"), ("TERM", "os.replace"), ("HUP", "os.fsync")],
)
def test_temporary_files_are_removed(tmp_path, name, where):
    """Send the signal at the calls between creating a file and giving it its final name."""
    module, _, function = where.rpartition(".")
    code = f"import {module}; before({module}, {function!r})"
    words = "weights", "convert", ROOT / "weights" / "lenet-mnist.h5", "w.h5"
    (tmp_path / "w.h5").write_text("old")
    done = ended(name, code, *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (CODES[name], INTERRUPTED)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("w.h5", "old")]


def test_hdf5_operations_are_not_interrupted(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2_500, 28, 28), np.uint8))
    code = "import lenetgpu.files.hdf5 as hdf5; before(hdf5._Patient, '__getattr__')"
    done = ended("TERM", code, "data", "convert", "x.npy", "x.h5", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (CODES["TERM"], INTERRUPTED)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_hdf5_name_callbacks_are_not_interrupted():
    """HDF5 calls Python from C here, and no frame shows it."""
    code = """
def trace(frame, *_):
    if frame.f_code.co_name == "note" and frame.f_code.co_filename.endswith("hdf5.py"):
        sys.settrace(None)
        kill()
sys.settrace(trace)
"""
    done = ended("TERM", code, "weights", "info")
    assert (done.returncode, done.stderr) == (CODES["TERM"], INTERRUPTED)


def test_embedding_process_keeps_its_handlers():
    code = """
def inside():
    before = signal.getsignal(signal.SIGTERM)
    try:
        main()
    except SystemExit:
        print("went on", signal.getsignal(signal.SIGTERM) is before)
inside()
raise SystemExit
"""
    done = ended("TERM", code, "weights", "info", "none.h5")
    assert done.returncode == 0 and done.stdout.endswith("went on True\n")
