"""Damaged files of every format are read correctly or refused; `scripts/fuzz.py` finds the others.

This is a short version: `python scripts/fuzz.py --seconds 3600` runs longer, with a new seed each
time.
"""

import pytest
from click.testing import CliRunner

CASES = 40


@pytest.fixture
def fuzz(script):
    return script("fuzz")


@pytest.mark.slow
def test_fuzzer_finds_every_planted_fault(fuzz, monkeypatch):
    """A signal, an endless loop, a KeyError, 400 MB, a print, and data that varies by read."""
    fuzz.prove(jobs=2)
    monkeypatch.setattr(fuzz, "_planted", lambda path: "fine")
    with pytest.raises(Exception, match=r"the planted signal: expected it to be found, found \{\}"):
        fuzz.prove()


@pytest.mark.slow
def test_formats_survive_fuzzing(fuzz):
    options = fuzz.Options(seed=13, cases=CASES, jobs=2, batch=CASES)
    found = fuzz.fuzz(list(fuzz.FORMATS.values()), options)
    assert all(one.cases >= CASES for one in found.values())
    assert {name: one.said for name, one in found.items() if one.harms} == {}
    ends = sum((one.ends for one in found.values()), start=fuzz.Counter())
    assert ends["read"] > CASES and ends["refused"] > 3 * CASES
    assert found["npy"].kept > 5


def test_fuzzer_findings_are_kept_by_digest_and_rerun(fuzz, tmp_path):
    """IDX has no checksum; if the format claims one, data other than the original is a finding."""
    form = fuzz.FORMATS["idx"]
    summed = type(form)(form.name, form.file, form.seeds, form.mutate, form.read, form.beside, True)
    options = fuzz.Options(seed=1, cases=100, jobs=2, findings=tmp_path / "findings")
    assert fuzz.fuzz([summed], options)["idx"].harms["wrong data"] > 0
    kept = sorted((tmp_path / "findings").iterdir())
    assert 0 < len(kept) <= 4
    assert all(path.name == f"idx--wrong-data--{fuzz.digest(path.read_bytes())}" for path in kept)
    done = CliRunner().invoke(fuzz.main, ["--replay", str(tmp_path / "findings")])
    assert done.exit_code == 0, done.output  # read normally: an IDX file has no checksums
    assert done.output.count(": read, ") == len(kept)
