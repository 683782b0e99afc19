"""`best.fp32` by what was measured: the table that ships, this machine's own, `conv --tune`."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import permutations, product
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from lenetgpu.cache import entries
from lenetgpu.cache.folder import folder
from lenetgpu.check.judge import Verdict
from lenetgpu.cli import main
from lenetgpu.dispatch import choose, measured
from lenetgpu.dispatch.algorithms import ALGORITHMS
from lenetgpu.dispatch.choose import (
    CLAIM,
    TILED,
    choices,
    explain,
    further,
)
from lenetgpu.dispatch.measured import HERE, NEAR, SHIPS, Measured
from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.machines import FULL_NAMES, H100, H200
from lenetgpu.lab import asked
from lenetgpu.lab.conv import compared, tuning
from lenetgpu.lab.conv.given import taken as taken_shape
from lenetgpu.lab.show.conv import tuned_line
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.sampling.facts import Checked
from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import variants
from lenetgpu.stages.conv.tuned.clocks import product_clocks


def taken(*asked):
    made = choose.decide(*asked)
    return made.algorithm, made.found


MAPS = {"reads": "NCHW", "writes": "NCHW"}
SMALL = Conv(7, 7, 512, 512, 1, 1, **MAPS)
OTHER = Conv(9, 9, 16, 16, 3, 3, **MAPS)
HERE_IS = Gpu(0, "Some Hopper", 90)
MACHINE = replace(H200, name=HERE_IS.name)
DAY = "2026-11-22"
NAMED_H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def here(monkeypatch):
    """A GPU that is here, and what `conv --tune` kept of it."""
    monkeypatch.setattr(measured, "driver_gpus", lambda: (HERE_IS,))
    return lambda images, us, problem=OTHER, **more: measured.keep(
        problem, Measured(HERE_IS.name, images, us, DAY, **more)
    )


@pytest.fixture
def ships(monkeypatch):
    """A table that ships instead of ours: what is added to it."""
    rows = {}
    monkeypatch.setattr(measured, "_shipped", lambda: rows)

    def add(images, us, problem=OTHER, device=HERE_IS.name):
        row = Measured(device, images, us, DAY, SHIPS)
        rows[device, problem] = (*rows.get((device, problem), ()), row)

    return add


def by_model(problem=OTHER, images=1):
    return choices(problem, images, MACHINE)[0].algorithm


def others_than(name, problem=OTHER):
    return next(c.algorithm for c in choices(problem, 1, MACHINE) if c.algorithm != name)


SLOW = others_than(by_model())  # the model would not take it
ALGORITHMS_IN_ORDER = [v.full_name for v in variants("conv", "cuda") if v.full_name in ALGORITHMS]


def test_the_table_is_what_was_measured(script):
    assert script("conv_choices").text() == measured.TABLE.read_text()


def test_every_row_of_the_table_can_be_and_is_taken():
    rows = [(p, row) for (_, p), rows in measured._shipped().items() for row in rows]
    assert len(rows) >= 58
    for problem, row in rows:
        assert (problem.reads, problem.writes) == ("NCHW", "NCHW")
        assert set(row.us) <= set(ALGORITHMS) and len(row.us) > 1
        assert measured.problem_of(measured.fields_of(problem)) == problem
        machine = FULL_NAMES[row.device]
        expected = promised(problem, row, machine) or row.algorithm
        assert taken(problem, row.images, machine) == (expected, row)


def promised(problem, row, machine=H200):
    """Who has no time in a row that ships, and is to be faster than all that have."""
    predicted = {c.algorithm: c.us(machine) for c in choices(problem, row.images, machine)}
    rest = {name: us for name, us in predicted.items() if name not in {*row.us, *row.dropped}}
    first = min(rest, key=rest.get, default=None)
    return first if first and CLAIM * rest[first] <= row.us[row.algorithm] else None


def test_what_was_measured_is_what_the_suites_say():
    """Both suites of the Pascal paper, in their files' own words."""
    shapes = SUITES["pascal-multi"].shapes + SUITES["pascal-single"].shapes
    assert len(shapes) == 48
    for shape in shapes:
        problem = replace(shape.problem, **MAPS)
        name, found = taken(problem, 1, H200)
        assert found is not None
        if name in found.us:
            assert found.us[name] == min(found.us.values())
        else:
            assert name == promised(problem, found) and name.startswith("tensor.")
    assert taken(SMALL, 1, H200)[0] == "prefetch.stride_fixed" != by_model(SMALL)


def planted(root, name, date, entries_, **more):
    case = {"shape": "16,9,9,16,3,1,0", "images": 4, "label": "x", "candidates": entries_}
    document = {"date": date, "device": {"kind": "cuda", "name": "Some GPU"}, "cases": [case]}
    path = root / "some-gpu" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document | more))


def entry(name, us, status="right", **more):
    return {"name": name, "status": status, "median_ms": us / 1e3} | MAPS | more


def test_the_table_takes_the_fullest_run_and_of_those_the_newest(script, tmp_path):
    table = script("conv_choices").table
    two = [entry("direct.tuned", 2.0), entry("winograd.f2", 3.0)]
    planted(tmp_path, "conv/a.json", "2026-01-01", two)
    assert [row["algorithm"] for row in table(tmp_path)["rows"]] == ["direct.tuned"]
    newer = [entry("direct.tuned", 3.0), entry("winograd.f2", 2.0)]
    planted(tmp_path, "conv/b.json", "2026-01-02", newer, commit="abc")
    (row,) = table(tmp_path)["rows"]
    assert (row["algorithm"], row["date"], row["commit"]) == ("winograd.f2", "2026-01-02", "abc")
    assert row["problem"] == {**MAPS, "H": 9, "W": 9, "C": 16, "M": 16, "R": 3, "S": 3}
    assert (row["device"], row["images"]) == ("Some GPU", 4)
    planted(tmp_path, "winners.json", "2025-12-31", [*two, entry("texture.split", 1.0)])
    (row,) = table(tmp_path)["rows"]
    assert (row["algorithm"], row["date"]) == ("texture.split", "2025-12-31")


@pytest.mark.parametrize(
    "change",
    [{"status": "wrong"}, {"name": "best.fp32"}, {"name": "torch cudnn"}, {"name": "tensor.fp16"},
     {"reads": "NHWC"}, {"median_ms": None}],
    ids=str,
)  # fmt: skip
def test_what_best_does_not_run_is_no_part_of_the_table(change, script, tmp_path):
    table = script("conv_choices").table
    third = entry("texture.split", 1.0) | change
    planted(tmp_path, "conv/a.json", DAY, [entry("direct.tuned", 2.0), third])
    assert table(tmp_path)["rows"] == []  # one alone is no choice
    planted(tmp_path, "conv/a.json", DAY,
            [entry("direct.tuned", 2.0), entry("winograd.f2", 3.0), third])  # fmt: skip
    (row,) = table(tmp_path)["rows"]
    assert row["us"] == {"direct.tuned": 2.0, "winograd.f2": 3.0}


def test_a_shape_that_best_refuses_is_passed_over(script, tmp_path):
    case = {"shape": "16,9,9,16,3,1,0 --bias --dtype fp16", "images": 4, "label": "x"}
    entries_ = [entry("direct.grouped", 2.0), entry("best.fp32", 1.0, "refused")]
    planted(tmp_path, "conv/a.json", DAY, [], cases=[case | {"candidates": entries_}])
    assert script("conv_choices").table(tmp_path)["rows"] == []


@pytest.mark.parametrize("more", [{"quick": True}, {"device": {"kind": "cpu", "name": "x"}}])
def test_quick_runs_and_cpus_are_no_part_of_the_table(more, script, tmp_path):
    two = [entry("direct.tuned", 2.0), entry("winograd.f2", 3.0)]
    planted(tmp_path, "conv/a.json", DAY, two, **more)
    assert script("conv_choices").table(tmp_path)["rows"] == []


def test_a_damaged_table_is_one_sentence(tmp_path):
    good = json.loads(measured.TABLE.read_text())
    row = good["rows"][0]
    slower = max(row["us"], key=row["us"].get)
    for change in (
        "{", "[]", {"schema": 2}, {"rows": [{}]}, {"rows": [row | {"us": {"direct.tuned": 0.0}}]},
        {"rows": [row | {"algorithm": slower}]}, {"rows": [row | {"date": "long ago"}]},
        {"rows": [row | {"images": 0}]}, {"rows": [row | {"problem": {"H": 1}}]},
        {"rows": [row | {"us": {}}]}, {"rows": [row | {"more": 1}]},
    ):  # fmt: skip
        path = tmp_path / "measured.json"
        path.write_text(change if isinstance(change, str) else json.dumps(good | change))
        with pytest.raises(LenetError, match="expected the table of measured convolutions, found"):
            measured.read_table(path)


def test_nothing_measured_is_the_model_s(ships):
    assert taken(OTHER, 1, MACHINE) == (by_model(), None)


def test_a_choice_holds_for_its_device_problem_and_layouts(ships):
    ships(4, {by_model(): 2.0, SLOW: 1.0})
    assert taken(OTHER, 4, MACHINE)[0] == SLOW
    assert taken(OTHER, 4, H100) == (choices(OTHER, 4, H100)[0].algorithm, None)
    assert taken(replace(OTHER, pad=1), 4, MACHINE)[1] is None
    assert taken(replace(OTHER, writes="NHWC"), 4, MACHINE)[1] is None


@pytest.mark.parametrize(("machine", "device"), [(H200, "NVIDIA H200"), (H100, NAMED_H100)])
def test_a_known_machine_has_the_rows_of_its_full_name(machine, device, ships):
    ships(1, {by_model(): 2.0, SLOW: 1.0}, device=device)
    for found in (machine, replace(machine, name=device)):
        name, row = taken(OTHER, 1, found)
        assert name == SLOW and not row.twin
    assert taken(OTHER, 1, replace(machine, name=f"{device} NVL", multiprocessors=114))[1] is None


def test_rows_of_the_same_multiprocessors_count_where_there_are_no_others(here, ships):
    ships(4, {by_model(): 2.0, SLOW: 1.0}, device="NVIDIA H200")
    for machine in (H100, MACHINE, replace(H100, name=NAMED_H100)):
        assert taken(OTHER, 4, machine)[0] == SLOW != choices(OTHER, 4, machine)[0].algorithm
        rows = dict(explain(OTHER, 4, machine))
        assert rows["chosen"] == f"{SLOW}, as measured on NVIDIA H200"
        assert rows["because"].startswith("1.00 us measured on NVIDIA H200; 2.00 us of ")
        assert rows["measured on"].startswith("NVIDIA H200, ")
    apart = (replace(MACHINE, multiprocessors=131), replace(MACHINE, compute_capability=100))
    assert [measured.near(OTHER, 4, machine) for machine in apart] == [[], []]
    assert "on NVIDIA" not in dict(explain(OTHER, 4, H200))["because"]
    assert here(8, {by_model(): 1.0, SLOW: 2.0})
    assert taken(OTHER, 4, MACHINE)[1].device == HERE_IS.name  # its own, though not as near
    assert taken(OTHER, 3, MACHINE)[1].device == "NVIDIA H200"
    assert "twin" not in measured.row_of(OTHER, taken(OTHER, 4, H100)[1])


def test_what_another_gpu_timed_gives_way_where_the_model_promises_enough(ships):
    us = {choice.algorithm: choice.us(H100) for choice in choices(OTHER, 4, H100)}
    first = min(us, key=us.get)
    ships(4, {"texture.split": 1.01 * CLAIM * us[first]}, device="NVIDIA H200")
    assert taken(OTHER, 4, H100)[0] == first
    assert "us measured on NVIDIA H200 of texture" in dict(explain(OTHER, 4, H100))["because"]


def test_the_nearest_number_of_images_counts_and_none_that_is_far(ships):
    ships(4, {by_model(): 2.0, SLOW: 1.0})
    ships(12, {"direct.tuned": 1.0, "texture.split": 0.5})
    answers = {n: taken(OTHER, n, MACHINE)[1] for n in (1, 2, 3, 6, 7, 8, 24, 25)}
    held = {n: None if row is None else row.images for n, row in answers.items()}
    assert held == {1: None, 2: 4, 3: 4, 6: 4, 7: 12, 8: 12, 24: 12, 25: None}


def test_choices_hold_for_about_as_many_images_by_the_model():
    """What NEAR says: from twice to three times as many, the worst gets much worse."""
    lost = defaultdict(list)
    counts = (1, 2, 4, 6, 8, 12, 24, 64, 128)
    for size, channels, taps in product((7, 14, 28, 56, 112), (1, 16, 64, 256, 512), (1, 3, 5)):
        maps = max(channels, 32)
        problem = Conv(size, size, channels, maps, taps, taps, 1, taps // 2, **MAPS)
        clocks = {n: {c.algorithm: c.clocks for c in choices(problem, n, H200)} for n in counts}
        for of, used in permutations(clocks, 2):
            winner = min(clocks[of], key=clocks[of].get)
            if winner not in clocks[used]:  # it errs more there
                continue
            over = clocks[used][winner] / min(clocks[used].values())
            lost[max(of / used, used / of) <= NEAR].append(over)
    near, far = lost[True], lost[False]
    assert sum(over == 1 for over in near) >= 0.89 * len(near)
    assert sum(near) / len(near) < 1.02 < 1.05 < sum(far) / len(far)
    assert max(near) < 1.7 and max(far) > 2


def test_this_machine_s_own_comes_before_what_ships_as_near(here, ships):
    ships(4, {by_model(): 2.0, SLOW: 1.0})
    assert here(4, {by_model(): 1.0, SLOW: 2.0})
    assert taken(OTHER, 4, MACHINE)[1].source == HERE
    assert taken(OTHER, 4, MACHINE)[0] == by_model()
    assert here(6, {by_model(): 2.0, SLOW: 1.0})
    assert taken(OTHER, 5, MACHINE)[1].images == 6
    ships(5, {by_model(): 2.0, SLOW: 1.0})
    assert taken(OTHER, 5, MACHINE)[1].source == SHIPS  # exactly as many


def test_this_machine_s_own_is_of_a_gpu_that_is_here(here, ships, monkeypatch):
    assert here(4, {by_model(): 2.0, SLOW: 1.0})
    assert taken(OTHER, 4, MACHINE)[0] == SLOW
    monkeypatch.setattr(measured, "driver_gpus", lambda: ())
    assert taken(OTHER, 4, MACHINE)[1] is None


def test_entries_of_several_numbers_of_images_stand_side_by_side(here, ships):
    assert here(1, {SLOW: 1.0}) and here(64, {by_model(): 1.0}) and here(1, {by_model(): 3.0})
    rows = {row.images: row for row in measured.kept(HERE_IS.name, OTHER)}
    assert {n: dict(row.us) for n, row in rows.items()} == {
        1: {by_model(): 3.0}, 64: {by_model(): 1.0},
    }  # fmt: skip
    assert measured.kept("another", OTHER) == () == measured.kept(HERE_IS.name, SMALL)


@pytest.mark.parametrize(
    ("where", "name"), [(measured.nvrtc, "environment"), (measured, "sources"),
                        (measured, "_kernels")],
)  # fmt: skip
def test_other_drivers_and_sources_void_what_was_kept(where, name, here, ships, monkeypatch):
    assert here(4, {by_model(): 2.0, SLOW: 1.0})
    assert taken(OTHER, 4, MACHINE)[0] == SLOW
    monkeypatch.setattr(where, name, lambda *_: "another")
    assert taken(OTHER, 4, MACHINE) == (by_model(images=4), None)


def test_every_kernel_and_header_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "_CONV", tmp_path)
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n')
    found = []
    for text in ("1", "2"):
        (tmp_path / "b.cuh").write_text(text)
        measured.nvrtc.source_hash.cache_clear()
        found.append(measured._kernels.__wrapped__())
    assert found[0] != found[1]


def test_a_damaged_entry_is_as_good_as_none_and_heals(here, ships):
    for damage in (lambda p: p.write_text("{"), lambda p: (p.unlink(), p.mkdir())):
        assert here(4, {by_model(): 2.0, SLOW: 1.0}) and taken(OTHER, 4, MACHINE)[0] == SLOW
        (path,) = folder("tuned").glob("*.kept")
        damage(path)
        assert taken(OTHER, 4, MACHINE)[1] is None
        if path.is_dir():
            path.rmdir()


@pytest.mark.parametrize(
    "change",
    [{"device": "another"}, {"problem": "{}"}, {"dates": {}}, {"loads": {"4": float("nan")}},
     {"loads": {"4": -1.0}}, {"loads": {"4": float("inf")}}, {"dates": {"4": "long ago"}},
     {"us": {"4": {}}},
     {"us": {"4": {SLOW: 0.0}}}, {"us": {"4": {SLOW: float("inf")}}}, {"us": {"4": {SLOW: "1"}}},
     *[{"us": {n: {SLOW: 1.0}}, "dates": {n: DAY}, "loads": {n: 0.0}}
       for n in ("0", "-4", "4.0", "٤", "9" * 5000)]],
    ids=lambda change: str(change)[:60],
)  # fmt: skip
def test_an_entry_that_cannot_be_is_not_taken(change, here, ships):
    assert here(4, {by_model(): 2.0, SLOW: 1.0})
    (path,) = folder("tuned").glob("*.kept")
    entries.keep("tuned", path.stem, entries.facts_of("tuned", path.stem) | change)
    assert measured.kept(HERE_IS.name, OTHER) == ()
    assert taken(OTHER, 4, MACHINE)[1] is None
    assert here(4, {by_model(): 2.0, SLOW: 1.0}) and taken(OTHER, 4, MACHINE)[0] == SLOW


@pytest.mark.parametrize(
    ("name", "problem"),
    [("direct.tuned_single", OTHER), ("winograd.f4", SMALL), ("direct.basic", OTHER),
     ("texture.nothing", OTHER), ("prefetch.stride_fixed", Conv(60, 60, 3, 8, 29, 29, **MAPS))],
)  # fmt: skip
def test_a_choice_that_is_not_possible_falls_to_the_model(name, problem, here, ships):
    model = by_model(problem, 4)
    ships(4, {model: 2.0, name: 1.0}, problem)
    assert here(4, {model: 2.0, name: 1.0}, problem)
    assert taken(problem, 4, MACHINE) == (model, None)


def test_a_choice_that_the_gpu_is_too_old_for_falls_to_the_model(here, ships, monkeypatch):
    ships(4, {by_model(): 2.0, SLOW: 1.0})
    old = replace(MACHINE, compute_capability=70)
    monkeypatch.setattr(choose, "choices", lambda *_: [SimpleNamespace(algorithm="the model's")])
    assert taken(OTHER, 4, old) == ("the model's", None)


class Run:
    """Variants that note what they are asked, by name; `full` has no memory for its workspace."""

    def __init__(self, monkeypatch, full=()):
        self.log, self.full = [], full
        monkeypatch.setattr(choose.machines, "current", lambda: MACHINE)
        real = choose.find

        def found(kind, name, device):
            return replace(real(kind, name, device), prepare=self.prepare(name),
                           run=self.run(name), kernels=lambda *_: (name,))  # fmt: skip

        monkeypatch.setattr(choose, "find", found)

    def prepare(self, name):
        def prepare(w, problem, batch):
            if name in self.full:
                raise self.full[name]
            return name, w, batch

        return prepare

    def run(self, name):
        return lambda x, w, y, problem: self.log.append((name, w))


def test_best_prepares_and_launches_what_was_chosen(ships, monkeypatch):
    ships(4, {by_model(): 2.0, "texture.split": 1.0})
    ran = Run(monkeypatch)
    for images, expected in ((4, "texture.split"), (64, by_model(images=64))):
        state = choose._prepare("w", OTHER, images)
        choose.fp32("x", state, "y", OTHER)
        assert ran.log.pop() == (expected, (expected, "w", images))
    assert choose._kernels(OTHER, 4) == ("texture.split", by_model(images=4))
    assert choose._kernels(OTHER, 64) == (by_model(images=64),)


def test_a_choice_that_memory_does_not_hold_gives_way_to_the_model_s(ships, monkeypatch):
    ships(4, {by_model(): 2.0, "texture.split": 1.0})
    ran = Run(monkeypatch, {"texture.split": MemoryError("no room")})
    assert choose._prepare("w", OTHER, 4).variant.full_name == by_model(images=4)
    ran.full = {"texture.split": ValueError("not that")}
    with pytest.raises(ValueError, match="not that"):
        choose._prepare("w", OTHER, 4)
    ran.full = {by_model(images=64): MemoryError("no room")}
    with pytest.raises(MemoryError):
        choose._prepare("w", OTHER, 64)


def test_few_channels_cost_direct_tuned_more_than_memory_says():
    """Both are bound by memory; 512x512 maps with K = 1 and 3 were 1.6x and 1.8x slower."""
    for taps in (1, 3):
        problem = Conv(512, 512, 1, 64, taps, taps, **MAPS)
        first, *others = choices(problem, 1, H200)
        (second,) = (choice for choice in others if choice.algorithm == "direct.tuned")
        assert first.algorithm == "direct.tuned_single"
        assert second.clocks == pytest.approx(1.7 * first.clocks)
    many = replace(problem, C=4)
    (found,) = (c for c in choices(many, 1, H200) if c.algorithm == "direct.tuned")
    assert found.clocks == product_clocks(found.product, many, 1, 1, H200)


def test_explain_has_the_model_s_figures_and_the_measured_ones():
    rows, (found,) = dict(explain(SMALL, 1, H200)), measured.near(SMALL, 1, H200)
    fastest, second = found.us["prefetch.stride_fixed"], found.us["direct.tuned"]
    assert rows["chosen"] == "prefetch.stride_fixed, as measured"
    assert rows["measured on"] == (
        f"NVIDIA H200, {found.date}, 1 image, commit {found.commit}, {SHIPS}"
    )
    assert rows["the model would take"] == f"direct.tuned, {second / fastest:.2f}x the fastest"
    assert rows["prefetch.stride_fixed"] == f"no model; measured {fastest:.2f} us"
    model = choices(SMALL, 1, H200)[0]
    us, clocks = f"{model.clocks / H200.clock_mhz:.2f}", f"{model.clocks:,.0f}"
    timed = f"measured {second:.2f} us"
    expected = f"{us} us by the model, {clocks} clocks; {timed}; {model.product}"
    assert rows["direct.tuned"] == expected
    rows = dict(explain(SMALL, 3, H200))
    assert rows["chosen"] == "direct.tuned, by the model"
    assert "measured on" not in rows and "us by the model" in rows["direct.tuned"]
    assert rows["texture.split"] == "no model; not measured"


def test_explain_says_whose_measurement_decided(here, ships):
    assert here(4, {by_model(): 2.0, SLOW: 1.0}, load=2.0)
    rows = dict(explain(OTHER, 5, MACHINE))
    assert rows["chosen"] == f"{SLOW}, as measured"
    assert rows["measured on"] == f"Some Hopper, {DAY}, 4 images, beside 2 other processes, {HERE}"


class Bench:
    """Takes `us` microseconds; wrong where that is said."""

    problem, launched, once, passes, method, note, repeats = None, (), False, 1, "", "", True

    def __init__(self, us, problem, passed=True):
        self.us, self.passed, self.problem = us, passed, problem
        self.images = self.scaled_from = 1
        self.noise = random.Random(0)

    def check(self):
        return Checked(Verdict(self.passed, 1e-7, 1e-5), 0.0, None, 1)

    recheck = check

    def sample(self):
        if self.us == "stop":
            raise KeyboardInterrupt
        return self.us / 1e3 * (1 + 1e-4 * self.noise.random())


@pytest.fixture
def gpu(here, ships, monkeypatch):
    """A GPU that is pretended: what each algorithm takes on it, by the channels of a shape."""
    times = {}
    monkeypatch.setattr(tuning, "choose_device", lambda wanted: (HERE_IS, ""))
    for module in (compared, asked):
        monkeypatch.setattr(module, "choose_device", lambda wanted: (HERE_IS, ""))
    limits = Ceilings(HERE_IS.name, 1000.0, 10.0, 100.0)
    monkeypatch.setattr(compared, "open_device", lambda wanted, say: (HERE_IS, limits))
    monkeypatch.setattr(compared, "compile_all", lambda *_: None)
    monkeypatch.setattr(compared, "_release", lambda *_: None)
    monkeypatch.setattr(compared, "peer_version", lambda device: pytest.fail("no peer is wanted"))
    monkeypatch.setattr(tuning.machines, "current", lambda: MACHINE)
    monkeypatch.setattr(tuning, "load_on", lambda device: 0.0)
    case = SimpleNamespace(images=1)
    monkeypatch.setattr(compared, "Case", lambda problem, n, on_gpu: case)

    def bench(variant, problem, case, seconds):
        own = times[problem.C]
        us = own.get(variant.full_name, own.get(variant.full_name.partition(TILED)[0], 9.0))
        return Bench(abs(us) if us != "stop" else us, problem, us == "stop" or us > 0)

    monkeypatch.setattr(compared, "ConvBench", bench)
    return times


def tune(*arguments, code=0):
    result = CliRunner().invoke(main, ["conv", *map(str, arguments), "--tune", "--json", "-"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout), result.stderr


def test_tune_keeps_the_fastest_and_says_how_far_the_model_was_off(gpu):
    model = by_model()
    gpu[16] = {model: 6.0, SLOW: 4.0, "texture.split": 5.0}
    document, said = tune("16,9,9,16,3", "--batch", 1)
    (case,) = document["cases"]
    assert document["peer"] is None
    ran = [e["name"] for e in case["candidates"]]
    assert ran == [*ALGORITHMS_IN_ORDER, *(v.full_name for v in further(OTHER, 1, MACHINE))]
    assert case["tuned"]["algorithm"] == SLOW and case["tuned"]["why"] is None
    assert (case["tuned"]["before"], case["tuned"]["model"]) == (model, model)
    assert case["tuned"]["off"] == pytest.approx(1.5, rel=1e-3)
    assert "1 of 1 choices kept; the model's were 1.50x the fastest, 1.50x at most" in said
    name, found = taken(OTHER, 1, MACHINE)
    assert (name, found.source, found.device) == (SLOW, HERE, HERE_IS.name)
    assert found.us["texture.split"] == pytest.approx(5.0, rel=1e-3)
    assert "direct.tuned_single" not in found.us  # it refuses 16 channels
    assert case["command"] == "lenetgpu conv 16,9,9,16,3,1,0 --batch 1 --tune"
    again = next(e for e in case["candidates"] if e["name"] == SLOW)["command"]
    assert f"--only {SLOW}" in again and "--watch 0.0" in again and "--tune" not in again
    assert tune("16,9,9,16,3")[0]["cases"][0]["tuned"]["before"] == SLOW


def test_those_who_tune_one_shape_at_once_all_keep_theirs(here, ships, monkeypatch):
    """Each reads what is kept and writes it with its own: nobody may come between."""
    keep, counts = entries.keep, range(1, 9)

    def slow(*asked):
        time.sleep(0.02)
        return keep(*asked)

    monkeypatch.setattr(tuning.machines, "current", lambda: MACHINE)
    monkeypatch.setattr(tuning, "load_on", lambda device: 0.0)
    monkeypatch.setattr(entries, "keep", slow)
    case = {"candidates": [entry(SLOW, 1.0, relative_error=1e-7)], "interrupted": False}
    with ThreadPoolExecutor(len(counts)) as pool:
        shapes = [replace(taken_shape("16,9,9,16,3"), batch=n) for n in counts]
        done = [*pool.map(tuning.tune, shapes, [case] * len(shapes))]
    assert [tuned.why for tuned in done] == [None] * len(counts)
    assert {row.images for row in measured.kept(HERE_IS.name, OTHER)} == {*counts}


def test_without_locks_or_a_folder_what_was_measured_is_kept_or_said(gpu, monkeypatch):
    def full(*_):
        raise OSError("no locks available")

    gpu[16] = {SLOW: 1.0}
    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", full)
        assert tune("16,9,9,16,3")[0]["cases"][0]["tuned"]["why"] is None
    monkeypatch.setattr(entries, "folder", lambda *_, **__: None)
    (case,) = tune("16,9,9,16,3")[0]["cases"]
    assert case["tuned"]["why"] == "the cache folder takes no entry"


def test_a_wrong_algorithm_is_never_kept(gpu):
    gpu[16] = {by_model(): 6.0, SLOW: -1.0, "texture.split": 5.0}
    document, said = tune("16,9,9,16,3", code=1)
    assert document["cases"][0]["tuned"]["algorithm"] == "texture.split"
    assert f"WRONG: 16,9,9,16,3,1,0: {SLOW}" in said
    assert SLOW not in taken(OTHER, 1, MACHINE)[1].us


def test_a_time_of_what_is_not_right_counts_for_nothing(gpu):
    held = [entry("direct.tuned", 2.0), entry(SLOW, 1.0, "wrong"), entry("best.fp32", 0.5)]
    found = tuning.tune(taken_shape("16,9,9,16,3"), {"candidates": held, "interrupted": False})
    assert found.us == {"direct.tuned": 2.0} and found.algorithm == "direct.tuned"


def test_the_worst_miss_is_named_and_what_was_not_kept_is_counted():
    def case(label, off, **more):
        return {"label": label, "tuned": asdict(tuning.Tuned({}, off=off, **more))}

    cases = [case("a", 1.0), case("b", 4.0), case("c", None, why="refused"), {"label": "d"}]
    said = "tune: 2 of 3 choices kept; the model's were 2.00x the fastest, 4.00x at most (b)"
    assert tuning.note(cases) == said
    assert tuning.note(cases[2:]) == "tune: 0 of 1 choices kept"


def test_where_none_is_right_nothing_is_kept(gpu):
    gpu[16] = dict.fromkeys(ALGORITHMS, -1.0)
    document, said = tune("16,9,9,16,3", code=1)
    assert document["cases"][0]["tuned"]["why"] == "no algorithm was right and timed"
    assert "0 of 1 choices kept" in said
    assert folder("tuned") is None or not [*folder("tuned").glob("*.kept")]


def test_an_interrupt_keeps_what_was_finished(gpu, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("16,9,9,16,3\n17,9,9,16,3\n18,9,9,16,3\n")
    gpu[16] = {SLOW: 1.0}
    gpu[17] = {"direct.tuned": "stop"}
    document, said = tune("--from", lines, code=130)
    assert [case["tuned"]["why"] for case in document["cases"]] == [
        None, "interrupted before every algorithm was timed",
    ]  # fmt: skip
    assert "1 of 2 choices kept" in said
    assert taken(OTHER, 1, MACHINE)[0] == SLOW
    assert taken(replace(OTHER, C=17), 1, MACHINE)[1] is None


def test_what_best_refuses_is_said_and_the_rest_is_kept(gpu, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("g4ic16ih9oc16kh3\n16,9,9,16,3\n")
    gpu[16] = {SLOW: 1.0}
    document, _ = tune("--from", lines)
    first, second = (case["tuned"] for case in document["cases"])
    assert first["why"] == "supports one group, not 4" and first["algorithm"] is None
    assert second["algorithm"] == SLOW


def test_a_suite_is_tuned_for_its_images(gpu):
    gpu.update({1: {"texture.split": 1.0}, 32: {"texture.split": 1.0}})
    document, _ = tune("--suite", "lenet")
    assert [case["images"] for case in document["cases"]] == [1, 10_000] * 2
    problem = Conv(28, 28, 1, 32, 5, 5, **MAPS)
    held = {n: taken(problem, n, MACHINE)[1] is not None for n in (1, 2, 5, 5_000, 20_001)}
    assert held == {1: True, 2: True, 5: False, 5_000: True, 20_001: False}


def test_a_cache_that_takes_nothing_is_said(gpu, monkeypatch):
    gpu[16] = {SLOW: 1.0}
    monkeypatch.setattr(tuning, "keep", lambda *_: False)
    document, said = tune("16,9,9,16,3")
    assert document["cases"][0]["tuned"]["why"] == "the cache folder takes no entry"
    assert "0 of 1 choices kept" in said


def test_what_tune_kept_is_printed(gpu):
    gpu[16] = {by_model(): 6.0, SLOW: 4.0}
    shown = CliRunner().invoke(main, ["conv", "16,9,9,16,3", "--tune"]).stdout
    line = f"best.fp32 takes {SLOW}, 4.00 us; it took {by_model()}; the model takes {by_model()}"
    assert f"{line}, 6.00 us, 1.50x" in shown
    held = asdict(tuning.Tuned({"a": 1.0}, "a", "a", "a", 1.0))
    assert tuned_line(held) == "best.fp32 takes a, 1.00 us; so does the model"
    beside = "best.fp32 takes a, 1.00 us, beside 2 other processes; so does the model"
    assert tuned_line(held | {"load": 2.0}) == beside
    assert tuned_line(held | {"model": "b", "off": None}).endswith("the model takes b, not timed")
    assert "would take a, not kept: full" in tuned_line(held | {"why": "full"})
    assert tuned_line(asdict(tuning.Tuned({}, why="x"))) == "best.fp32: nothing kept: x"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("16,9,9,16,3", "--device", "cpu"), "--tune: expected a GPU, which best.fp32 runs on"),
        (("16,9,9,16,3", "--only", "winograd"), "expected --only best beside it, found --only wi"),
        (("16,9,9,16,3", "--cold-l2"), "beside it, found --cold-l2"),
        (("16,9,9,16,3", "--explain"), "beside it, found --explain"),
        (("16,9,9", "--device", "cpu"), "expected C,H,W,M,K"),
        ((), "expected SHAPE"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(arguments, words):
    result = CliRunner().invoke(main, ["conv", *arguments, "--tune"])
    assert result.exit_code == 2
    assert words in result.output and len(result.output.strip().splitlines()) == 1


@pytest.mark.gpu
def test_what_tune_keeps_on_a_gpu_is_what_best_takes():
    document, said = tune("16,9,9,16,3", "--batch", 3, "--seconds", 0.05)
    found = document["cases"][0]["tuned"]
    assert found["why"] is None and found["algorithm"] == min(found["us"], key=found["us"].get)
    assert {"direct.tuned", "winograd.f2", "prefetch.stride_fixed"} <= {*found["us"]}
    assert "winograd.f4" not in found["us"]  # errs more, by the model
    assert "1 of 1 choices kept" in said
    name, row = taken(OTHER, 3)
    assert (name, row.source, row.images) == (found["algorithm"], HERE, 3)
