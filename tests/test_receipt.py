"""The receipt of the last GPU run holds for these sources; changes are noticed in a small tree."""

import subprocess
import sys
from types import SimpleNamespace

import parts
import pytest
import receipt

from lenetgpu.gpu import nvrtc

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


def test_receipt_is_current():
    """Fails if a source of GPU results changed without a GPU run or a recorded reason."""
    done = subprocess.run([sys.executable, receipt.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def planted(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "INCLUDE_ROOT", tmp_path / "lenetgpu")
    monkeypatch.chdir(tmp_path)
    return planted(tmp_path, TREE)


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


def test_unchanged_sources_keep_the_receipt_valid(ran, tree):
    assert set(ran["kernels"]) == {KERNEL, "lenetgpu/stages/pool.cu"}
    assert set(ran["python"]) == {LAUNCHER, "lenetgpu/plan.py"} and ran["unrun"] == {}
    assert state(ran, tree) == ((), ())
    said = "GPU receipt holds: 7 tests on GPU, driver 1.2, 2026-01-01"
    assert receipt.sentences(ran, tree) == (True, [said])
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
def test_changes_invalidate_the_receipt(ran, tree, name, before, after, changed):
    replace(tree, name, before, after)
    assert state(ran, tree) == (changed, ())
    if changed:
        assert receipt.sentences(ran, tree)[1][1] == f"  {changed[0]}"


def test_unrun_entry_needs_current_hash_and_reason(ran, tree):
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


def test_unrun_files_are_listed_by_name_folder_or_header(ran, tree):
    replace(tree, HEADER, "1", "2")
    replace(tree, LAUNCHER, "32", "64")
    (tree / "lenetgpu/stages/pool.cu").unlink()
    (tree / "lenetgpu/gpu/new.py").write_text("")
    nvrtc.source_hash.cache_clear()
    assert receipt.list_unrun(ran, "a header", [HEADER], tree) == [KERNEL]
    rest = ("lenetgpu/gpu/new.py", LAUNCHER, "lenetgpu/stages/pool.cu")
    assert state(ran, tree) == (rest, (KERNEL,))
    receipt.list_unrun(ran, "the rest", ["lenetgpu"], tree)
    assert state(ran, tree)[0] == () and ran["unrun"][KERNEL]["reason"] == "a header"
    assert receipt.list_unrun(ran, "a bug in it", [KERNEL], tree) == [KERNEL]
    assert ran["unrun"]["lenetgpu/stages/pool.cu"] == {"hash": None, "reason": "the rest"}
    replace(tree, LAUNCHER, "64", "32")
    receipt.list_unrun(ran, "again", [KERNEL], tree)
    assert LAUNCHER not in ran["unrun"]  # no longer needed
    for name in (LAUNCHER, SHOWS, "none.py"):
        with pytest.raises(ValueError, match=f"{name}: expected a covered file that changed"):
            receipt.list_unrun(ran, "why", [name], tree)


def test_hash_is_the_same_on_every_python(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        '"""Said."""\nx: int = 3\n"""Of x."""\n\n\nasync def f(a, /, *b, c=1.5, **d):\n'
        '    """Said."""\n    return f"{a!r:>{c}}" f"{c:,.{b}f} {{}}", u"t", [*b, "s"], b"s", 1j\n'
    )
    expected = "27c967b25e1152155f0063f4c5a29b12a1233217d59c709e657406c90c56bc88"
    assert receipt.python_hash(path) == expected


def test_receipt_command(ran, tree, capsys):
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


ONE, TWO, THREE = (f"tests/test_a.py::test_{name}" for name in ("one", "two", "three[x-1]"))


@pytest.fixture
def passing(tree, monkeypatch):
    """Return a tree with a file of passed tests."""
    monkeypatch.setattr(parts.receipt, "ROOT", tree)
    return planted(tree, {"tests/test_a.py": "def test_one(): pass\n"})


def report(test, when="call", outcome="passed"):
    return SimpleNamespace(
        nodeid=test, when=when, passed=outcome == "passed", failed=outcome == "failed"
    )


def keeper(passing, key="k", before=(), run="first"):
    return parts.Keeper(key, dict(before), run, passing / "passed.jsonl")


def kept(passing, key="k"):
    return parts.kept(key, passing / "passed.jsonl", passing)


def test_passed_tests_are_recorded_and_counted(passing):
    first = keeper(passing)
    for test in (ONE, TWO, THREE):
        first.pytest_runtest_logreport(report(test, "setup"))
    first.pytest_runtest_logreport(report(ONE))
    first.pytest_runtest_logreport(report(TWO, outcome="failed"))
    first.pytest_runtest_logreport(report(THREE, outcome="skipped"))
    assert kept(passing) == {ONE: "first"} and (first.passed, first.runs) == (1, 1)
    second = keeper(passing, before=kept(passing), run="second")
    second.pytest_runtest_logreport(report(TWO))
    assert kept(passing) == {ONE: "first", TWO: "second"}
    assert (second.passed, second.runs) == (2, 2)


def test_changed_tests_and_sources_run_again(passing):
    key = parts.key(FACTS, passing)
    keeper(passing, key).pytest_runtest_logreport(report(ONE))
    assert kept(passing, parts.key(FACTS, passing)) == {ONE: "first"}
    assert kept(passing, parts.key(FACTS | {"driver": "1.3"}, passing)) == {}
    (passing / SHOWS).write_text("WIDTH = 90\n")
    assert parts.key(FACTS, passing) == key
    for name in (LAUNCHER, KERNEL):
        path = passing / name
        text = path.read_text()
        path.write_text(text + "A = 3\n")
        nvrtc.source_hash.cache_clear()
        assert parts.key(FACTS, passing) != key
        path.write_text(text)
        nvrtc.source_hash.cache_clear()
    assert kept(passing, parts.key(FACTS, passing)) == {ONE: "first"}
    (passing / "tests/test_a.py").write_text("def test_one(): assert True\n")
    assert kept(passing, key) == {}
    (passing / "tests/test_a.py").unlink()
    assert kept(passing, key) == {}
