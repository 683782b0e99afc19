"""Damaged files of every format are read right or refused; `scripts/fuzz.py` sees what is not.

A short form of it: `python scripts/fuzz.py --seconds 3600` goes on, with other numbers each time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

CASES = 40


@pytest.fixture
def fuzz(script):
    return script("fuzz")


def test_every_planted_harm_is_found(fuzz):
    """A signal, an endless loop, a KeyError, 400 MB, a print, data that no two reads share."""
    fuzz.prove(jobs=2)


def test_a_harm_that_is_missed_stops_the_run(fuzz, monkeypatch):
    monkeypatch.setattr(fuzz, "_planted", lambda path: "fine")
    with pytest.raises(Exception, match=r"the planted signal: expected it to be found, found \{\}"):
        fuzz.prove()


def test_no_format_does_harm(fuzz):
    options = fuzz.Options(seed=13, cases=CASES, jobs=2, batch=CASES)
    tallies = fuzz.fuzz(list(fuzz.FORMATS.values()), options)
    assert all(tally.cases >= CASES for tally in tallies.values())
    assert {name: tally.said for name, tally in tallies.items() if tally.harms} == {}
    ends = sum((tally.ends for tally in tallies.values()), start=fuzz.Counter())
    assert ends["read"] > CASES and ends["refused"] > 3 * CASES


def test_a_file_with_checksums_gives_its_own_data_or_none(fuzz):
    """IDX has no checksum: said to have some, it is caught."""
    form = fuzz.replace(fuzz.FORMATS["idx"], summed=True)
    found = fuzz.fuzz([form], fuzz.Options(seed=1, cases=200, jobs=2))["idx"]
    assert found.harms["wrong data"] > 0


def test_what_goes_further_is_damaged_further(fuzz):
    found = fuzz.fuzz([fuzz.FORMATS["npy"]], fuzz.Options(seed=2, cases=60, jobs=1))["npy"]
    assert found.kept > 5


def test_findings_are_kept_by_their_digest_and_run_again(fuzz, tmp_path):
    form = fuzz.replace(fuzz.FORMATS["idx"], summed=True)
    fuzz.fuzz([form], fuzz.Options(seed=1, cases=100, findings=tmp_path / "findings"))
    kept = sorted((tmp_path / "findings").iterdir())
    assert 0 < len(kept) <= 4
    assert all(path.name == f"idx--wrong-data--{fuzz.digest(path.read_bytes())}" for path in kept)
    command = [sys.executable, ROOT / "scripts" / "fuzz.py", "--replay", tmp_path / "findings"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr  # read as it is: an IDX file has no sums
    assert done.stdout.count(": read, ") == len(kept)


def test_metadata_with_right_checksums_reach_the_reader(script):
    """Checksums of HDF5's later form are known and made right, or no damage would come further."""
    import io

    import h5py

    mutations, formats = script("fuzz_mutations"), script("fuzz_formats")
    entry = formats.image_files()[6]
    assert len(entry.sums) >= 5
    made = bytearray(entry.data)
    place = entry.data.index(b"title")
    made[place : place + 5] = b"other"
    with pytest.raises((OSError, KeyError, RuntimeError)), h5py.File(io.BytesIO(made)) as file:
        dict(file.attrs)
    mutations.sums_made_right(made, entry)
    with h5py.File(io.BytesIO(made)) as file:
        assert set(file.attrs) == {"other"}


def test_a_signal_is_called_by_its_name(fuzz):
    def die(path):
        os.kill(os.getpid(), signal.SIGBUS)

    form = fuzz.replace(fuzz.FORMATS["idx"], read=die)
    assert fuzz.alone(form, b"", set(), 5.0) == ("signal", "SIGBUS")
