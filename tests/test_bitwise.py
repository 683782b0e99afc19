"""`conv --bitwise`: runs agree to the bit, or the row says that they need not."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.lab.conv import compared
from lenetgpu.lab.conv.repeats import RUNS, differing, repeat_all
from lenetgpu.measure.comparison import Candidate, Comparison
from lenetgpu.measure.rounds import never
from lenetgpu.stages import find, variants

OWN = """
import numpy as np
from lenetgpu.stages.conv.reference import reference
from lenetgpu.stages.registry import cpu, variant

DONE = [0]


@variant(kind="conv", family="own", reads="NHWC", writes="NHWC", needs=cpu(), repeats={repeats})
def in_any_order(x, w, y, problem):
    y[...] = reference(x, w, problem)
    DONE[0] += 1
    if DONE[0] % {every} == 0:  # one value's last bit
        y.reshape(-1).view("uint32")[5] ^= 1
"""
SHAPE = ("2,9,8,3,3", "--batch", "2", "--device", "cpu", "--rounds", "5", "--watch", "0")


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Runs `conv` with a variant of one's own; (exit code, its row, the row of another, stderr)."""
    monkeypatch.setattr(compared, "peer_version", lambda device: None)

    def ran(*words, repeats=True, every=2):
        (tmp_path / "own.py").write_text(OWN.format(repeats=repeats, every=every))
        words = [*SHAPE, "--with", tmp_path / "own.py", "--only", "tiled", "--no-progress", *words]
        done = CliRunner().invoke(main, ["conv", *map(str, words), "--json", "-"])
        found = {row["name"]: row for row in json.loads(done.stdout)["cases"][0]["candidates"]}
        return done.exit_code, found["own.in_any_order"], found["tiled.blocked"], done.stderr

    return ran


def test_runs_that_differ_in_a_bit_are_wrong(rows):
    code, own, other, said = rows("--bitwise")
    assert (code, own["status"], own["bits"]) == (1, "wrong", "others")
    assert own["note"] == "1 of 252 values differ between runs on the same images"
    assert own["note"] in said
    assert (other["status"], other["bits"]) == ("right", "same")
    assert "--bitwise" in shlex.split(own["command"])


def test_a_variant_can_say_that_its_runs_need_not_agree(rows):
    code, own, _, _ = rows("--bitwise", repeats=False)
    assert (code, own["status"], own["bits"]) == (0, "right", "others")
    assert own["note"].endswith("runs need not agree to the bit: 1 values differ")
    code, own, _, _ = rows("--bitwise", repeats=False, every=10**9)
    assert (code, own["bits"]) == (0, "same")
    assert own["note"].endswith("runs need not agree to the bit: these do")


def test_bits_are_compared_where_they_are_asked_for(rows):
    code, own, other, _ = rows()
    assert (code, own["status"]) == (0, "right")
    assert "bits" not in own and "bits" not in other
    assert "--bitwise" not in shlex.split(own["command"])


class Given:
    """A bench that leaves one of `outputs` after the other."""

    repeats = True

    def __init__(self, outputs):
        self.outputs = iter(outputs)

    def one_output(self):
        return np.array(next(self.outputs), np.float32)


@pytest.mark.parametrize("odd", range(RUNS))
def test_a_difference_in_any_run_counts(odd):
    outputs = [[1.0, 2.0, 3.0 + (run == odd)] for run in range(RUNS)]
    wrong = Candidate("odd", never, status="right", bench=Given(outputs))
    failed = Candidate("gone", never, status="wrong", bench=Given([]))
    again = Candidate("same", never, status="right", bench=Given([[1.0]] * RUNS))
    short = Candidate("breaks", never, status="right", bench=Given([[1.0]]))
    repeat_all(Comparison("", "same", [wrong, failed, again, short]), lambda *words: None)
    assert (wrong.status, wrong.bits) == ("wrong", "others") and "1 of 3 values" in wrong.note
    assert (again.status, again.bits) == ("right", "same")
    assert (failed.status, failed.bits) == ("wrong", None)
    assert short.status == "failed"


def test_bits_and_not_values_are_counted():
    zeros = np.zeros((2, 3), np.float32)
    assert differing(zeros, zeros) == 0
    assert differing(zeros, -zeros) == 6
    odd = np.full(4, np.nan, np.float32)
    assert differing(odd, odd.copy()) == 0


def test_what_adds_in_any_order_says_so():
    """The one kernel whose blocks add floats in global memory, as it happens."""
    said = {v.full_name for v in variants(device="cuda") if not v.repeats}
    assert said == {"prefetch.strict_channels"}
    assert find("conv", "prefetch.strict", "cuda").repeats
