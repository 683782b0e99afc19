"""`compare` and `conv` with absurd numbers, shapes, names and files: refused in one sentence.

Each case runs in its own process, limited to 8 GB of address space and one minute.
"""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from lenetgpu.cpu import memory
from lenetgpu.errors import LenetError
from lenetgpu.lab.conv import request
from lenetgpu.measure.conv_bench import Case
from lenetgpu.problems import Conv

COMPARE = ["compare", "argmax", "--device", "cpu", "--batch", "64", "--seconds", "0.2"]
CONV = ["conv", "4,8,8,4,3", "--device", "cpu", "--seconds", "0.1"]
NUMBERS = ["-1", "nan", "1e308", "1" * 5000, ""]
LARGE = [str(10**30)]
NAMES = ["", "nope", "a" * 5000]
SHAPES = ["", "0,0,0,0,0", "4,8,8,4,3,1,999999999", "999999999,1,1,1,999999999", "1" * 3000,
          f"{2**63},1,1,1,1", "nan,1,1,1,1", "٣,8,8,4,3", "1,10000,10000,1,10000",
          "64,4000,4000,64,200,7"]  # fmt: skip
READ = ["", "folder", "pipe", "loop", "a" * 300]
WRITTEN = ["", "folder", "a" * 300, "a\n/x.png"]
PAIRS = [
    ["--fail-on-regression", "1"], ["--against", "x.json"], ["--suite", "lenet"], ["--engines"],
    ["--shares"], ["--as", "h100"], ["--cold-l2"], ["--json", "-", "--csv", "-"],
    ["--json", "x", "--csv", "./x"], ["--with", "folder", "--json", "folder"],
]  # fmt: skip


def walk():
    """Yield command lines that are refused."""
    for base in (COMPARE, CONV):
        for option in ("--batch", "--seconds", "--rounds", "--warmup", "--watch"):
            large = LARGE if option in ("--batch", "--seconds", "--watch") else []
            yield from ([*base, option, value] for value in [*NUMBERS, *large])
        for option in ("--only", "--baseline", "--suite", "--device"):
            few = NAMES if base is CONV or option in ("--suite", "--device") else NAMES[:3]
            yield from ([*base, option, value] for value in few)
        for option in ("--with", "--against"):
            more = ["--fail-on-regression", "1"] if option == "--against" else []
            yield from ([*base, *more, option, value] for value in READ)
        for option in ("--json", "--plot"):
            yield from ([*base, option, value] for value in WRITTEN)
        yield from ([*base, *pair] for pair in PAIRS)
        yield [*base, "--device", "cuda:" + "1" * 5000]
    yield from (["conv", shape, *CONV[2:]] for shape in SHAPES)
    yield from (["conv", "4,8,8,4,3", "--engines", "--batch", value] for value in ("0", *NUMBERS))
    yield from (["conv", "--shares", "--suite", name] for name in NAMES)
    yield from ([*CONV, "--explain", "--as", name] for name in NAMES)
    yield from (["compare", name, *COMPARE[2:]] for name in NAMES)


RUNNER = """
import json, os, resource, sys, threading
import h5py, numpy
from lenetgpu.cli import main
import lenetgpu.lab.compare, lenetgpu.lab.conv.compared, lenetgpu.lab.conv.engines

def begin(words, said):
    for stream in (1, 2):
        os.dup2(said, stream)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    code = 99
    try:
        main(words, "lenetgpu")
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

for words in json.load(sys.stdin):
    said = os.memfd_create("said")
    child = os.fork()
    if not child:
        begin(words, said)
    late = threading.Timer(60, os.kill, (child, 9))
    late.start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    late.cancel()
    text = os.pread(said, 1 << 20, 0).decode(errors="replace")
    os.close(said)
    print(json.dumps([words, code, text, sorted(os.listdir())]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_absurd_arguments_are_refused_in_one_sentence(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    asked = list(walk())
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], input=json.dumps(asked), capture_output=True, text=True,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [words for words, *_ in results] == asked, done.stderr
    for words, code, text, left in results:
        assert (code, text.count("\n")) == (2, 1), (words, code, text)
        assert text.startswith("lenetgpu: error: ") and len(text) < 700, (words, text)
        assert left == ["folder", "loop", "pipe"], (words, left)


def test_too_many_operations_to_check_are_refused():
    heavy = Conv(4000, 4000, 64, 64, 200, 200, 7), 1, "it"
    with pytest.raises(LenetError, match=r"at most 2e\+12 operations to check on a CPU, found "):
        request.check_size(*heavy, "cpu")
    request.check_size(*heavy, "cuda")
    for name, suite in request.SUITES.items():
        for shape in suite.shapes:
            assert request.check_size(shape.problem, shape.batch, "it", "cpu") is None, name
    with pytest.raises(LenetError, match="filters of at most 65,536 elements, found 257x256"):
        request.check_size(Conv(300, 300, 1, 1, 257, 256), 1, "it", "cuda")


def test_case_larger_than_free_memory_raises_memory_error(monkeypatch):
    problem = Conv(64, 64, 8, 8, 3, 3)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 20)
    held = 12 * (6 * 64 * 64 * 8 + 6 * 8 * 62 * 62 + 72 * 8) + 8 * (64 * 64 * 8 + 2 * 8 * 62 * 62)
    with pytest.raises(MemoryError, match=f"1,048,576 bytes free of the {held:,}"):
        Case(problem, 4, gpu=False)
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    assert len(Case(problem, 4, gpu=False).expected) > 4
