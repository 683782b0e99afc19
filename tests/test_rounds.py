"""Balanced rounds: orders, the control, warm-up, the time limit, and a simulated machine."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest

from lenetgpu.check.judge import Checked, Verdict
from lenetgpu.measure import rounds
from lenetgpu.measure.comparison import LEAST_ROUNDS, Candidate
from lenetgpu.measure.rounds import AGAIN, Effort, balanced_orders, compare, interleave


class Machine:
    """A clock that benches advance, with caches that hold whoever ran last."""

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
    problem, once = None, False

    def __init__(self, machine, milliseconds):
        self.machine, self.milliseconds = machine, milliseconds
        self.images = self.scaled_from = 10
        self.passes, self.launched, self.rechecked = 1, [], True

    def check(self):
        return Checked(Verdict(True, 1e-7, 1e-5), 1e-7, 0, 10)

    def recheck(self):
        return Checked(Verdict(self.rechecked, 1e-7, 1e-5, ", remembered"), 1e-7, 0, 10)

    def sample(self):
        return self.machine.run(self, self.milliseconds)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(rounds.time, "perf_counter", made.perf_counter)
    return made


def candidates(machine, **times):
    return [Candidate(name, lambda ms=ms: Bench(machine, ms)) for name, ms in times.items()]


@pytest.mark.parametrize("count", range(2, 12))
def test_orders_are_balanced_for_place_and_for_whom_one_follows(count):
    orders = balanced_orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    for place in range(count):
        assert len(set(Counter(order[place] for order in orders).values())) == 1
    follows = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) == 1


def test_nobody_follows_itself_over_the_end_of_a_round():
    turns = []
    entries = [(lambda index=index: turns.append(index) or 1.0, []) for index in range(4)]
    interleave(entries, 100)
    assert sum(a == b for a, b in itertools.pairwise(turns)) == 0
    assert set(Counter(turns).values()) == {100}


def test_the_baseline_and_its_control_are_treated_as_the_others(machine):
    done = compare("x", candidates(machine, base=4.0, other=5.0), "base", Effort(3.0, rounds=24))
    benches = {c.name: c.bench for c in (*done.candidates, done.again)}
    assert set(benches) == {"base", "other", "base" + AGAIN}
    assert benches["base"] is not benches["base" + AGAIN]
    assert {len(c.samples) for c in (*done.candidates, done.again)} == {24}
    timed = machine.log[len(benches) :]
    assert set(Counter(timed).values()) == {48}
    names = {id(bench): name for name, bench in benches.items()}
    switches = Counter(
        (names[id(a)], names[id(b)]) for a, b in itertools.pairwise(timed) if a is not b
    )
    least, most = min(switches.values()), max(switches.values())
    assert len(switches) == 6
    assert most - least <= 6


@pytest.mark.parametrize("cold", [1.0, 1.3])
def test_caches_that_the_last_one_left_cold_favour_nobody(machine, cold):
    """The old rounds ran the baseline twice in a round, so that it often followed itself."""
    machine.cold = cold
    done = compare("x", candidates(machine, base=4.0, same=4.0), "base", Effort(20.0))
    assert done.ratio(done.candidates[1]).verdict() == "same"
    assert done.control().verdict() == "same"
    median = sorted(done.candidates[0].samples)[len(done.candidates[0].samples) // 2]
    assert median == pytest.approx(4.0, rel=0.01)


def test_warm_up_is_by_switch_and_can_be_told(machine):
    machine.cold = 2.0
    none = compare("x", candidates(machine, base=4.0, b=4.0), "base", Effort(9.0, 20, warmup=0))
    assert min(none.candidates[0].samples) > 7.0
    two = compare("x", candidates(machine, base=4.0, b=4.0), "base", Effort(9.0, 20, warmup=2))
    assert max(two.candidates[0].samples) < 5.0
    assert [c.warmup for c in two.candidates] == [2, 2]
    long = compare("x", candidates(machine, base=60.0, b=4.0), "base", Effort(90.0, 20))
    assert [c.warmup for c in long.candidates] == [0, 1]


def test_a_slow_candidate_is_sampled_once_rather_than_pass_the_limit(machine):
    made = candidates(machine, base=10.0, slow=900.0, slower=5000.0)
    done = compare("x", made, "base", Effort(4.0))
    base, slow, slower = done.candidates
    assert len(base.samples) >= LEAST_ROUNDS
    assert (len(slow.samples), len(slower.samples)) == (1, 1)
    assert "one sample; rounds with it want --seconds" in slower.note
    assert done.verdict(slower) == "undecided"
    assert done.verdict(base) == "reference"
    assert done.ratio(slower).high / done.ratio(slower).low > 1.5
    assert machine.now < 4.0 + 6.0
    enough = compare("x", candidates(machine, base=10.0, slow=900.0), "base", Effort(6.0))
    assert len(enough.candidates[1].samples) >= LEAST_ROUNDS


def test_a_first_sample_that_is_slow_by_chance_leaves_nobody_out(machine):
    made = candidates(machine, base=10.0, b=10.0)
    slow = iter([1000.0])
    build = made[1].build

    def once_slow():
        bench = build()
        real = bench.sample
        bench.sample = lambda: next(slow, None) or real()
        return bench

    made[1].build = once_slow
    done = compare("x", made, "base", Effort(3.0, rounds=20))
    assert [len(c.samples) for c in done.candidates] == [20, 20]


@pytest.mark.parametrize("seconds", [0.5, 2.0, 9.0])
def test_the_rounds_keep_to_the_time(machine, seconds):
    machine.spread = 0.05
    compare("x", candidates(machine, base=20.0, b=25.0), "base", Effort(seconds, noise=0.0))
    assert machine.now <= seconds


def test_the_work_is_announced_with_its_time(machine):
    said = []
    compare(
        "x",
        candidates(machine, base=100.0, b=100.0),
        "base",
        Effort(4.0),
        say=lambda *told: said.append(told),
    )
    assert ("3 candidates, about 0.3 s a round, 4 s at most",) in said
    assert ("checking b", 1, 2) in said
    assert ("round 5, seconds", 2, 4) in said


def test_rounds_are_as_many_as_asked(machine):
    done = compare("x", candidates(machine, base=1.0, b=1.0), "base", Effort(60.0, rounds=77))
    assert [len(c.samples) for c in done.candidates] == [77, 77]
    assert done.rounds == 77


def test_quiet_candidates_end_the_rounds_early(machine):
    machine.spread = 1e-4
    done = compare("x", candidates(machine, base=4.0, b=4.0), "base", Effort(60.0))
    assert done.rounds == rounds.QUIET_ROUNDS


def test_a_control_that_is_off_makes_every_ratio_as_uncertain(machine):
    times = iter([4.0, 4.4])
    base = Candidate("base", lambda: Bench(machine, next(times)))
    done = compare("x", [base, *candidates(machine, b=4.2)], "base", Effort(9.0, 40))
    assert done.control().value == pytest.approx(1.1, rel=0.01)
    assert done.ratio(done.candidates[1]).verdict() == "undecided"
    assert done.ratio(done.candidates[1]).high > 1.05 * 1.09


def test_the_same_bench_under_two_names_is_rarely_called_different():
    """On a machine whose load comes and goes, with caches to be refilled."""
    called = found = 0
    for seed in range(40):
        one = Machine(seed, spread=0.02, cold=1.1)
        source = random.Random(seed)
        real, state = one.run, [1.0]

        def loaded(bench, ms, real=real, state=state, source=source):
            if source.random() < 0.05:
                state[0] = source.choice([1.0, 1.0, 1.3])
            return real(bench, ms * state[0])

        one.run = loaded
        patch = pytest.MonkeyPatch()
        patch.setattr(rounds.time, "perf_counter", one.perf_counter)
        made = candidates(one, base=5.0, same=5.0, slow=5.15)
        done = compare("x", made, "base", Effort(20.0, noise=0.0))
        patch.undo()
        called += done.ratio(done.candidates[1]).verdict() in ("faster", "slower")
        found += done.ratio(done.candidates[2]).verdict() == "slower"
    assert called <= 2
    assert found >= 36


def interrupted_after(bench, samples):
    """`bench`, whose Ctrl-C comes with that sample."""
    real, left = bench.sample, [samples]

    def sample():
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real()

    bench.sample = sample
    return bench


@pytest.mark.parametrize("ends", ["ctrl-c", "time"])
def test_what_cheated_loses_its_times_also_after_ctrl_c(machine, ends):
    def cheat():
        bench = Bench(machine, 1.0)
        bench.rechecked = False
        return interrupted_after(bench, 31) if ends == "ctrl-c" else bench

    made = [*candidates(machine, base=4.0), Candidate("cheat", cheat)]
    done = compare("x", made, "base", Effort(9.0, rounds=20))
    assert done.interrupted == (ends == "ctrl-c")
    assert [c.status for c in made] == ["right", "wrong"]
    assert made[0].samples and not made[1].samples
    assert "remembered" in made[1].note


def test_a_second_ctrl_c_shows_nothing_that_was_not_checked_again(machine, monkeypatch):
    made = [Candidate("base", lambda: interrupted_after(Bench(machine, 4.0), 12))]
    made += candidates(machine, b=4.0)

    def recheck(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "recheck", recheck)
    done = compare("x", made, "base", Effort(9.0, rounds=20))
    assert done.interrupted
    assert [c.samples for c in made] == [[], []]


def test_a_control_that_cannot_be_is_said(machine):
    built = []

    def once():
        if built:
            raise RuntimeError("no second one")
        built.append(1)
        return Bench(machine, 4.0)

    made = [Candidate("base", once), *candidates(machine, b=4.0)]
    done = compare("x", made, "base", Effort(9.0, rounds=8))
    assert done.again is None
    assert made[0].note.startswith("no control: built again it is failed")
    assert len(made[0].samples) == 8


@pytest.mark.parametrize("samples", [0, 5])
def test_no_memory_for_a_sample_is_no_failure(machine, samples):
    def big():
        bench = Bench(machine, 4.0)
        left, real = iter(range(samples)), bench.sample

        def sample():
            if next(left, None) is None:
                raise MemoryError("5 GiB")
            return real()

        bench.sample = sample
        return bench

    made = [*candidates(machine, base=4.0), Candidate("big", big)]
    done = compare("x", made, "base", Effort(9.0, rounds=8))
    assert (made[1].status, made[1].note) == ("skipped", "needs more memory: 5 GiB")
    assert made[1].samples == []
    assert done.wrong == []


def test_samples_of_many_calls_cost_as_much(machine):
    def many():
        bench = Bench(machine, 40.0)
        bench.passes = 10
        real = bench.sample
        bench.sample = lambda: real() / 10
        return bench

    said = []
    made = [*candidates(machine, base=4.0), Candidate("many", many)]
    compare("x", made, "base", Effort(9.0, rounds=8), say=lambda *told: said.append(told[0]))
    (line,) = [line for line in said if "s a round" in line]
    assert float(line.split("about ")[1].split(" s")[0]) == pytest.approx(0.096, rel=0.05)
