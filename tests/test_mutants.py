"""The mutants of scripts/mutants.py still apply, and name existing tests."""

import pytest
from conftest import ROOT
from terminal import python


def test_mutants_apply_and_name_existing_tests(script):
    mutants = script("mutants")
    found = mutants.load()
    assert len({mutant["name"] for mutant in found}) == len(found) >= 24
    for mutant in found:
        text = (ROOT / mutant["file"]).read_text()
        assert mutants.applied(mutant, text) != text
        files = [name.split("::")[0] for name in mutant["tests"] if name.startswith("tests/")]
        assert files and all((ROOT / name).is_file() for name in files), mutant["name"]


@pytest.mark.slow
def test_tests_named_by_mutants_are_collected(script):
    names = [name for mutant in script("mutants").load() for name in mutant["tests"]]
    done = python("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *names)
    assert done.returncode == 0, done.stderr
