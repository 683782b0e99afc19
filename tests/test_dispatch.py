"""`best.fp32`: the choice of `decide`, the report of --explain, and `conv --tune`."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from terminal import run

from lenetgpu.check.judge import Checked, Errors, Verdict, check_variant
from lenetgpu.check.reference import random_input
from lenetgpu.dispatch import choose, measured, rounding
from lenetgpu.dispatch.algorithms import ALGORITHMS, EXACT_FROM, TILED, possible, why_not
from lenetgpu.dispatch.choose import CLAIM, choices, explain, further, variant_of
from lenetgpu.dispatch.measured import HERE, SHIPS, Measured, counted, inexact
from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.machines import FULL_NAMES, H100, H200
from lenetgpu.lab import compare as asking
from lenetgpu.lab.conv import compared, tuning
from lenetgpu.lab.conv.request import shape_of
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.problems import Conv
from lenetgpu.stages import find, variants
from lenetgpu.stages.conv.tensor import implicit, mma, wgmma
from lenetgpu.stages.conv.tuned import winograd
from lenetgpu.stages.reference import conv_reference as reference
from lenetgpu.stages.registry import OPTIONS
from lenetgpu.store import entries
from lenetgpu.store.entries import folder

MAPS = {"reads": "NCHW", "writes": "NCHW"}
SMALL = Conv(7, 7, 512, 512, 1, 1, **MAPS)
OTHER = Conv(9, 9, 16, 16, 3, 3, **MAPS)
HERE_IS = Gpu(0, "Some Hopper", 90)
MACHINE = replace(H200, name=HERE_IS.name)
DAY = "2026-11-22"
NAMED_H100 = "NVIDIA H100 80GB HBM3"
HOPPER, ANY, ONE = "tensor.wgmma_fp16x3", "tensor.fp16x3", "tensor.wgmma_tf32x3"
OTHER_H200 = replace(H200, name="not in the table", multiprocessors=128)
DEEP = Conv(14, 14, 256, 256, 3, 3, 1, 1, **MAPS)
SHALLOW = Conv(112, 112, 3, 64, 3, 3, 1, 1, **MAPS)
# Winograd adds channels sequentially at many images, in parts at one.
FEW = Conv(28, 28, 128, 128, 3, 3, 1, 1, **MAPS)
# Winograd adds channels in parts at one image, sequentially at two.
PARTED = Conv(56, 56, 256, 256, 3, 3, **MAPS)
WORD = next(made.word for made in wgmma.FP16X3.products(DEEP, 64, H200)[1:] if made.split == 1)


def decided(problem, images, machine=None):
    made = choose.decide(problem, images, machine or choose.machines.current())
    return made.algorithm, made.row


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def here(monkeypatch):
    """Pretend that a GPU is present; return a function that caches times as `conv --tune` does."""
    monkeypatch.setattr(measured, "driver_gpus", lambda: (HERE_IS,))
    return lambda images, us, problem=OTHER, **more: measured.save(
        problem, Measured(HERE_IS.name, images, us, DAY, **more)
    )


@pytest.fixture
def ships(monkeypatch):
    """Replace the shipped table by an empty one; return a function that adds rows to it."""
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


SLOW = others_than(by_model())  # not the model's choice
ALGORITHMS_IN_ORDER = [v.full_name for v in variants("conv", "cuda") if v.full_name in ALGORITHMS]


def predicted(problem=DEEP, images=64, machine=MACHINE):
    return {c.algorithm: c.us(machine) for c in choices(problem, images, machine)}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Conv(7, 7, 512, 512, 1, 1, **MAPS), "direct.tuned"),
        (Conv(14, 14, 512, 512, 3, 3, **MAPS), "winograd.f4"),
        (Conv(224, 224, 1, 64, 3, 3, **MAPS), "direct.tuned_single"),
        (Conv(28, 28, 64, 64, 3, 3, 2, **MAPS), "direct.tuned"),
    ],
)
def test_model_choice_and_costs_are_explained(problem, expected):
    options = choices(problem, 1, H200)
    assert options[0].algorithm == expected
    assert [o.cycles for o in options] == sorted(o.cycles for o in options)
    rows = explain(problem, 64, OTHER_H200)
    model = choices(problem, 64, OTHER_H200)
    assert rows[0] == ("dispatched", f"{model[0].algorithm}, by the model")
    modeled = [name for name, figure in rows if "by the model, " in figure]
    assert modeled == [option.algorithm for option in model]


def test_explain_gives_choice_and_reason():
    us = predicted(machine=OTHER_H200)
    first, second, *_ = us
    rows = explain(DEEP, 64, OTHER_H200)
    why = f"{us[first]:,.2f} us predicted; {us[second]:,.2f} us of {second}, which is next"
    assert rows[:2] == [("dispatched", f"{HOPPER}, by the model"), ("because", why)]
    found = dict(rows)
    assert found["its error"] == "at most that of fp32 sums of 2,304 products, as from 64 on"
    own = wgmma.FP16X3.plan(DEEP, 64, OTHER_H200)
    assert found[HOPPER].endswith(f" cycles; {own}") and f"{us[HOPPER]:,.2f} us" in found[HOPPER]


def test_inaccurate_winograd_is_refused_with_reason():
    product = winograd.plan(FEW, 64, 4, H200)
    most = rounding.MARGIN * rounding.of_winograd(product, FEW, 4)
    row = rounding.sequential(FEW)
    said = f"predicted error up to {most:.2e} (root mean square), sequential fp32 sums {row:.2e}"
    assert most > 1.5 * row and why_not("winograd.f4", FEW, H200, images=64) == said
    assert why_not("winograd.f4", FEW, H200, measured=True, images=64) is None
    rows = dict(explain(FEW, 64, replace(H200, multiprocessors=131)))
    assert rows["winograd.f4"] == f"refused, {said}" and "cycles" in rows["winograd.f2"]


def test_every_table_row_is_dispatched():
    rows = [(p, row) for (_, p), rows in measured._shipped().items() for row in rows]
    assert len(rows) >= 58
    for problem, row in rows:
        assert set(row.us) <= set(ALGORITHMS) and len(row.us) > 1
        name, found = decided(problem, row.images, FULL_NAMES[row.device])
        assert found == row and (name == row.algorithm or name not in {*row.us, *row.dropped})


def test_damaged_table_is_refused_in_one_sentence(tmp_path):
    good = json.loads(measured.TABLE.read_text())
    row = good["rows"][0]
    slower = max(row["us"], key=row["us"].get)
    for change in (
        "{", {"schema": 2}, {"rows": [row | {"us": {"direct.tuned": 0.0}}]},
        {"rows": [row | {"algorithm": slower}]}, {"rows": [row | {"problem": {"H": 1}}]},
    ):  # fmt: skip
        path = tmp_path / "measured.json"
        path.write_text(change if isinstance(change, str) else json.dumps(good | change))
        with pytest.raises(LenetError, match="expected the table of measured convolutions, found"):
            measured.read_table(path)


def test_measured_choice_needs_same_device_problem_and_layouts(ships):
    ships(4, {by_model(): 2.0, SLOW: 1.0})
    assert decided(OTHER, 4, MACHINE)[0] == SLOW
    assert decided(OTHER, 4, H100) == (choices(OTHER, 4, H100)[0].algorithm, None)
    assert decided(replace(OTHER, pad=1), 4, MACHINE)[1] is None
    assert decided(replace(OTHER, writes="NHWC"), 4, MACHINE)[1] is None


def test_short_device_name_finds_its_rows(ships):
    ships(1, {by_model(): 2.0, SLOW: 1.0}, device=NAMED_H100)
    for found in (H100, replace(H100, name=NAMED_H100)):
        name, row = decided(OTHER, 1, found)
        assert name == SLOW and not row.twin
    assert decided(OTHER, 1, replace(H100, name="Another", multiprocessors=114))[1] is None


def test_rows_of_a_similar_gpu_are_the_fallback(here, ships):
    ships(4, {by_model(): 2.0, SLOW: 1.0}, device="NVIDIA H200")
    for machine in (H100, MACHINE, replace(H100, name=NAMED_H100)):
        assert decided(OTHER, 4, machine)[0] == SLOW != choices(OTHER, 4, machine)[0].algorithm
        rows = dict(explain(OTHER, 4, machine))
        assert rows["dispatched"] == f"{SLOW}, as measured on NVIDIA H200"
        assert rows["because"].startswith("1.00 us measured on NVIDIA H200; 2.00 us of ")
        assert rows["measured on"].startswith("NVIDIA H200, ")
    apart = (replace(MACHINE, multiprocessors=131), replace(MACHINE, compute_capability=100))
    assert [measured.near(OTHER, 4, machine) for machine in apart] == [[], []]
    assert here(8, {by_model(): 1.0, SLOW: 2.0})
    assert decided(OTHER, 4, MACHINE)[1].device == HERE_IS.name  # its own row, though not as near
    assert decided(OTHER, 3, MACHINE)[1].device == "NVIDIA H200"
    ships(2, {"winograd.f4": 0.1, "texture.split": 0.2}, PARTED, device="NVIDIA H200")
    assert [decided(PARTED, 2, m)[0] for m in (H200, MACHINE)] == ["winograd.f4", "texture.split"]


def test_nearest_batch_size_counts_within_a_limit(ships):
    ships(4, {by_model(): 2.0, SLOW: 1.0})
    ships(12, {"direct.tuned": 1.0, "texture.split": 0.5})
    answers = {n: decided(OTHER, n, MACHINE)[1] for n in (1, 2, 3, 6, 7, 8, 24, 25)}
    held = {n: None if row is None else row.images for n, row in answers.items()}
    assert held == {1: None, 2: 4, 3: 4, 6: 4, 7: 12, 8: 12, 24: 12, 25: None}


def test_local_measurements_precede_shipped_ones(here, ships, monkeypatch):
    ships(4, {by_model(): 2.0, SLOW: 1.0})
    assert here(4, {by_model(): 1.0, SLOW: 2.0})
    name, row = decided(OTHER, 4, MACHINE)
    assert (name, row.source) == (by_model(), HERE)
    ships(5, {by_model(): 2.0, SLOW: 1.0})
    assert decided(OTHER, 5, MACHINE)[1].source == SHIPS  # exactly as many
    monkeypatch.setattr(measured, "driver_gpus", lambda: ())  # the GPU is not present
    assert decided(OTHER, 4, MACHINE)[1].source == SHIPS


def test_entries_for_several_batch_sizes_coexist(here, ships):
    assert here(1, {SLOW: 1.0}) and here(64, {by_model(): 1.0}) and here(1, {by_model(): 3.0})
    rows = {row.images: row for row in measured.cached(HERE_IS.name, OTHER)}
    assert {n: dict(row.us) for n, row in rows.items()} == {
        1: {by_model(): 3.0}, 64: {by_model(): 1.0},
    }  # fmt: skip
    assert measured.cached("another", OTHER) == () == measured.cached(HERE_IS.name, SMALL)


@pytest.mark.parametrize(
    ("where", "name"), [(measured.nvrtc, "environment"), (measured, "sources"),
                        (measured, "_kernels")],
)  # fmt: skip
def test_new_driver_or_sources_invalidate_cached_entries(where, name, here, ships, monkeypatch):
    assert here(4, {by_model(): 2.0, SLOW: 1.0})
    assert decided(OTHER, 4, MACHINE)[0] == SLOW
    monkeypatch.setattr(where, name, lambda *_: "another")
    assert decided(OTHER, 4, MACHINE) == (by_model(images=4), None)


@pytest.mark.parametrize(
    "change",
    [{"dates": {}}, {"loads": {"4": float("nan")}},
     {"us": {"4": {}}}, {"us": {"4": {SLOW: float("inf")}}}, {"us": {"4": {SLOW: "1"}}},
     *[{"us": {n: {SLOW: 1.0}}, "dates": {n: DAY}, "loads": {n: 0.0}} for n in ("0", "4.0")]],
    ids=str,
)  # fmt: skip
def test_impossible_cached_entry_is_ignored(change, here, ships):
    assert here(4, {by_model(): 2.0, SLOW: 1.0})
    (path,) = folder("tuned").glob("*.entry")
    entries.save("tuned", path.stem, entries.facts_of("tuned", path.stem) | change)
    assert measured.cached(HERE_IS.name, OTHER) == ()
    assert decided(OTHER, 4, MACHINE)[1] is None
    assert here(4, {by_model(): 2.0, SLOW: 1.0}) and decided(OTHER, 4, MACHINE)[0] == SLOW


@pytest.mark.parametrize(
    ("name", "problem"),
    [("winograd.f4", SMALL), ("direct.basic", OTHER), ("texture.nothing", OTHER),
     (f"{HOPPER}{TILED}halo-1x1", DEEP), (f"winograd.f4{TILED}{WORD}", DEEP)],
)  # fmt: skip
def test_impossible_measured_choice_falls_back_to_model(name, problem, here, ships):
    model = by_model(problem, 4)
    ships(4, {model: 2.0, name: 1.0}, problem)
    assert here(4, {model: 2.0, name: 1.0}, problem)
    assert decided(problem, 4, MACHINE) == (model, None)


def test_model_overrides_table_that_lacks_its_algorithm(ships):
    us = predicted()[HOPPER]
    ships(64, {"winograd.f4": 1.01 * CLAIM * us, "direct.tuned": 1e4}, DEEP)
    name, found = decided(DEEP, 64, MACHINE)
    assert (name, found.algorithm) == (HOPPER, "winograd.f4")
    rows = dict(explain(DEEP, 64, MACHINE))
    assert rows["dispatched"] == f"{HOPPER}, by the model over what was measured"
    first = f"{us:,.2f} us predicted, not measured yet"
    assert rows["because"] == f"{first}; {1.01 * CLAIM * us:,.2f} us measured of winograd.f4"
    less = replace(found, us={"winograd.f4": 0.99 * CLAIM * us, "direct.tuned": 1e4})
    measured._shipped()[HERE_IS.name, DEEP] = (less,)
    assert decided(DEEP, 64, MACHINE) == ("winograd.f4", less)


REST = {"winograd.f4": 9e3, "winograd.f2": 9.1e3, "direct.tuned": 9.2e3}


@pytest.mark.parametrize(
    "change",
    [{"us": REST | {HOPPER: 9.3e3, ANY: 9.4e3, ONE: 9.5e3}},
     {"us": REST, "dropped": (ANY, HOPPER, ONE)},
     {"us": REST | {ANY: 9.3e3, ONE: 9.4e3}, "dropped": (f"{HOPPER}{TILED}{WORD}",)}],
)  # fmt: skip
def test_table_that_has_the_models_algorithm_decides(change, ships):
    row = Measured(HERE_IS.name, 64, date=DAY, source=SHIPS, **change)
    measured._shipped()[HERE_IS.name, DEEP] = (row,)
    assert decided(DEEP, 64, MACHINE) == ("winograd.f4", row)


def test_model_does_not_override_later_measurements(here, ships, monkeypatch):
    ships(64, {"winograd.f4": 9e3, "texture.split": 9.1e3}, DEEP)
    assert decided(DEEP, 64, MACHINE)[0] == HOPPER
    here(100, {HOPPER: 9e4, "winograd.f4": 9e3}, DEEP)
    assert decided(DEEP, 64, MACHINE)[0] != HOPPER
    names = [choice.algorithm for choice in choices(DEEP, 64, MACHINE)]
    for dropped, expected in ((names[:2], names[2]), (names, names[0])):
        row = Measured("it", 64, {"texture.split": 1.0}, DAY, dropped=tuple(dropped))
        monkeypatch.setattr(measured, "near", lambda *_, row=row: [row])
        assert choose.decide(DEEP, 64, MACHINE).model == expected


def test_measured_accuracy_holds_only_for_its_batch_size(ships):
    assert possible("winograd.f4", PARTED, MACHINE) and inexact(PARTED, 2, MACHINE) == (
        "winograd.f4",
    )
    ships(1, {"winograd.f4": 0.1, "texture.split": 0.2}, PARTED)
    assert decided(PARTED, 1, MACHINE)[0] == "winograd.f4"
    name, found = decided(PARTED, 2, MACHINE)
    assert (name, found.us) == ("texture.split", {"texture.split": 0.2})
    ships(2, {"winograd.f4": 0.1, "texture.split": 0.2}, PARTED)
    assert decided(PARTED, 2, MACHINE)[0] == "winograd.f4"
    said = dict(explain(PARTED, 2, MACHINE))["winograd.f4"]
    assert said.startswith("predicted error up to ") and said.endswith("; measured 0.10 us")


def test_explain_shows_predicted_and_measured_times():
    rows, (found,) = dict(explain(SMALL, 1, H200)), measured.near(SMALL, 1, H200)
    fastest, second = found.us["prefetch.stride_fixed"], found.us["direct.tuned"]
    assert rows["dispatched"] == "prefetch.stride_fixed, as measured"
    assert rows["the model's choice"] == f"direct.tuned, {second / fastest:.2f}x the fastest"
    assert rows["prefetch.stride_fixed"] == f"no model; measured {fastest:.2f} us"
    assert f" cycles; measured {second:.2f} us; " in rows["direct.tuned"]


def ran(name, us, error, status="right"):
    return {"name": name, "status": status, "median_ms": us / 1e3, "relative_error": error}


def test_algorithms_less_accurate_than_fp32_are_dropped():
    """The limits are cuDNN's error on the same data and that of our fp32 sums.

    Without cuDNN, Winograd is held to its tolerance only.
    """
    found = [ran("winograd.f4", 5, 1.3e-6), ran("direct.tuned", 9, 3e-7), ran(ANY, 4, 4e-7),
             ran(f"{HOPPER}{TILED}halo-272x64", 2, 5e-7), ran("winograd.f2", 1, 1, "wrong"),
             ran("best.fp32", 1, 1e-7), ran(HOPPER, 1, 1e-7, "failed")]  # fmt: skip
    us, dropped = counted(found, ran("peer", 9, 4e-7))
    assert us == pytest.approx({"direct.tuned": 9.0, ANY: 4.0})
    assert dropped == ("winograd.f2", HOPPER, "winograd.f4", f"{HOPPER}{TILED}halo-272x64")
    three_times = counted(found, ran("peer", 9, 4.4e-7))[0]
    assert three_times.keys() == us.keys() | {"winograd.f4"}
    of_sums = [*found, ran("prefetch.stride_fixed", 8, 5e-7)]
    assert counted(of_sums, ran("peer", 9, 1e-7))[0].keys() == us.keys() | {
        "winograd.f4", "prefetch.stride_fixed", f"{HOPPER}{TILED}halo-272x64"
    }  # fmt: skip
    alone, dropped = counted(found)
    assert set(alone) == {"winograd.f4", "direct.tuned"} and ANY in dropped
    assert set(counted([ran(ANY, 4, 4e-7)])[0]) == {ANY}
    unknown = [ran(ANY, 4, None)]
    assert counted(unknown, ran("peer", 9, 1.0)) == ({}, (ANY,))


def alike(name, us, rms):
    """Return a candidate whose largest error contradicts that on the same images."""
    return ran(name, us, 1.0 / us) | {"same_images": {"images": 1, "largest": 1.0, "rms": rms}}


def test_errors_on_equal_images_are_compared():
    found = [alike("direct.tuned", 9, 3e-7), alike(ANY, 4, 4e-7), alike("winograd.f2", 3, 5e-7),
             alike("winograd.f4", 2, 4e-7)]  # fmt: skip
    us, dropped = counted(found, alike("peer", 9, 4e-7))
    assert us.keys() == {"direct.tuned", ANY, "winograd.f4"} and dropped == ("winograd.f2",)
    assert counted(found, alike("peer", 9, 1e-7))[1] == (ANY, "winograd.f2", "winograd.f4")
    assert counted(found)[1] == (ANY,)  # Winograd within its tolerance
    assert counted([alike(ANY, 4, float("nan"))], alike("peer", 9, 1e-7)) == ({}, (ANY,))
    older = ran("peer", 9, 1 / 3)
    assert counted(found, older)[0].keys() == {"direct.tuned", ANY, "winograd.f2", "winograd.f4"}


def test_short_sums_are_allowed_if_measured_accurate(ships):
    problem = replace(SHALLOW, M=65)
    assert not possible(ONE, problem, MACHINE)
    least = Conv(7, 7, EXACT_FROM, 64, 1, 1, **MAPS)
    assert possible(HOPPER, least, H200) and not possible(HOPPER, replace(least, C=63), H200)
    ships(64, {ONE: 2.0, "direct.tuned": 5.0}, problem)
    assert decided(problem, 64, MACHINE)[0] == ONE
    rows = dict(explain(problem, 64, MACHINE))
    assert rows["its error"] == "at most that of fp32 sums of 27 products, as measured"
    assert rows[ONE] == "no model of so few products; measured 2.00 us"
    assert rows[HOPPER].startswith("refused, sums of 27 products")


def test_tiling_names_are_unique():
    for problem in (DEEP, replace(DEEP, stride=2), Conv(224, 224, 3, 64, 7, 7, 2, 3, **MAPS)):
        for kind in (mma.FP16X3, wgmma.FP16X3):
            words = [made.word for made in kind.products(problem, 64, H200)]
            assert len(words) == len(set(words)) > 2
            for word in words:
                (made,) = replace(kind, word=word).products(problem, 64, H200)
                assert made.word == word


def test_measured_tiling_is_used(ships, monkeypatch):
    algorithm = f"{HOPPER}{TILED}{WORD}"
    ships(64, {algorithm: 1.0, "winograd.f4": 2.0}, DEEP)
    monkeypatch.setattr(choose.machines, "current", lambda: MACHINE)
    assert decided(DEEP, 64, MACHINE)[0] == algorithm
    (own,) = replace(wgmma.FP16X3, word=WORD).products(DEEP, 64, MACHINE)
    assert own != wgmma.FP16X3.plan(DEEP, 64, MACHINE)
    prepared = []
    monkeypatch.setattr(implicit, "prepare", lambda w, batch, made: prepared.append((made, batch)))
    state = choose._prepare("w", DEEP, 64)
    assert prepared == [(own, 64)] and state.variant.full_name == algorithm
    assert (
        state.says == f"runs {algorithm}, 1.00 us measured; 2.00 us of winograd.f4, which is next"
    )
    listed = find("conv", "best", "cuda").kernels(DEEP, 64)
    assert set(variant_of(algorithm).kernels(DEEP, 64)) <= set(listed)
    assert own.kernels()[0] in listed


@pytest.mark.parametrize(
    ("arch", "expected"), [("sm_75", False), ("sm_80", True), ("sm_90a", True), ("sm_121", True)]
)
def test_unlisted_architecture_uses_the_one_below(arch, expected):
    able = find("conv", ANY, "cuda").kernels(DEEP, 64)
    assert all(kernel.meant_for(arch) == expected for kernel in able)
    hopper = find("conv", HOPPER, "cuda").kernels(DEEP, 64)
    assert any(not kernel.meant_for(arch) for kernel in hopper) == (arch != "sm_90a")


class Run:
    """Replace the variants; log their calls by name. Those in `full` raise in `prepare`."""

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


def test_best_launches_the_dispatched_algorithm(ships, monkeypatch):
    ships(4, {by_model(): 2.0, "texture.split": 1.0})
    ran = Run(monkeypatch)
    for images, expected in ((4, "texture.split"), (64, by_model(images=64))):
        state = choose._prepare("w", OTHER, images)
        choose.fp32("x", state, "y", OTHER)
        assert ran.log.pop() == (expected, (expected, "w", images))
    assert choose._kernels(OTHER, 4) == ("texture.split", by_model(images=4))
    assert choose._kernels(OTHER, 64) == (by_model(images=64),)


def test_best_falls_back_if_memory_is_short(ships, monkeypatch):
    """Fall back to the measured algorithm, the model's, then one that needs almost no workspace."""
    ran = Run(monkeypatch, {HOPPER: MemoryError("no room")})
    state = choose._prepare("w", DEEP, 64)
    assert state.says == "runs direct.tuned, memory holds no other"
    ran.full["direct.tuned"] = MemoryError("none at all")
    with pytest.raises(MemoryError, match="none at all"):
        choose._prepare("w", DEEP, 64)
    ships(64, {"winograd.f4": 9e3, "texture.split": 9.1e3}, DEEP)
    assert choose._prepare("w", DEEP, 64).variant.full_name == "winograd.f4"
    assert choose._kernels(DEEP, 64) == (HOPPER, "winograd.f4", "direct.tuned")
    ships(4, {by_model(): 2.0, "texture.split": 1.0})
    ran.full = {"texture.split": MemoryError("no room")}
    assert choose._prepare("w", OTHER, 4).variant.full_name == by_model(images=4)
    ran.full = {"texture.split": ValueError("not that")}
    with pytest.raises(ValueError, match="not that"):
        choose._prepare("w", OTHER, 4)


EPILOGUES = [{"bias": True}, {"dtype": "fp16"}, {"bias": True, "relu": True, "dtype": "bf16"}]
FUSED = replace(DEEP, bias=True, relu=True)
epilogues = pytest.mark.parametrize(
    "epilogue", EPILOGUES, ids=lambda e: "-".join(map(str, e.values()))
)


@epilogues
@pytest.mark.parametrize("capability", [75, 80, 90, 120])
def test_best_dispatches_only_algorithms_with_the_options(epilogue, capability, monkeypatch):
    problem, machine = replace(DEEP, **epilogue), replace(OTHER_H200, compute_capability=capability)
    monkeypatch.setattr(choose.machines, "current", lambda: machine)
    one = {ONE} if "dtype" not in epilogue else set()
    expected = {75: set(), 80: {ANY}, 90: {ANY, HOPPER, *one}, 120: {ANY}}[capability]
    assert {c.algorithm for c in choices(problem, 64, machine)} == expected
    rows = dict(explain(problem, 64, machine))
    refusal = find("conv", "best", "cuda").refusal(problem)
    if expected:
        assert refusal is None and decided(problem, 64)[0] in expected
        refused = {name for name, why in rows.items() if why.startswith("refused, ")}
        assert refused == choose.algorithms.MODELED.keys() - expected
        assert rows["winograd.f4"].startswith("refused, supports ")
    else:
        alone = "supports a bias, ReLU, fp16 and bf16 by products on tensor cores alone"
        assert refusal == f"{alone}, and {ANY} is refused: it requires cuda 8.0"
        assert rows == {"dispatched": f"none: it {refusal}"}
        with pytest.raises(LenetError, match=r"^best.fp32 supports a bias, .* cuda 8\.0$"):
            decided(problem, 64)


def test_best_refuses_unsupported_problems():
    best = find("conv", "best", "cuda").refusal
    assert best(replace(FUSED, groups=2)) == "supports one group, not 2"
    assert "is refused: supports images" in best(Conv(4096, 4096, 64, 1, 1, 1, bias=True, **MAPS))


@epilogues
def test_table_of_plain_shape_applies_with_epilogue(epilogue, ships):
    ships(64, {"winograd.f4": 1.0, ONE: 2.0, ANY: 3.0, HOPPER: 4.0}, DEEP)
    problem = replace(DEEP, **epilogue)
    name, found = decided(problem, 64, MACHINE)
    us = {ANY: 3.0, HOPPER: 4.0} | ({ONE: 2.0} if "dtype" not in epilogue else {})
    assert (name, found.us) == (min(us, key=us.get), us)
    rows = dict(explain(problem, 64, MACHINE))
    assert rows["dispatched"] == f"{name}, as measured"
    without = f"without {', '.join(name for name in OPTIONS if name in problem.requires)}"
    assert f", 64 images, {without}, " in rows["measured on"]
    assert rows["because"].startswith(f"{us[name]:,.2f} us measured {without}; ")
    assert decided(DEEP, 64, MACHINE)[0] == "winograd.f4"


def test_measurement_of_the_exact_problem_comes_first(here, ships):
    ships(64, {ONE: 1.0, HOPPER: 2.0}, DEEP)
    assert decided(FUSED, 64, MACHINE)[0] == ONE
    assert here(64, {ANY: 3.0, HOPPER: 4.0}, FUSED)
    name, found = decided(FUSED, 64, MACHINE)
    assert (name, found.us, found.lacks) == (ANY, {ANY: 3.0, HOPPER: 4.0}, ())
    assert decided(DEEP, 64, MACHINE)[0] == ONE  # its row is of the plain shape
    assert decided(replace(FUSED, relu=False), 64, MACHINE)[1].lacks == ("bias",)
    assert here(40, {HOPPER: 4.0}, DEEP)
    assert decided(FUSED, 40, MACHINE)[0] == HOPPER  # nearer


def test_bias_is_passed_and_memory_fallback_works(monkeypatch):
    ran = Run(monkeypatch)
    name = decided(FUSED, 64, MACHINE)[0]
    choose.fp32("x", choose._prepare(("w", "b"), FUSED, 64), "y", FUSED)
    assert ran.log.pop() == (name, (name, ("w", "b"), 64))
    ran.full = {name: MemoryError("no room")}
    assert choose._prepare(("w", "b"), FUSED, 64).variant.full_name == ONE


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", [{}, *EPILOGUES], ids=lambda e: "-".join(map(str, e.values())))
def test_best_and_its_tilings_are_correct(epilogue, rng, cupy):
    problem = replace(DEEP, **epilogue)
    x, w = random_input("conv", problem, 64, rng)
    expected = reference(x, w, problem, cupy).get()
    for variant in (find("conv", "best", "cuda"), *further(problem, 64, choose.machines.current())):
        if (why := variant.refusal(problem)) is not None:
            pytest.skip(why)
        verdict = check_variant(variant, problem, x, w, expected)
        assert verdict.passed, f"{variant.full_name}: {verdict}"


class Bench:
    """A bench that takes `us` microseconds, and is wrong unless `passed`."""

    problem, launched, once, passes, method, note, repeats = None, (), False, 1, "", "", True

    def __init__(self, us, problem, passed=True):
        self.us, self.passed, self.problem = us, passed, problem
        self.images = self.scaled_from = 1
        self.noise = random.Random(0)

    def check(self):
        return Checked(Verdict(self.passed, 1e-7, 1e-5), 0.0, None, 1)

    recheck = check

    def errors(self):
        return Errors(1, 1e-7, 1e-8)

    def sample(self):
        if self.us == "stop":
            raise KeyboardInterrupt
        return self.us / 1e3 * (1 + 1e-4 * self.noise.random())


@pytest.fixture
def gpu(here, ships, monkeypatch):
    """Pretend a GPU; return the times of each algorithm on it, by the channels of a shape."""
    times = {}
    monkeypatch.setattr(tuning, "choose_device", lambda wanted: (HERE_IS, ""))
    for module in (compared, asking):
        monkeypatch.setattr(module, "choose_device", lambda wanted: (HERE_IS, ""))
    limits = Ceilings(HERE_IS.name, 1000.0, 10.0, 100.0)
    monkeypatch.setattr(compared, "open_device", lambda wanted, say: (HERE_IS, limits))
    monkeypatch.setattr(compared, "_compile_all", lambda *_: None)
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
    result = run("conv", *arguments, "--tune", "--json", "-", code=code)
    return json.loads(result.stdout), result.stderr


def test_tune_caches_fastest_and_reports_model_error(gpu):
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
    assert (
        "1 of 1 choices cached; the model's choices took 1.50x the fastest time, at most 1.50x"
        in said
    )
    name, found = decided(OTHER, 1, MACHINE)
    assert (name, found.source, found.device) == (SLOW, HERE, HERE_IS.name)
    assert found.us["texture.split"] == pytest.approx(5.0, rel=1e-3)
    assert "direct.tuned_single" not in found.us  # it refuses 16 channels
    assert case["command"] == "lenetgpu conv 16,9,9,16,3,1,0 --batch 1 --tune"
    again = next(e for e in case["candidates"] if e["name"] == SLOW)["command"]
    assert f"--only {SLOW}" in again and "--watch 0.0" in again and "--tune" not in again
    # by the model, f4 has a larger error than fp32
    gpu[16] = {"winograd.f4": 1.0, "winograd.f2": 2.0}
    found = tune("16,9,9,16,3", "--batch", 1)[0]["cases"][0]["tuned"]
    assert found["before"] == SLOW and found["algorithm"] == "winograd.f2"
    assert "winograd.f4" not in found["us"]


def test_tune_tries_tilings_and_caches_a_winner(gpu):
    problem = replace(DEEP, C=64)
    winner = further(problem, 64, MACHINE)[1].full_name
    gpu[64] = {winner: 3.0, HOPPER: 4.0, ANY: 7.0}
    document, said = tune("64,14,14,256,3,1,1", "--batch", 64, "--only", "best")
    (case,) = document["cases"]
    assert case["tuned"]["algorithm"] == winner
    assert case["tuned"]["off"] == pytest.approx(4 / 3, rel=1e-3)
    row = next(e for e in case["candidates"] if e["name"] == winner)
    assert row["command"] == case["command"] == (
        "lenetgpu conv 64,14,14,256,3,1,1 --batch 64 --tune"
    )  # fmt: skip
    assert decided(problem, 64, MACHINE)[0] == winner and "1 of 1 choices cached" in said


def test_concurrent_tuning_keeps_all_results(here, ships, monkeypatch):
    """Reading the cached rows and writing them with a new one must be atomic."""
    save, counts = entries.save, range(1, 9)

    def slow(*asked):
        time.sleep(0.02)
        return save(*asked)

    monkeypatch.setattr(tuning.machines, "current", lambda: MACHINE)
    monkeypatch.setattr(tuning, "load_on", lambda device: 0.0)
    monkeypatch.setattr(entries, "save", slow)
    case = {"candidates": [ran(SLOW, 1.0, 1e-7)], "interrupted": False}
    with ThreadPoolExecutor(len(counts)) as pool:
        shapes = [replace(shape_of("16,9,9,16,3"), batch=n) for n in counts]
        done = [*pool.map(tuning.tune, shapes, [case] * len(shapes))]
    assert [tuned.why for tuned in done] == [None] * len(counts)
    assert {row.images for row in measured.cached(HERE_IS.name, OTHER)} == {*counts}


def test_wrong_algorithm_is_never_cached(gpu):
    gpu[16] = {by_model(): 6.0, SLOW: -1.0, "texture.split": 5.0}
    document, said = tune("16,9,9,16,3", code=1)
    assert document["cases"][0]["tuned"]["algorithm"] == "texture.split"
    assert f"WRONG: 16,9,9,16,3,1,0: {SLOW}" in said
    assert SLOW not in decided(OTHER, 1, MACHINE)[1].us


def test_interrupted_tuning_keeps_finished_shapes(gpu, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("16,9,9,16,3\n17,9,9,16,3\n")
    gpu[16] = {SLOW: 1.0}
    gpu[17] = {"direct.tuned": "stop"}
    document, said = tune("--from", lines, code=130)
    assert [case["tuned"]["why"] for case in document["cases"]] == [
        None, "interrupted before every algorithm was timed",
    ]  # fmt: skip
    assert "1 of 2 choices cached" in said
    assert decided(OTHER, 1, MACHINE)[0] == SLOW
    assert decided(replace(OTHER, C=17), 1, MACHINE)[1] is None


@pytest.mark.gpu
def test_best_uses_what_tune_measured_on_gpu():
    document, said = tune("16,9,9,16,3", "--batch", 3, "--seconds", 0.05)
    found = document["cases"][0]["tuned"]
    assert found["why"] is None and found["algorithm"] == min(found["us"], key=found["us"].get)
    assert {"direct.tuned", "winograd.f2", "prefetch.stride_fixed"} <= {*found["us"]}
    assert "winograd.f4" not in found["us"]  # larger error than fp32 by the model
    assert "1 of 1 choices cached" in said
    name, row = decided(OTHER, 3)
    assert (name, row.source, row.images) == (found["algorithm"], HERE, 3)
