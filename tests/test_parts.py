"""GPU runs in parts: what passed is left out where it would run the same, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace

import parts
import pytest

from lenetgpu.gpu import nvrtc

ONE, TWO, THREE = (f"tests/test_a.py::test_{name}" for name in ("one", "two", "three[x-1]"))
FACTS = {"device": "GPU", "driver": "1.2"}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name, text in {
        "tests/test_a.py": "def test_one(): pass\n",
        "lenetgpu/gpu/launch.py": "import cupy\nB = 32\n",
        "lenetgpu/gpu/kernel.cu": "void f() {}\n",
        "lenetgpu/cli/words.py": "A = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(parts.receipt, "ROOT", tmp_path)
    return tmp_path


def report(test, when="call", outcome="passed"):
    return SimpleNamespace(
        nodeid=test, when=when, passed=outcome == "passed", failed=outcome == "failed"
    )


def keeper(tree, key="k", before=(), run="first"):
    return parts.Keeper(key, dict(before), run, tree / "passed.jsonl")


def kept(tree, key="k"):
    return parts.kept(key, tree / "passed.jsonl", tree)


def test_what_passed_is_kept_and_counted(tree):
    first = keeper(tree)
    for test in (ONE, TWO, THREE):
        first.pytest_runtest_logreport(report(test, "setup"))
    first.pytest_runtest_logreport(report(ONE))
    first.pytest_runtest_logreport(report(TWO, outcome="failed"))
    first.pytest_runtest_logreport(report(THREE, outcome="skipped"))
    assert kept(tree) == {ONE: "first"} and (first.passed, first.runs) == (1, 1)
    second = keeper(tree, before=kept(tree), run="second")
    second.pytest_runtest_logreport(report(TWO))
    assert kept(tree) == {ONE: "first", TWO: "second"}
    assert (second.passed, second.runs) == (2, 2)


def test_others_sources_and_changed_tests_are_run_again(tree):
    key = parts.key(FACTS, tree)
    keeper(tree, key).pytest_runtest_logreport(report(ONE))
    assert kept(tree, parts.key(FACTS, tree)) == {ONE: "first"}
    assert kept(tree, parts.key(FACTS | {"driver": "1.3"}, tree)) == {}
    (tree / "lenetgpu/cli/words.py").write_text("A = 2\n")
    assert parts.key(FACTS, tree) == key
    for name in ("launch.py", "kernel.cu"):
        path = tree / "lenetgpu/gpu" / name
        text = path.read_text()
        path.write_text(text + "A = 3\n")
        nvrtc.source_hash.cache_clear()
        assert parts.key(FACTS, tree) != key
        path.write_text(text)
        nvrtc.source_hash.cache_clear()
    assert kept(tree, parts.key(FACTS, tree)) == {ONE: "first"}
    (tree / "tests/test_a.py").write_text("def test_one(): assert True\n")
    assert kept(tree, key) == {}
    (tree / "tests/test_a.py").unlink()
    assert kept(tree, key) == {}
