"""Error sentences blame the full folder, and contain no memory address."""

import re
import subprocess
import sys
import tempfile

from conftest import ROOT

from lenetgpu.cli.ending import of_system
from lenetgpu.errors import LenetError


def test_error_messages_contain_no_memory_address():
    said = str(LenetError(f"x: found a damaged header (malformed: {object()!r}, <a.B at 0x12>)"))
    assert said == "x: found a damaged header (malformed: <object>, <a.B at 0x12>)"
    assert str(LenetError("a object at 0x12.png: found")) == "a object at 0x12.png: found"


def test_full_disk_while_copying_stdin_is_not_blamed_on_stdout():
    words = [sys.executable, "-m", "lenetgpu", "infer", "-"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", *words], input=b"P4 " + bytes(100_000),
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == b""
    expected = f"stdin: cannot be copied to {tempfile.gettempdir()}: File too large"
    assert re.fullmatch(f"lenetgpu: error: {expected}; [^\n]*\n", done.stderr.decode())


def test_library_that_memory_cannot_hold_is_not_blamed():
    """As under `ulimit -v`: llvmlite says that its file cannot be found."""
    unmapped = OSError("libllvmlite.so: failed to map segment from shared object")
    for error in (OSError("cannot find libllvmlite.so"), ImportError("cannot import", name="x")):
        assert not of_system(error).startswith("memory: ")
        error.__context__ = unmapped
        assert of_system(error).startswith("memory: expected enough to load the libraries")
