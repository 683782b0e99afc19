"""Right candidates run again on the same images: whether runs agree to the bit, what they err."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from lenetgpu.check.judge import Errors
from lenetgpu.cli import main
from lenetgpu.lab.conv import compared
from lenetgpu.lab.conv.repeats import RUNS, differing, err_all, repeat_all
from lenetgpu.measure import conv_bench
from lenetgpu.measure.comparison import Candidate, Comparison
from lenetgpu.measure.conv_bench import Case, ConvBench
from lenetgpu.measure.rounds import never
from lenetgpu.problems import Conv
from lenetgpu.stages import find, variants

OWN = """
import numpy as np
from lenetgpu.stages.reference import conv_reference as reference
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


class Leaving:
    """A bench that leaves one of `outputs` after the other."""

    repeats = True

    def __init__(self, outputs):
        self.outputs = iter(outputs)

    def one_output(self):
        return np.array(next(self.outputs), np.float32)


@pytest.mark.parametrize("odd", range(RUNS))
def test_a_difference_in_any_run_counts(odd):
    outputs = [[1.0, 2.0, 3.0 + (run == odd)] for run in range(RUNS)]
    wrong = Candidate("odd", never, status="right", bench=Leaving(outputs))
    failed = Candidate("gone", never, status="wrong", bench=Leaving([]))
    again = Candidate("same", never, status="right", bench=Leaving([[1.0]] * RUNS))
    short = Candidate("breaks", never, status="right", bench=Leaving([[1.0]]))
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


PROBLEM = Conv(7, 6, 3, 5, 3, 3, 1, 1)


def test_errors_are_over_the_largest_output_and_the_root_mean_square():
    case = Case(PROBLEM, 4, gpu=False)
    truth = case.expected[:4]
    found = truth.copy()
    found[1, 2, 3, 4] += 0.5
    errors = case.errors(found)
    assert errors.images == 4
    assert errors.largest == pytest.approx(0.5 / np.abs(truth).max())
    assert errors.rms == pytest.approx(0.5 / np.linalg.norm(truth))
    case.expected[:] = 0
    assert case.errors(case.expected[:2]) == Errors(2, 0.0, 0.0)


def test_errors_come_to_the_same_in_parts(monkeypatch):
    case = Case(PROBLEM, 5, gpu=False)
    found = (case.expected[:5] + 1e-3 * case.expected[:5] ** 2).astype(np.float32)
    whole = case.errors(found)
    monkeypatch.setattr(conv_bench, "images_within", lambda count, each: 2)
    assert case.errors(found).largest == whole.largest
    assert case.errors(found).rms == pytest.approx(whole.rms, rel=1e-12)
    found[3, 1, 1, 1] = np.nan
    assert np.isnan(case.errors(found).rms)


def test_every_candidate_gets_the_same_images():
    """However often those that are timed were changed."""
    case = Case(PROBLEM, 3, gpu=False)
    seen = []
    for name in ("unrolled.blas", "serial.loops"):
        bench = ConvBench(find("conv", name, "cpu"), PROBLEM, case, 0.01)
        assert bench.check().verdict.passed
        before = bench.errors()
        bench.recheck()
        assert bench.errors() == before
        seen.append(bench.one_output())
    np.testing.assert_allclose(*seen, rtol=1e-5, atol=1e-5)
    maps = case.first("NCHW", 2)
    assert maps.flags.c_contiguous and maps.shape == (2, 3, 7, 6)
    np.testing.assert_array_equal(maps.transpose(0, 2, 3, 1), case.first("NHWC", 2))


class Given:
    """A bench that errs so much, or breaks."""

    once = False

    def __init__(self, found):
        self.found = found

    def errors(self):
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found


def test_those_that_are_right_and_fast_enough_get_errors():
    errors = Errors(1, 2e-7, 1e-8)
    found = [
        Candidate("right", never, status="right", bench=Given(errors)),
        Candidate("wrong", never, status="wrong", bench=Given(errors)),
        Candidate("slow", never, status="right", bench=Given(errors), single=True),
        Candidate("mute", never, status="right", bench=SimpleNamespace(once=False)),
        Candidate("breaks", never, status="right", bench=Given(MemoryError("no room"))),
        Candidate("fails", never, status="right", bench=Given(ValueError("no"))),
        Candidate("none", never, status="right", bench=Given(Errors(1, 1.0, float("nan")))),
    ]  # fmt: skip
    comparison = Comparison("", "right", found)
    err_all(comparison, lambda *words: None)
    assert [candidate.errors for candidate in found] == [errors, *[None] * 6]
    *_, short, fails, none = found
    assert short.status == "right" and short.note == "no memory to tell its rms error"
    assert fails.status == "failed" and none.status == "wrong" and "NaN" in none.note
    assert not comparison.interrupted
    found[0].bench, found[0].errors = Given(KeyboardInterrupt()), None
    err_all(comparison, lambda *words: None)
    assert comparison.interrupted and found[0].status == "right"


def test_rows_have_them(monkeypatch):
    monkeypatch.setattr(compared, "peer_version", lambda device: None)
    words = ["3,7,6,5,3,1,1", "--batch", "2", "--device", "cpu", "--no-progress", "--rounds", "5"]
    done = CliRunner().invoke(main, ["conv", *words, "--only", "unrolled,tiled", "--json", "-"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["cases"][0]["candidates"]
    same = [row["same_images"] for row in rows if row["status"] == "right"]
    assert len(same) > 1 and all(one["images"] == 2 for one in same)
    assert all(0 < one["rms"] < one["largest"] < 1e-6 for one in same)
    shown = CliRunner().invoke(main, ["conv", *words, "--only", "unrolled,tiled"])
    assert "rms error" in shown.stdout
