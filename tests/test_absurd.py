"""`compare` and `conv` with absurd numbers, shapes, names and files: refused in one sentence.

Commands have 8 GB of address space and one minute.
"""

import os
import resource
import signal
from pathlib import Path

import pytest
from terminal import refused, run

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


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """A folder with few files, 8 GB more of address space, and a minute for each command."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old, handler = resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("no end after a minute"))
    most = pages * resource.getpagesize() + (8 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (most, old[1]))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_AS, old)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


@pytest.mark.slow
def test_absurd_arguments_are_refused_in_one_sentence(limited):
    for words in walk():
        signal.alarm(60)
        result = run(*words)
        refused(result)
        assert result.stdout == "" and len(result.stderr) < 700, (words, result.stderr)
        assert sorted(os.listdir(limited)) == ["folder", "loop", "pipe"], words


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
