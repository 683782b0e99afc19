"""The receipt of the last GPU run holds for these sources; changes are noticed in a small tree."""

from types import SimpleNamespace

import parts
import pytest
import receipt
from terminal import python

from lenetgpu.gpu import nvrtc

FACTS = {"device": "GPU", "driver": "1.2", "date": "2026-01-01", "tests_passed": 7}
KERNEL, HEADER, LAUNCHER, SHOWS = (
    "lenetgpu/stages/conv.cu",
    "lenetgpu/gpu/math.cuh",
    "lenetgpu/stages/conv.py",
    "lenetgpu/lab/tables.py",
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
    done = python(receipt.__file__)
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


ONE, TWO = "tests/test_a.py::test_one", "tests/test_a.py::test_two[x-1]"


def report(test, when="call", outcome="passed"):
    return SimpleNamespace(
        nodeid=test, when=when, passed=outcome == "passed", failed=outcome == "failed"
    )


def test_only_passed_and_unchanged_tests_are_left_out(tree, monkeypatch):
    def kept(facts=FACTS):
        nvrtc.source_hash.cache_clear()
        return parts.kept(parts.key(facts, tree), tree / "passed.jsonl", tree)

    monkeypatch.setattr(parts.receipt, "ROOT", tree)
    planted(tree, {"tests/test_a.py": "def test_one(): pass\n"})
    for run, done in (("first", [ONE, TWO]), ("second", [TWO])):
        keeper = parts.Keeper(parts.key(FACTS, tree), kept(), run, tree / "passed.jsonl")
        for test in done:
            keeper.pytest_runtest_logreport(report(test, "setup"))
            skipped = (run, test) == ("first", TWO)
            keeper.pytest_runtest_logreport(
                report(test, outcome="skipped" if skipped else "passed")
            )
        assert kept() == {ONE: "first"} | ({} if run == "first" else {TWO: "second"})
    assert (keeper.passed, keeper.runs) == (2, 2)
    keeper.pytest_runtest_logreport(report(TWO, outcome="failed"))
    assert kept() == {ONE: "first"} and kept(FACTS | {"driver": "1.3"}) == {}
    for name, expected in ((SHOWS, {ONE: "first"}), (KERNEL, {}), (LAUNCHER, {})):
        text = (tree / name).read_text()
        (tree / name).write_text(text + "A = 3\n")
        assert kept() == expected, name
        (tree / name).write_text(text)
    (tree / "tests/test_a.py").write_text("def test_one(): assert True\n")
    assert kept() == {}
