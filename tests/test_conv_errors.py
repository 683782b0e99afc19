"""What candidates err on the same images: the row's root mean square."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.lab.conv import compared
from lenetgpu.lab.conv.repeats import err_all
from lenetgpu.measure import conv_bench
from lenetgpu.measure.comparison import Candidate, Comparison
from lenetgpu.measure.conv_bench import Case, ConvBench
from lenetgpu.measure.rounds import never
from lenetgpu.measure.sampling.facts import Errors
from lenetgpu.problems import Conv
from lenetgpu.stages import find

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
