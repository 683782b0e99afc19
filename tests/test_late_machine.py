"""A machine that others keep busy is not taken for a variant that claims less than passed."""

from __future__ import annotations

import random
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from lenetgpu.check import gates
from lenetgpu.check.gates import Gate, Ledger
from lenetgpu.check.judge import Verdict
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.measure import rounds
from lenetgpu.measure.bench import Skip, StageBench, stage_of
from lenetgpu.measure.comparison import Candidate
from lenetgpu.measure.conv_bench import Case, ConvBench
from lenetgpu.measure.rounds import Effort
from lenetgpu.measure.sampling import fed
from lenetgpu.measure.sampling.facts import truth
from lenetgpu.net.device import choose_device
from lenetgpu.problems import Conv
from lenetgpu.stages import find

RIGHT = Verdict(True, 0.0, 1e-5)
WORK_MS = 0.12


class Machine:
    """A clock, and work whose end is known late by up to `late` ms; `hidden` ms nobody claims."""

    def __init__(self, seed, late=(0.0, 0.01), hidden=0.0):
        self.random, self.late, self.hidden, self.now = random.Random(seed), late, hidden, 0.0

    def clock(self):
        return self.now / 1e3

    def work(self, milliseconds=WORK_MS):
        self.now += (
            milliseconds + self.hidden * (milliseconds > 0) + self.random.uniform(*self.late)
        )
        return milliseconds

    def nothing(self):
        return self.work(0.0)


def gate_on(machine, monkeypatch):
    """A gate of a variant that is right, on a GPU that is `machine`."""
    variant = SimpleNamespace(
        full_name="own.kernel", precision="fp32", needs=SimpleNamespace(device="cuda")
    )
    mounted = SimpleNamespace(variant=variant, on_gpu=True, trespassed=lambda: False)
    monkeypatch.setattr(gates, "Ledger", partial(Ledger, clock=machine.clock))
    monkeypatch.setattr(
        gates, "host_and_claimed", partial(gates.host_and_claimed, clock=machine.clock)
    )
    runtime = SimpleNamespace(deviceSynchronize=lambda: None)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    feed = SimpleNamespace(slots=SimpleNamespace(intact=True))
    return Gate(mounted, [], feed, machine.nothing)


def sample(gate, machine):
    gate.idle()
    return gate.clocked(machine.work)


def judged(machine, monkeypatch, samples=5, meanwhile=lambda: None):
    """The gate's verdict of some samples and what is taken anew, and the gate."""
    gate = gate_on(machine, monkeypatch)
    for _ in range(samples):
        sample(gate, machine)
    meanwhile()
    gate.repeat(partial(sample, gate, machine))
    return gate.verdict(RIGHT), gate


BUSY = (1.0, 6.0)


@pytest.mark.parametrize("samples", [1, 5, 60])
def test_on_a_quiet_machine_times_are_believed_and_small_claims_are_not(samples, monkeypatch):
    verdict, gate = judged(Machine(0), monkeypatch, samples)
    assert verdict.passed and not gate.late
    verdict, gate = judged(Machine(0, hidden=1.8), monkeypatch, samples)
    assert not verdict.passed and not gate.late
    assert verdict.note == ", claims 0.12 ms where 1.92 ms passed"


def test_on_a_busy_machine_nobody_is_accused_and_nobody_believed(monkeypatch):
    for seed in range(30):
        verdict, gate = judged(Machine(seed, BUSY), monkeypatch)
        assert verdict.passed, (seed, verdict)
        assert gate.late.startswith("no times to be had now: the end of 0.12 ms is known after ")


def test_on_a_busy_machine_claims_that_stand_out_are_accused(monkeypatch):
    for seed in range(10):
        verdict, _ = judged(Machine(seed, BUSY, hidden=20.0), monkeypatch)
        assert not verdict.passed and "claims 0.12 ms where 2" in verdict.note


def test_a_late_machine_excuses_what_was_not_told_from_it_and_no_more(monkeypatch):
    machine = Machine(0, hidden=1.8)
    gate = gate_on(machine, monkeypatch)
    sample(gate, machine)
    gate.late = "no times to be had now"  # it was late when its samples were taken anew
    assert gate.verdict(RIGHT).passed
    _, gate = judged(machine, monkeypatch)
    gate.late = "no times to be had now"  # when many calls were timed
    assert "claims 0.12 ms where 1.9" in gate.verdict(RIGHT).note


@pytest.mark.parametrize(
    ("late", "hidden", "said", "excused"),
    [((0.0, 0.01), 0.0, "", ""), ((0.0, 0.01), 9.0, "claims 4.2 ms for 33 calls where 13.2", ""),
     ((9.0, 9.01), 0.0, "", "no times to be had now: the end of 4.2 ms is known after 13.2 ms"),
     ((9.0, 9.01), 30.0, "claims 4.2 ms for 33 calls where 43", "")],
)  # fmt: skip
def test_many_calls_are_held_against_what_nothing_takes(late, hidden, said, excused, monkeypatch):
    machine = Machine(0, late, hidden)
    gate = gate_on(machine, monkeypatch)
    gate.long_run(lambda calls: machine.work(4.2), WORK_MS)
    assert gate.caught.startswith(said) and bool(gate.caught) == bool(said)
    assert gate.late.startswith(excused) and bool(gate.late) == bool(excused)


def benches():
    facts = truth(load_dataset(assets.default_digits()).images[:9], weights())
    yield StageBench(find("pool", "fused.rows", "cpu"), stage_of("pool1"), 9, facts)
    yield ConvBench(find("conv", "unrolled", "cpu"), CONV, Case(CONV, 3, False), 0.1)


CONV = Conv(8, 8, 2, 3, 3, 3)


def weights():
    from lenetgpu.files.weights import load_weights

    return load_weights(assets.default_weights())


def test_a_bench_of_a_late_machine_is_skipped_and_not_wrong():
    choose_device("cpu")
    for bench in benches():
        assert bench.check().verdict.passed
        bench.sample()
        bench._gate.late = "no times to be had now"
        with pytest.raises(Skip, match="no times to be had now"):
            bench.recheck()
        bench._gate._catch("is caught")
        assert "is caught" in bench.recheck().verdict.note


class Late:
    """A bench that is right and whose times are not to be had."""

    once, passes, images, scaled_from, problem, launched = False, 1, 1, 1, None, ()

    def check(self):
        return SimpleNamespace(verdict=RIGHT)

    def sample(self):
        return 1.0

    def recheck(self):
        raise Skip("no times to be had now")


def test_a_candidate_without_times_is_left_out_with_the_reason():
    done = rounds.compare("x", [Candidate("late", Late)], "late", Effort(1, rounds=5))
    (late,) = done.candidates
    assert (late.status, late.note, late.samples) == ("skipped", "no times to be had now", [])
    assert done.wrong == []


def test_nothing_is_timed_before_each_sample(monkeypatch):
    """Before images change places: it stands between nothing that is timed."""
    told = []
    gate = SimpleNamespace(
        idle=lambda: told.append("idle"), clocked=lambda take: take(), glance=lambda: None
    )
    feed = SimpleNamespace(renew=lambda: told.append("renew"))
    own = fed.Fed(None, feed, gate)
    monkeypatch.setattr(own, "warm", lambda call: told.append("warm"))
    monkeypatch.setattr(fed, "gpu_ms", lambda work, times: told.append("timed") or 1.0)
    own.launches(1)
    assert told == ["idle", "renew", "warm", "timed"]
    told.clear()
    _, bench = benches()
    bench.check()
    bench._gate.idle = gate.idle
    monkeypatch.setattr(bench, "_renew", feed.renew)
    bench.sample()
    assert told[:2] == ["idle", "renew"]
