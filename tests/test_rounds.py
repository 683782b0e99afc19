"""Balanced rounds on a simulated machine: orders, the control, warm-up and the time limit."""

import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from lenetgpu.check.judge import Checked, Verdict
from lenetgpu.measure import rounds
from lenetgpu.measure.document import comparison_json
from lenetgpu.measure.rounds import AGAIN, LEAST_ROUNDS, Candidate, Effort, balanced_orders, compare


class Machine:
    """Clock that benches advance, with caches that hold the data of the last one run."""

    def __init__(self, seed=0, spread=0.01, cold=1.0):
        self.now, self.last, self.log = 0.0, None, []
        self.source, self.spread, self.cold = random.Random(seed), spread, cold

    def perf_counter(self):
        return self.now

    def run(self, bench, milliseconds):
        slow = 1.0 if self.last is bench else self.cold
        took = milliseconds * slow * math.exp(self.source.gauss(0, self.spread))
        self.last = bench
        self.now += took / 1e3
        self.log.append(bench)
        return took


class Bench:
    problem, once, method, note = None, False, "", ""

    def __init__(self, machine, milliseconds):
        self.machine, self.milliseconds = machine, milliseconds
        self.images = self.scaled_from = 10
        self.passes, self.launched = 1, []

    def check(self):
        return Checked(Verdict(True, 1e-7, 1e-5), 1e-7, 0, 10)

    def recheck(self):
        return self.check()

    def sample(self):
        return self.machine.run(self, self.milliseconds)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(rounds.time, "perf_counter", made.perf_counter)
    return made


def candidates(machine, **times):
    return [Candidate(name, lambda ms=ms: Bench(machine, ms)) for name, ms in times.items()]


def test_warm_up_is_automatic_or_as_requested(machine):
    machine.cold = 2.0
    none = compare("x", candidates(machine, base=4.0, b=4.0), "base", Effort(9.0, 20, warmup=0))
    assert min(none.candidates[0].samples) > 7.0
    two = compare("x", candidates(machine, base=4.0, b=4.0), "base", Effort(9.0, 20, warmup=2))
    assert max(two.candidates[0].samples) < 5.0
    assert [c.warmup for c in two.candidates] == [2, 2]
    long = compare("x", candidates(machine, base=25.0, b=4.0), "base", Effort(90.0, 20))
    assert [c.warmup for c in long.candidates] == [0, 1]


def test_slow_candidate_is_sampled_once(machine):
    made = candidates(machine, base=10.0, slow=900.0, slower=5000.0)
    done = compare("x", made, "base", Effort(4.0))
    base, slow, slower = done.candidates
    assert len(base.samples) >= LEAST_ROUNDS
    assert (len(slow.samples), len(slower.samples)) == (1, 1)
    assert "one sample; rounds with it need --seconds" in slower.note
    assert done.verdict(slower) == "slower"
    assert done.verdict(base) == "baseline"
    ratio = done.ratio(slower)
    assert ratio.high / ratio.low > 1.5 and ratio.value == pytest.approx(500, rel=0.1)
    assert machine.now < 4.0 + 6.0
    enough = compare("x", candidates(machine, base=10.0, slow=900.0), "base", Effort(6.0))
    assert len(enough.candidates[1].samples) >= LEAST_ROUNDS


def test_deviating_control_widens_every_ratio(machine):
    times = iter([4.0, 4.4])
    base = Candidate("base", lambda: Bench(machine, next(times)))
    done = compare("x", [base, *candidates(machine, b=4.2)], "base", Effort(9.0, 40))
    assert done.control().value == pytest.approx(1.1, rel=0.01)
    assert done.ratio(done.candidates[1]).verdict() == "undecided"
    assert done.ratio(done.candidates[1]).high > 1.05 * 1.09


@pytest.mark.parametrize("count", [2, 3, 6, 7, 11])
def test_orders_are_balanced_by_position_and_predecessor(count):
    orders = balanced_orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    for place in range(count):
        assert len(set(Counter(order[place] for order in orders).values())) == 1
    follows = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) == 1


def test_baseline_and_control_are_sampled_like_others(machine):
    said = []
    made = candidates(machine, base=4.0, other=5.0, b=5.0)
    done = compare("x", made, "base", Effort(3.0, 24), say=lambda *text: said.append(text))
    assert ("4 candidates, about 0.036 s a round, 3 s at most",) in said
    assert ("checking other, about 3 s left", 1, 3) in said
    names = {c.bench: c.name for c in (*done.candidates, done.again)}
    assert sorted(names.values()) == ["b", "base", "base" + AGAIN, "other"]
    assert {len(c.samples) for c in (*done.candidates, done.again)} == {done.rounds} == {24}
    timed = [names[bench] for bench in machine.log[4:]]
    assert set(Counter(timed).values()) == {48}, "an untimed run before each sample"
    switches = Counter((a, b) for a, b in itertools.pairwise(timed) if a != b)
    assert len(switches) == 12 and max(switches.values()) - min(switches.values()) <= 6
    assert sum(switches.values()) == 4 * 24 - 1, "nobody follows itself"


def test_rounds_end_at_precision_or_time_limit(machine):
    machine.spread = 1e-4
    done = compare("x", candidates(machine, base=4.0, b=4.0), "base", Effort(60.0))
    assert done.rounds == rounds.QUIET_ROUNDS
    machine.spread, machine.now = 0.05, 0.0
    compare("x", candidates(machine, base=20.0, b=25.0), "base", Effort(2.0, noise=0.0))
    assert 1.5 < machine.now <= 2.0


def changed(machine, name, change, milliseconds=4.0):
    """Return a candidate whose `sample` is `change(sample)`."""

    def build():
        bench = Bench(machine, milliseconds)
        bench.sample = change(bench.sample)
        return bench

    return Candidate(name, build)


def breaking(error, after):
    """Return a change that raises `error` from sample number `after` on."""

    def change(real):
        left = iter(range(after))

        def sample():
            if next(left, None) is None:
                raise error
            return real()

        return sample

    return change


def test_slow_first_sample_excludes_nobody(machine):
    slow = iter([1000.0])
    late = changed(machine, "b", lambda real: lambda: next(slow, None) or real(), 10.0)
    done = compare("x", [*candidates(machine, base=10.0), late], "base", Effort(3.0, rounds=20))
    assert [len(c.samples) for c in done.candidates] == [20, 20]


@pytest.mark.parametrize("ends", ["ctrl-c", "time"])
def test_cheat_loses_its_times_even_after_ctrl_c(machine, monkeypatch, ends):
    after = 31 if ends == "ctrl-c" else 999
    cheat = changed(machine, "cheat", breaking(KeyboardInterrupt(), after), 1.0)
    honest = Bench.recheck
    monkeypatch.setattr(Bench, "recheck", lambda bench: replace(
        honest(bench), verdict=Verdict(bench.milliseconds != 1.0, 0, 0, ", remembered")
    ))  # fmt: skip
    made = [*candidates(machine, base=4.0), cheat]
    done = compare("x", made, "base", Effort(9.0, rounds=20))
    assert done.interrupted == (ends == "ctrl-c")
    assert comparison_json(done, None, None)["interrupted"] == done.interrupted
    assert [c.status for c in made] == ["right", "wrong"]
    assert made[0].samples and not made[1].samples
    assert "remembered" in made[1].note


def test_second_ctrl_c_drops_unchecked_results(machine, monkeypatch):
    made = [
        changed(machine, "base", breaking(KeyboardInterrupt(), 12)),
        *candidates(machine, b=4.0),
    ]
    monkeypatch.setattr(Bench, "recheck", breaking(KeyboardInterrupt(), 0)(None))
    done = compare("x", made, "base", Effort(9.0, rounds=20))
    assert done.interrupted
    assert [c.samples for c in made] == [[], []]


def test_missing_control_is_reported(machine):
    built = iter([Bench(machine, 4.0)])
    made = [Candidate("base", lambda: next(built)), *candidates(machine, b=4.0)]
    done = compare("x", made, "base", Effort(9.0, rounds=8))
    assert done.again is None
    assert made[0].note.startswith("no control: built again it is failed")
    assert len(made[0].samples) == 8


@pytest.mark.parametrize("samples", [None, 0, 5])
def test_candidate_without_memory_is_skipped(machine, samples):
    """Memory is short while it is built, for its first sample, or for a later one."""
    big = changed(machine, "big", breaking(MemoryError("5 GiB"), samples or 0))
    if samples is None:
        big.build = breaking(MemoryError("5 GiB"), 0)(None)
    done = compare("x", [*candidates(machine, base=4.0), big], "base", Effort(9.0, rounds=8))
    assert (big.status, big.note) == ("skipped", "requires more memory: 5 GiB")
    assert big.samples == [] and done.wrong == []
