"""Comparisons: wrong candidates, memory, Ctrl-C, regressions."""

import random

from lenetgpu.check.judge import Checked, Verdict
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure import rounds as comparing
from lenetgpu.measure.document import comparison_json
from lenetgpu.measure.regression import regressions
from lenetgpu.measure.rounds import Candidate, Comparison, Effort

GPU = Gpu(0, "test", 90)


class FakeBench:
    """A bench with times from a list, correct or wrong as configured."""

    method = note = ""

    def __init__(self, times, passed=True):
        self._times, self._passed = iter(times), passed
        self.images = self.scaled_from = 10
        self.problem, self.launched, self.once, self.passes = None, [], False, 1

    def check(self):
        return Checked(
            Verdict(self._passed, 1e-7, 1e-5), 1e-7, 0, 10, None if self._passed else "x"
        )

    recheck = check

    def sample(self):
        return next(self._times)


def endless(value, spread=0.001, seed=1):
    source = random.Random(seed)
    while True:
        yield value * source.uniform(1 - spread, 1 + spread)


def out_of_memory():
    raise MemoryError("Unable to allocate 5.5 GiB")


def interrupt():
    yield from [1.0] * 7
    raise KeyboardInterrupt


def test_wrong_candidates_are_not_timed_and_large_ones_skipped():
    candidates = [
        Candidate("good", lambda: FakeBench(endless(1.0))),
        Candidate("slow", lambda: FakeBench(endless(2.0, seed=2))),
        Candidate("bad", lambda: FakeBench(endless(0.1), passed=False)),
        Candidate("big", out_of_memory),
    ]
    done = comparing.compare("x", candidates, "good", Effort(5, rounds=60))
    status = {c.name: c.status for c in done.candidates}
    assert status == {"good": "right", "slow": "right", "bad": "wrong", "big": "skipped"}
    document = comparison_json(done, GPU, None)
    entries = {entry["name"]: entry for entry in document["candidates"]}
    assert "median_ms" not in entries["bad"]
    assert "5.5 GiB" in entries["big"]["note"]
    assert entries["slow"]["verdict"] == "slower"
    assert entries["slow"]["ratio"]["low"] < 2 < entries["slow"]["ratio"]["high"]
    assert len(entries["good"]["samples_ms"]) >= comparing.LEAST_ROUNDS


def test_ctrl_c_keeps_finished_measurements():
    candidates = [
        Candidate("good", lambda: FakeBench(endless(1.0))),
        Candidate("stops", lambda: FakeBench(interrupt())),
    ]
    done = comparing.compare("x", candidates, "good", Effort(60, noise=0.0, warmup=0))
    assert done.interrupted
    document = comparison_json(done, GPU, None)
    assert document["interrupted"]
    assert len(document["candidates"][1]["samples_ms"]) == 6


def document(times, baseline=1.0):
    candidates = [
        Candidate("base", lambda: FakeBench([]), status="right"),
        Candidate("other", lambda: FakeBench([]), status="right"),
    ]
    for candidate, value, seed in zip(candidates, (baseline, times), (1, 2), strict=True):
        candidate.bench = FakeBench([])
        source = endless(value, seed=seed)
        candidate.samples = [next(source) for _ in range(20)]
    done = Comparison("conv2", "base", candidates)
    return comparison_json(done, GPU, None)


def test_regression_requires_interval_beyond_threshold():
    assert regressions(document(2.0), document(2.0), 1) == []
    assert regressions(document(2.06), document(2.0), 5) == []
    (line,) = regressions(document(2.4), document(2.0), 5)
    assert line.startswith("other: +20")
    (line,) = regressions(document(2.6, 1.3), document(2.0), 5)
    assert line.startswith("base: +30")
    gone = document(2.0)
    del gone["candidates"][1]["median_ms"]
    assert regressions(gone, document(2.0), 5) == ["other: timed then, not now"]
