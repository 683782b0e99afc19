"""Correct candidates run again on the same images: bitwise agreement and errors."""

import json
import shlex
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from terminal import run

from lenetgpu.check.judge import Errors
from lenetgpu.lab.conv import compared
from lenetgpu.lab.conv.compared import RUNS, run_again
from lenetgpu.measure.conv_bench import Case, ConvBench
from lenetgpu.measure.rounds import Candidate, Comparison, never
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
    if DONE[0] % 2 == 0:  # one value's last bit
        y.reshape(-1).view("uint32")[5] ^= 1
"""
SHAPE = ("2,9,8,3,3", "--batch", "2", "--device", "cpu", "--rounds", "5", "--watch", "0")


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Return a function that runs `conv` with a plugin.

    It returns the exit code, the plugin's row, another variant's row, and stderr.
    """
    monkeypatch.setattr(compared, "peer_version", lambda device: None)

    def ran(*words, repeats=True):
        (tmp_path / "own.py").write_text(OWN.format(repeats=repeats))
        words = [*SHAPE, "--with", tmp_path / "own.py", "--only", "tiled", "--no-progress", *words]
        done = run("conv", *words, "--json", "-")
        found = {row["name"]: row for row in json.loads(done.stdout)["cases"][0]["candidates"]}
        return done.exit_code, found["own.in_any_order"], found["tiled.blocked"], done.stderr

    return ran


def test_bitwise_differences_between_runs_are_wrong(rows):
    code, own, other, said = rows("--bitwise")
    assert (code, own["status"], own["bits"]) == (1, "wrong", "others")
    assert own["note"] == "1 of 252 values differ between runs on the same images"
    assert own["note"] in said
    assert (other["status"], other["bits"]) == ("right", "same")
    assert "--bitwise" in shlex.split(own["command"])


def test_nonrepeatable_variant_may_differ_between_runs(rows):
    code, own, _, _ = rows("--bitwise", repeats=False)
    assert (code, own["status"], own["bits"]) == (0, "right", "others")
    assert own["note"].endswith("runs need not agree to the bit: 1 values differ")
    assert all(0 < own["same_images"][error] < 1e-6 for error in ("rms", "largest"))


class Leaving:
    """A bench that returns one of `outputs` after the other."""

    repeats = True

    def __init__(self, outputs):
        self.outputs = iter(outputs)

    def one_output(self):
        return np.array(next(self.outputs), np.float32)


@pytest.mark.parametrize("odd", [0, RUNS - 1])
def test_bitwise_difference_in_any_run_counts(odd):
    outputs = [[1.0, 2.0, (-1 if run == odd else 1) * 0.0] for run in range(RUNS)]
    wrong = Candidate("odd", never, status="right", bench=Leaving(outputs))
    failed = Candidate("gone", never, status="wrong", bench=Leaving([]))
    again = Candidate("same", never, status="right", bench=Leaving([[1.0]] * RUNS))
    short = Candidate("breaks", never, status="right", bench=Leaving([[1.0]]))
    for candidate in (every := [wrong, failed, again, short]):
        candidate.single = True
    run_again(Comparison("", "same", every), True, lambda *words: None)
    assert (wrong.status, wrong.bits) == ("wrong", "others") and "1 of 3 values" in wrong.note
    assert (again.status, again.bits) == ("right", "same")
    assert (failed.status, failed.bits) == ("wrong", None)
    assert short.status == "failed"


def test_atomic_float_sums_are_declared_nonrepeatable():
    """Only one kernel has blocks that add floats in global memory in any order."""
    said = {v.full_name for v in variants(device="cuda") if not v.repeats}
    assert said == {"prefetch.strict_channels"}
    assert find("conv", "prefetch.strict", "cuda").repeats


PROBLEM = Conv(7, 6, 3, 5, 3, 3, 1, 1)


def test_errors_are_relative_to_largest_and_rms(monkeypatch):
    case = Case(PROBLEM, 4, gpu=False)
    exact = case.expected[:4]
    found = exact.copy()
    found[1, 2, 3, 4] += 0.5
    asked, within = [], "lenetgpu.measure.conv_bench.images_within"
    monkeypatch.setattr(within, lambda *each: asked.append(each) or 3)
    errors = case.errors(found)
    assert errors.images == 4 and asked == [(4, 3 * 8 * exact[0].size)]
    assert errors.largest == pytest.approx(0.5 / np.abs(exact).max())
    assert errors.rms == pytest.approx(0.5 / np.linalg.norm(exact))
    case.expected[:] = 0
    assert case.errors(case.expected[:2]) == Errors(2, 0.0, 0.0)


def test_candidates_get_the_same_images():
    """Errors are taken on the same images, no matter how often the timed images changed."""
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


def given(found, status="right", **more):
    """Return a candidate whose bench returns the errors `found`, or raises it."""
    bench = SimpleNamespace(once=False, errors=Mock(side_effect=[found]))
    return Candidate("", never, status=status, bench=bench, **more)


def test_correct_and_fast_candidates_get_errors():
    errors = Errors(1, 2e-7, 1e-8)
    found = [
        given(errors), given(errors, "wrong"), given(errors, single=True),
        given(MemoryError("no room")), given(ValueError("no")),
        given(Errors(1, 1.0, float("nan"))), given(KeyboardInterrupt()),
    ]  # fmt: skip
    comparison = Comparison("", "right", found)
    run_again(comparison, False, lambda *words: None)
    assert [candidate.errors for candidate in found] == [errors, *[None] * 6]
    *_, short, fails, none, _ = found
    assert short.status == "right" and short.note == "not enough memory to measure its rms error"
    assert fails.status == "failed" and none.status == "wrong" and "NaN" in none.note
    assert comparison.interrupted
