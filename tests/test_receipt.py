"""The receipt of the last GPU run holds for these sources; and what it notices, on a small tree."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import conftest
import pytest
import receipt

from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.device import Gpu

FACTS = {"device": "GPU", "driver": "1.2", "date": "2026-01-01", "tests_passed": 7}
KERNEL, HEADER, LAUNCHER, SHOWS = (
    "lenetgpu/stages/conv.cu",
    "lenetgpu/gpu/math.cuh",
    "lenetgpu/stages/conv.py",
    "lenetgpu/lab/render.py",
)
TREE = {
    KERNEL: '#include "gpu/math.cuh"\nvoid conv() {}\n',
    HEADER: "int one() { return 1; }\n",
    "lenetgpu/stages/pool.cu": "void pool() {}\n",
    LAUNCHER: '"""Launch it."""\nimport cupy\nB = 32  # a warp\n',
    SHOWS: "WIDTH = 80\n",
    "lenetgpu/plan.py": "best = ['a']\n",
}


def test_the_receipt_holds():
    """Fails where a file that a GPU result depends on changed without a GPU run or a reason."""
    done = subprocess.run([sys.executable, receipt.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(nvrtc, "INCLUDE_ROOT", tmp_path / "lenetgpu")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ran(tree):
    return receipt.fresh(FACTS, tree)


def state(ran, tree):
    nvrtc.source_hash.cache_clear()
    found = receipt.compared(ran, tree)
    assert receipt.sentences(ran, tree)[0] == (not found.changed)
    return found.changed, found.unrun


def replace(tree, name, before, after):
    text = (tree / name).read_text()
    assert before in text
    (tree / name).write_text(text.replace(before, after))


def test_nothing_changed(ran, tree):
    assert set(ran["kernels"]) == {KERNEL, "lenetgpu/stages/pool.cu"}
    assert set(ran["python"]) == {LAUNCHER, "lenetgpu/plan.py"} and ran["unrun"] == {}
    assert state(ran, tree) == ((), ())
    said = "GPU receipt holds: 7 tests on GPU, driver 1.2, 2026-01-01"
    assert receipt.sentences(ran, tree) == (True, [said])
    beside = {"known_failures": {"tests/test_one.py::test_it": "a reason"}}
    assert "7 tests, 1 known to fail on GPU" in receipt.sentences(ran | beside, tree)[1][0]
    assert receipt.sentences(None)[0] is False


@pytest.mark.parametrize(
    ("name", "before", "after", "changed"),
    [
        (KERNEL, "conv() {}", "conv() { }", (KERNEL,)),
        (HEADER, "return 1", "return 2", (KERNEL,)),
        (LAUNCHER, "32", "64", (LAUNCHER,)),
        ("lenetgpu/plan.py", "'a'", "'b'", ("lenetgpu/plan.py",)),
        (LAUNCHER, "Launch it.", "Launch it at once.", ()),
        (LAUNCHER, "# a warp", "# one warp\n\n", ()),
        (SHOWS, "80", "90", ()),
    ],
)
def test_a_change(ran, tree, name, before, after, changed):
    replace(tree, name, before, after)
    assert state(ran, tree) == (changed, ())
    if changed:
        assert receipt.sentences(ran, tree)[1][1] == f"  {changed[0]}"


def test_files_that_went_and_came(ran, tree):
    (tree / KERNEL).unlink()
    (tree / "lenetgpu/gpu/new.py").write_text("")
    assert state(ran, tree) == (("lenetgpu/gpu/new.py", KERNEL), ())


def test_an_entry_has_the_present_hash_and_a_reason(ran, tree):
    replace(tree, LAUNCHER, "32", "64")
    entry = {"hash": receipt.python_hash(tree / LAUNCHER), "reason": "no GPU today"}
    ran["unrun"] = {LAUNCHER: entry}
    assert state(ran, tree) == ((), (LAUNCHER,))
    said = receipt.sentences(ran, tree)[1]
    assert said[0].endswith("2026-01-01; 1 file changed since, listed as unrun")
    ran["unrun"] = {LAUNCHER: entry | {"reason": "  "}}
    assert state(ran, tree) == ((LAUNCHER,), ())
    ran["unrun"] = {LAUNCHER: entry}
    replace(tree, LAUNCHER, "64", "128")
    assert state(ran, tree) == ((LAUNCHER,), ())


def test_files_are_listed_by_name_folder_and_header(ran, tree):
    replace(tree, HEADER, "1", "2")
    replace(tree, LAUNCHER, "32", "64")
    (tree / "lenetgpu/stages/pool.cu").unlink()
    nvrtc.source_hash.cache_clear()
    assert receipt.list_unrun(ran, "a header", [HEADER], tree) == [KERNEL]
    assert state(ran, tree) == ((LAUNCHER, "lenetgpu/stages/pool.cu"), (KERNEL,))
    receipt.list_unrun(ran, "the rest", ["lenetgpu"], tree)
    assert state(ran, tree)[0] == () and ran["unrun"][KERNEL]["reason"] == "a header"
    assert receipt.list_unrun(ran, "a bug in it", [KERNEL], tree) == [KERNEL]
    assert ran["unrun"]["lenetgpu/stages/pool.cu"] == {"hash": None, "reason": "the rest"}
    replace(tree, LAUNCHER, "64", "32")
    receipt.list_unrun(ran, "again", [KERNEL], tree)
    assert LAUNCHER not in ran["unrun"]  # nothing needs it any more
    for name in (LAUNCHER, SHOWS, "none.py"):
        with pytest.raises(ValueError, match=f"{name}: expected a covered file that changed"):
            receipt.list_unrun(ran, "why", [name], tree)


def test_a_hash_is_the_same_on_every_python(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        '"""Said."""\nx: int = 3\n"""Of x."""\n\n\nasync def f(a, /, *b, c=1.5, **d):\n'
        '    """Said."""\n    return f"{a!r:>{c}}" f"{c:,.{b}f} {{}}", u"t", [*b, "s"], b"s", 1j\n'
    )
    assert (
        receipt.python_hash(path)
        == "27c967b25e1152155f0063f4c5a29b12a1233217d59c709e657406c90c56bc88"
    )


def test_the_command(ran, tree, capsys):
    file = tree / "receipt.json"
    assert receipt.main([], file, tree) == 1
    receipt.write(ran, file)
    assert receipt.read(file) == ran and receipt.main([], file, tree) == 0
    replace(tree, LAUNCHER, "32", "64")
    assert receipt.main([], file, tree) == 1
    with pytest.raises(SystemExit) as stopped:
        receipt.main(["--unrun", " ", LAUNCHER], file, tree)
    assert stopped.value.code == 2
    assert receipt.main(["--unrun", "no GPU today", LAUNCHER], file, tree) == 0
    assert receipt.read(file)["unrun"][LAUNCHER]["reason"] == "no GPU today"


def session(passed=5, exitstatus=0, source="TESTPATHS", processes=None, **chosen):
    reporter = SimpleNamespace(stats={"passed": [0] * passed, "skipped": [0, 0]})
    keeper = SimpleNamespace(passed=passed, runs=2)
    plugins = {"terminalreporter": reporter, "gpu-parts": keeper}
    plugins = SimpleNamespace(get_plugin=plugins.__getitem__)
    config = SimpleNamespace(
        option=SimpleNamespace(**{"markexpr": "gpu", "keyword": "", "deselect": None} | chosen),
        pluginmanager=plugins,
        args_source=pytest.Config.ArgsSource[source],
        getoption=lambda name, default: processes,
    )
    conftest.pytest_sessionfinish(SimpleNamespace(config=config), exitstatus)


@pytest.fixture
def written(monkeypatch):
    found = []
    gpu = Gpu(0, "NVIDIA Test", 90)
    versions = {"driver": None, "cuda_driver": "13.0", "nvrtc": "13.1", "cupy": "14.0"}
    monkeypatch.setattr(receipt, "write", found.append)
    monkeypatch.setattr(conftest, "driver_gpus", lambda: (gpu,))
    monkeypatch.setattr(conftest, "software", lambda asked: versions)
    return found


def test_a_whole_gpu_run_that_passed_writes_what_it_ran(written):
    session()
    (made,) = written
    assert (made["tests_passed"], made["tests_skipped"], made["runs"]) == (5, 2, 2)
    assert (made["device"], made["driver"], made["cupy"]) == ("NVIDIA Test", "unknown", "14.0")
    assert made["unrun"] == {} and made["known_failures"] == conftest.FAILING
    assert receipt.compared(made) == receipt.State((), ())


@pytest.mark.parametrize(
    "less",
    [{"passed": 0}, {"exitstatus": 1}, {"markexpr": "not gpu"}, {"keyword": "pool"},
     {"source": "ARGS"}, {"lf": True}, {"deselect": ["tests/test_plan.py"]}],
)  # fmt: skip
def test_less_than_a_whole_gpu_run_writes_nothing(written, less):
    session(**less)
    assert written == []


def test_gpu_tests_are_given_long_ones_first_and_those_alone_last():
    kinds = {"a": "", "b": "alone", "c": "long", "d": "", "e": "long", "f": "alone", "g": "long"}
    items = [SimpleNamespace(name=name, keywords={kind: 1}) for name, kind in kinds.items()]
    assert "".join(item.name for item in conftest.in_turns(items)) == "caedgbf"
    assert conftest.in_turns([]) == []


def test_what_is_known_to_fail_is_a_gpu_test():
    for test, reason in conftest.FAILING.items():
        path, _, name = test.partition("::")
        text = (receipt.ROOT / path).read_text()
        assert f"def {name.partition('[')[0]}(" in text and "mark.gpu" in text and reason.strip()
