"""The mutants of scripts/mutants.py still apply, and name existing tests."""

import subprocess
import sys

import pytest
from conftest import ROOT


def test_every_mutant_applies_and_names_tests_that_exist(script):
    mutants = script("mutants")
    found = mutants.load()
    assert len({mutant["name"] for mutant in found}) == len(found) >= 24
    for mutant in found:
        text = (ROOT / mutant["file"]).read_text()
        assert mutants.applied(mutant, text) != text
        files = [name.split("::")[0] for name in mutant["tests"] if name.startswith("tests/")]
        assert files and all((ROOT / name).is_file() for name in files), mutant["name"]


def test_a_change_that_occurs_twice_is_refused(script):
    mutant = {"name": "twice", "file": "a.cu", "old": "x", "new": "y"}
    with pytest.raises(ValueError, match="must occur once"):
        script("mutants").applied(mutant, "x x")


@pytest.mark.slow
def test_the_tests_that_mutants_name_are_collected(script):
    names = [name for mutant in script("mutants").load() for name in mutant["tests"]]
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*words, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
