"""The mutants of scripts/mutants.py: each still applies, and the page says what became of it.

Nothing is broken and run here: that is the script's work.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
from conftest import ROOT

from lenetgpu.errors import LenetError

LEAST = 0.95  # of those that were run


@pytest.fixture(scope="module")
def runner():
    """scripts/mutants.py as a module, which its dataclasses look for by name."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    sys.modules["mutants"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


@pytest.fixture(scope="module")
def mutants(runner):
    return runner.load()


@pytest.fixture(scope="module")
def results(runner):
    return json.loads(runner.RESULTS.read_text())["results"]


def test_every_mutant_applies_once_and_changes_what_is_parsed(mutants):
    for mutant in mutants:
        text = (ROOT / mutant.file).read_text()
        changed = mutant.applied(text)
        assert changed != text, mutant.name
        if mutant.file.endswith(".py"):
            compile(changed, mutant.file, "exec")


def test_there_are_enough_and_of_both_kinds(mutants):
    kinds = [mutant.where for mutant in mutants]
    assert len(mutants) >= 90
    assert kinds.count("cpu") >= 55 and kinds.count("gpu") >= 34
    assert {mutant.file.rpartition(".")[2] for mutant in mutants} >= {"py", "cu", "cuh"}
    changes = {(mutant.file, mutant.old, mutant.new, mutant.nth) for mutant in mutants}
    assert len(changes) == len(mutants)


def test_the_tests_that_are_to_notice_are_there(mutants):
    for mutant in mutants:
        for node in mutant.tests:
            if node.startswith("tests/"):
                path, _, name = node.partition("::")
                text = (ROOT / path).read_text()
                assert not name or f"def {name.partition('[')[0]}(" in text, mutant.name


def test_every_mutant_has_a_result_of_this_very_change(mutants, results):
    assert [(m.name, m.mark, m.where) for m in mutants] == [
        (entry["name"], entry["of"], entry["where"]) for entry in results
    ], "run scripts/mutants.py --write, or with --only NAME"
    outcomes = {"killed", "timeout", "survived", "unrun"}
    for entry in results:
        assert entry["outcome"] in outcomes, entry
        assert entry["where"] == "gpu" or entry["outcome"] != "unrun", entry
        assert entry["outcome"] == "unrun" or (entry["device"] and entry["date"]), entry
        assert (entry["outcome"] == "killed") <= bool(entry["by"]), entry


@pytest.mark.parametrize("where", ["cpu", "gpu"], ids=["on a CPU", "on a GPU"])
def test_nearly_all_that_were_run_are_killed(runner, results, where):
    killed, ran = runner.share(results, where)
    if where == "gpu" and not ran:
        pytest.skip("scripts/mutants.py --where gpu --write has not been run")
    assert ran and killed >= LEAST * ran


def test_the_page_is_current(runner, mutants, results):
    assert runner.PAGE.read_text() == runner.page(mutants, results), (
        "run scripts/mutants.py --write"
    )


def mutant(runner, **fields):
    usual = {"name": "m", "file": "f", "what": "w", "old": "a", "new": "b", "where": "cpu"}
    return runner.Mutant(**(usual | {"tests": ("tests/test_x.py",)} | fields))


def test_a_mutant_applies_at_one_place_or_not_at_all(runner):
    assert mutant(runner).applied("xax") == "xbx"
    assert mutant(runner, nth=2).applied("a-a-a") == "a-b-a"
    for text, nth in (("x", 0), ("aa", 0), ("aa", 3)):
        with pytest.raises(LenetError, match="mutant m: expected 'a'"):
            mutant(runner, nth=nth).applied(text)


def test_only_a_failing_test_kills(runner):
    said = {
        (1, 3, "tests/test_x.py::test"): "killed",
        (2, 1, "tests/test_x.py (its import)"): "killed",
        (-11, 0, ""): "killed",
        (None, 2, ""): "timeout",
        (0, 3, ""): "survived",
        (0, 0, ""): "error",  # every test skipped
        (4, 0, ""): "error",  # no such test
        (5, 0, ""): "error",  # none chosen
    }
    for (code, ran, failed), expected in said.items():
        assert runner.outcome(runner.Ran(code, ran, failed, ""))[0] == expected


def test_pytest_is_run_in_the_copy_and_its_first_failure_is_named(runner, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "lenetgpu.py").write_text("VALUE = 3\n")
    test = tmp_path / "tests" / "test_x.py"
    test.write_text(
        "import lenetgpu, pytest, time\n"
        "def test_right(): assert lenetgpu.VALUE == 3\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_wrong(n): assert n < 2\n"
        "@pytest.mark.skip\ndef test_left_out(): pass\n"
        "def test_long(): time.sleep(60)\n"
    )
    ran = runner.run_tests(tmp_path, ["tests/test_x.py"], 60)
    assert (ran.code, ran.ran, ran.failed) == (1, 3, "tests/test_x.py::test_wrong[2]")
    ran = runner.run_tests(tmp_path, ["tests/test_x.py::test_right"], 60)
    assert runner.outcome(ran) == ("survived", "")
    ran = runner.run_tests(tmp_path, ["tests/test_x.py::test_left_out"], 60)
    assert runner.outcome(ran)[0] == "error"
    ran = runner.run_tests(tmp_path, ["tests/test_x.py::test_long"], 3)
    assert runner.outcome(ran)[0] == "timeout"
    test.write_text("import nothing_of_this_name\n")
    ran = runner.run_tests(tmp_path, ["tests/test_x.py"], 60)
    assert runner.outcome(ran) == ("killed", "tests/test_x.py (its import)")


def test_results_of_another_change_are_not_this_ones(runner):
    now = [mutant(runner), mutant(runner, name="other", new="c", where="gpu")]
    old = [{"name": "m", "of": "another change", "outcome": "killed", "by": "x"}]
    merged = runner.merged(now, old, [])
    assert [entry["outcome"] for entry in merged] == ["unrun", "unrun"]
    new = [{"name": "m", "of": now[0].mark, "outcome": "survived", "by": ""}]
    merged = runner.merged(now, old, new)
    assert [entry["outcome"] for entry in merged] == ["survived", "unrun"]
    assert runner.share(merged, "cpu") == (0, 1) and runner.share(merged, "gpu") == (0, 0)
    facts = {"device": "d", "date": "2026-11-22", "commit": "c"}
    text = runner.page(now, [entry | facts for entry in merged])
    assert "Surviving: m." in text and "not run yet" in text and "**survived**" in text


def test_a_name_stands_for_one_mutant(runner, tmp_path):
    entry = {"name": "m", "file": "f", "what": "w", "old": "a", "new": "b", "where": "cpu"}
    path = tmp_path / "mutants.json"
    for entries, words in (
        ([entry | {"tests": ["x"]}] * 2, "found twice: m"),
        ([entry | {"tests": []}], "mutant m: expected tests"),
        ([entry | {"tests": ["x"], "where": "tpu"}], "on cpu or gpu"),
        ([entry | {"tests": ["x"], "why": "y"}], "the fields of Mutant"),
    ):
        path.write_text(json.dumps(entries))
        with pytest.raises(LenetError, match=words):
            runner.load(path)
