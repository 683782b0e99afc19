"""`best.fp32` and the tensor cores: when it takes them, by which tiling, and what it says of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_conv_tuned import (  # noqa: F401
    DAY,
    HERE_IS,
    MACHINE,
    MAPS,
    Run,
    gpu,
    here,
    own_cache,
    ships,
    taken,
    tune,
)

from lenetgpu.check.judge import check_variant
from lenetgpu.check.truth import random_input
from lenetgpu.dispatch import choose, measured
from lenetgpu.dispatch.algorithms import ALGORITHMS
from lenetgpu.dispatch.choose import (
    CLAIM,
    EXACT_FROM,
    TILED,
    choices,
    explain,
    further,
    possible,
    variant_of,
)
from lenetgpu.dispatch.measured import SHIPS, Measured, counted
from lenetgpu.errors import LenetError
from lenetgpu.gpu.machines import H100, H200
from lenetgpu.lab.conv import compared, tuning
from lenetgpu.lab.conv.request import ConvRequest
from lenetgpu.lab.show.conv_document import shape_text
from lenetgpu.papers.shapes import SUITES, Shape
from lenetgpu.plan import untried
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.reference import reference
from lenetgpu.stages.conv.tensor import implicit, mma, product, wgmma
from lenetgpu.stages.conv.tensor.packed import Layout
from lenetgpu.stages.wants import WANTS

HOPPER, ANY = "tensor.wgmma_fp16x3", "tensor.fp16x3"
ONE = "tensor.wgmma_tf32x3"
"""In one launch."""
OTHER_H200 = replace(H200, name="not in the table", multiprocessors=128)
DEEP = Conv(14, 14, 256, 256, 3, 3, 1, 1, **MAPS)
SHALLOW = Conv(112, 112, 3, 64, 3, 3, 1, 1, **MAPS)
AMPERE = replace(MACHINE, compute_capability=80)
WORD = next(made.word for made in wgmma.FP16X3.products(DEEP, 64, H200)[1:] if made.split == 1)


def test_resnet_s_3x3_are_taken_by_the_tensor_cores():
    """Measured on an H200: 1.6 to 1.8 times faster than what was taken before."""
    found = {s.problem.H: s.problem for s in SUITES["resnet50"].shapes if s.problem.R == 3}
    assert sorted(found) == [7, 14, 28, 56]
    for problem in found.values():
        assert taken(replace(problem, **MAPS), 64, H200)[0] == HOPPER
        assert taken(replace(problem, **MAPS), 64, OTHER_H200) == (HOPPER, None)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(75, set()), (80, {ANY}), (89, {ANY}), (90, {ANY, HOPPER, ONE}), (100, {ANY}), (120, {ANY})],
)
def test_a_gpu_has_the_tensor_cores_that_it_has(capability, expected):
    machine = replace(H200, compute_capability=capability)
    named = {c.algorithm for c in choices(DEEP, 64, machine) if c.algorithm.startswith("tensor")}
    all_of_them = {ANY, HOPPER, ONE}
    assert named == expected == {name for name in all_of_them if possible(name, DEEP, machine)}
    refused = {name for name, why in explain(DEEP, 64, machine) if why.startswith("not taken, ")}
    assert refused - {"winograd.f4"} == all_of_them - expected


def test_papers_small_batches_stay_as_they_are():
    """A launch of four or five kernels is more than these take in all."""
    suites = ("pascal-single", "pascal-multi", "overfeat")
    for shape in (shape for name in suites for shape in SUITES[name].shapes):
        problem = replace(shape.problem, **MAPS)
        name, found = taken(problem, 1, H200)
        if found.us[found.algorithm] < 10:
            assert name in (found.algorithm, ONE), shape_text(problem)
        if problem.C == 1:
            assert name.startswith("direct."), shape_text(problem)


def test_all_launches_are_in_the_price(monkeypatch):
    """Two split, one multiplies, one adds parts, one looks again; each of them every turn."""
    held = replace(product.FIT, launch=0.0, parts=1.0)
    layout = replace(Layout(DEEP, 2), planes=True)
    for split, launches in ((1, 4), (2, 5)):
        made = product.Product(layout, wgmma.FP16X3.tilings[0], split)
        for batch, turns in ((64, 1), (5_000, 2)):
            monkeypatch.setattr(implicit, "images_at_once", lambda _, n, turns=turns: n // turns)
            with monkeypatch.context() as patch:
                for module in (product, implicit):
                    patch.setattr(module, "FIT", replace(product.FIT, parts=1.0))
                whole = implicit.Kind.clocks(made, batch, H200)
                for module in (product, implicit):
                    patch.setattr(module, "FIT", held)
                rest = implicit.Kind.clocks(made, batch, H200)
            assert whole - rest == pytest.approx(turns * launches * product.FIT.launch)


def test_explain_says_what_was_taken_and_why():
    us = predicted(machine=OTHER_H200)
    first, second, *_ = us
    rows = explain(DEEP, 64, OTHER_H200)
    why = f"{us[first]:,.2f} us predicted; {us[second]:,.2f} us of {second}, which is next"
    assert rows[:2] == [("chosen", f"{HOPPER}, by the model"), ("because", why)]
    found = dict(rows)
    assert found["its error"] == "at most that of fp32 sums of 2,304 products, as from 64 on"
    own = wgmma.FP16X3.plan(DEEP, 64, OTHER_H200)
    assert found[HOPPER].endswith(f" clocks; {own}") and f"{us[HOPPER]:,.2f} us" in found[HOPPER]
    assert "its error" not in dict(explain(DEEP, 1, replace(OTHER_H200, compute_capability=75)))


def test_few_products_a_sum_are_more_exact_in_fp32():
    one = Conv(7, 7, EXACT_FROM, 64, 1, 1, **MAPS)
    assert possible(HOPPER, one, H200) and not possible(HOPPER, replace(one, C=63), H200)
    rows = dict(explain(SHALLOW, 4096, H200))
    assert rows[HOPPER] == "not taken, sums of 27 products: below 64 it errs more than fp32"
    assert not any(c.algorithm.startswith("tensor") for c in choices(SHALLOW, 4096, H200))


def test_what_tensor_kernels_refuse_is_another_s():
    wide = Conv(4096, 4096, 64, 1, 1, 1, **MAPS)
    assert "supports images" in find("conv", HOPPER, "cuda").refusal(wide)
    name, _ = taken(wide, 1, H200)
    assert find("conv", name, "cuda").refusal(wide) is None and not name.startswith("tensor")
    rows = dict(explain(wide, 1, H200))
    assert rows[HOPPER].startswith("not taken, supports images")


def predicted(problem=DEEP, images=64, machine=MACHINE):
    return {c.algorithm: c.us(machine) for c in choices(problem, images, machine)}


def test_a_table_without_it_gives_way_where_the_model_promises_enough(ships):  # noqa: F811
    us = predicted()[HOPPER]
    ships(64, {"winograd.f4": 1.01 * CLAIM * us, "direct.tuned": 1e4}, DEEP)
    name, found = taken(DEEP, 64, MACHINE)
    assert (name, found.algorithm) == (HOPPER, "winograd.f4")
    rows = dict(explain(DEEP, 64, MACHINE))
    assert rows["chosen"] == f"{HOPPER}, by the model over what was measured"
    first = f"{us:,.2f} us predicted, not measured yet"
    assert rows["because"] == f"{first}; {1.01 * CLAIM * us:,.2f} us measured of winograd.f4"
    less = replace(found, us={"winograd.f4": 0.99 * CLAIM * us, "direct.tuned": 1e4})
    measured._shipped()[HERE_IS.name, DEEP] = (less,)
    assert taken(DEEP, 64, MACHINE) == ("winograd.f4", less)


def test_its_prediction_is_for_as_many_images_as_were_measured(ships):  # noqa: F811
    ships(64, {"winograd.f2": 1.01 * CLAIM * predicted()[HOPPER]}, DEEP)
    assert taken(DEEP, 33, MACHINE)[0] == taken(DEEP, 128, MACHINE)[0] == HOPPER
    why = dict(explain(DEEP, 33, MACHINE))["because"]
    assert why.startswith(f"{predicted()[HOPPER]:,.2f} us predicted, ")


REST = {"winograd.f4": 9e3, "winograd.f2": 9.1e3, "direct.tuned": 9.2e3}


@pytest.mark.parametrize(
    "change",
    [{"us": REST | {HOPPER: 9.3e3, ANY: 9.4e3, ONE: 9.5e3}},
     {"us": REST, "dropped": (ANY, HOPPER, ONE)},
     {"us": REST | {ANY: 9.3e3, ONE: 9.4e3}, "dropped": (f"{HOPPER}{TILED}{WORD}",)}],
)  # fmt: skip
def test_a_table_that_has_it_decides(change, ships):  # noqa: F811
    row = Measured(HERE_IS.name, 64, date=DAY, source=SHIPS, **change)
    measured._shipped()[HERE_IS.name, DEEP] = (row,)
    assert taken(DEEP, 64, MACHINE) == ("winograd.f4", row)


def test_what_this_machine_measured_decides(here, ships):  # noqa: F811
    assert here(
        64, {"winograd.f4": 9e3}, DEEP
    )  # conv --tune tries all, what is not there was wrong
    assert taken(DEEP, 64, MACHINE)[0] == "winograd.f4"


def test_rows_have_what_was_dropped_and_older_ones_are_read(tmp_path):
    row = Measured("Some GPU", 4, {"direct.tuned": 2.0}, DAY, SHIPS, dropped=(ANY,))
    older = measured.row_of(DEEP, replace(row, dropped=()))
    assert "dropped" not in older
    path = tmp_path / "measured.json"
    for made, expected in ((older, ()), (measured.row_of(DEEP, row), (ANY,))):
        path.write_text(json.dumps({"schema": measured.SCHEMA, "rows": [made]}))
        (found,) = measured.read_table(path)["Some GPU", DEEP]
        assert found == replace(row, dropped=expected)


def ran(name, us, error, status="right"):
    return {"name": name, "status": status, "median_ms": us / 1e3, "relative_error": error}


def test_what_errs_more_than_fp32_does_not_count():
    """More than cuDNN on the same data and than fp32 sums; beside no cuDNN Winograd may."""
    found = [ran("winograd.f4", 5, 1.3e-6), ran("direct.tuned", 9, 3e-7), ran(ANY, 4, 4e-7),
             ran(f"{HOPPER}{TILED}taps-272x64", 2, 5e-7), ran("winograd.f2", 1, 1, "wrong"),
             ran("best.fp32", 1, 1e-7), ran(HOPPER, 1, 1e-7, "failed")]  # fmt: skip
    us, dropped = counted(found, ran("peer", 9, 4e-7))
    assert us == pytest.approx({"direct.tuned": 9.0, ANY: 4.0})
    assert dropped == ("winograd.f2", HOPPER, "winograd.f4", f"{HOPPER}{TILED}taps-272x64")
    three_times = counted(found, ran("peer", 9, 4.4e-7))[0]
    assert three_times.keys() == us.keys() | {"winograd.f4"}
    of_sums = [*found, ran("prefetch.stride_fixed", 8, 5e-7)]
    assert counted(of_sums, ran("peer", 9, 1e-7))[0].keys() == us.keys() | {
        "winograd.f4", "prefetch.stride_fixed", f"{HOPPER}{TILED}taps-272x64"
    }  # fmt: skip
    alone, dropped = counted(found)
    assert set(alone) == {"winograd.f4", "direct.tuned"} and ANY in dropped
    assert set(counted([ran(ANY, 4, 4e-7)])[0]) == {ANY}
    unknown = [ran(ANY, 4, None)]
    assert counted(unknown, ran("peer", 9, 1.0)) == ({}, (ANY,))


def alike(name, us, rms):
    """Whose largest error says something else than that on the same images."""
    return ran(name, us, 1.0 / us) | {"same_images": {"images": 1, "largest": 1.0, "rms": rms}}


def test_errors_on_the_same_images_count_where_all_have_them():
    found = [alike("direct.tuned", 9, 3e-7), alike(ANY, 4, 4e-7), alike("winograd.f2", 3, 5e-7),
             alike("winograd.f4", 2, 4e-7)]  # fmt: skip
    us, dropped = counted(found, alike("peer", 9, 4e-7))
    assert us.keys() == {"direct.tuned", ANY, "winograd.f4"} and dropped == ("winograd.f2",)
    assert counted(found, alike("peer", 9, 1e-7))[1] == (ANY, "winograd.f2", "winograd.f4")
    assert counted(found)[1] == (ANY,)  # Winograd within its tolerance
    assert counted([alike(ANY, 4, float("nan"))], alike("peer", 9, 1e-7)) == ({}, (ANY,))
    older = ran("peer", 9, 1 / 3)
    assert counted(found, older)[0].keys() == {"direct.tuned", ANY, "winograd.f2", "winograd.f4"}
    assert counted(found, older | {"relative_error": None})[1] == (ANY,)


def test_the_table_that_ships_asks_cudnn_on_the_same_data(script):
    told = script("conv_choices").told
    found = [ran("direct.tuned", 9, 2e-7) | MAPS, ran(HOPPER, 3.21987, 4e-7) | MAPS]
    for error, us in ((5e-7, {"direct.tuned": 9.0, HOPPER: 3.22}), (3e-7, {"direct.tuned": 9.0})):
        peer = ran("PyTorch", 9, error) | {"name": script("conv_choices").NAMES["cuda"]}
        case = {"shape": "256,14,14,256,3,1,1", "images": 64, "candidates": [*found, peer]}
        assert told(case, H200) == (us, () if HOPPER in us else (HOPPER,))


def test_what_was_measured_to_err_no_more_may_sum_few_products(ships):  # noqa: F811
    problem = replace(SHALLOW, M=65)
    assert not possible(ONE, problem, MACHINE)
    ships(64, {ONE: 2.0, "direct.tuned": 5.0}, problem)
    assert taken(problem, 64, MACHINE)[0] == ONE
    rows = dict(explain(problem, 64, MACHINE))
    assert rows["its error"] == "at most that of fp32 sums of 27 products, as measured"
    assert rows[ONE] == "no model of so few products; measured 2.00 us"
    assert rows[HOPPER].startswith("not taken, sums of 27 products")


def test_words_name_one_product_each():
    for problem in (DEEP, replace(DEEP, stride=2), Conv(224, 224, 3, 64, 7, 7, 2, 3, **MAPS)):
        for kind in (mma.FP16X3, wgmma.FP16X3):
            words = [made.word for made in kind.products(problem, 64, H200)]
            assert len(words) == len(set(words)) > 2
            for word in words:
                (made,) = replace(kind, word=word).products(problem, 64, H200)
                assert made.word == word


def test_a_measured_tiling_is_what_runs(ships, monkeypatch):  # noqa: F811
    algorithm = f"{HOPPER}{TILED}{WORD}"
    ships(64, {algorithm: 1.0, "winograd.f4": 2.0}, DEEP)
    monkeypatch.setattr(choose.machines, "current", lambda: MACHINE)
    assert taken(DEEP, 64, MACHINE)[0] == algorithm
    (own,) = replace(wgmma.FP16X3, word=WORD).products(DEEP, 64, MACHINE)
    assert own != wgmma.FP16X3.plan(DEEP, 64, MACHINE)
    prepared = []
    monkeypatch.setattr(implicit, "prepare", lambda w, batch, made: prepared.append((made, batch)))
    state = choose._prepare("w", DEEP, 64)
    assert prepared == [(own, 64)] and state.variant.full_name == algorithm
    assert (
        state.says == f"takes {algorithm}, 1.00 us measured; 2.00 us of winograd.f4, which is next"
    )
    listed = find("conv", "best", "cuda").kernels(DEEP, 64)
    assert set(variant_of(algorithm).kernels(DEEP, 64)) <= set(listed)
    assert own.kernels()[0] in listed
    rows = dict(explain(DEEP, 64, MACHINE))
    assert rows["chosen"] == f"{algorithm}, as measured"
    assert rows["because"] == "1.00 us measured; 2.00 us of winograd.f4, which is next"
    assert rows[algorithm] == "a tiling of it; measured 1.00 us"


@pytest.mark.parametrize("name", [f"{HOPPER}{TILED}taps-1x1", f"winograd.f4{TILED}{WORD}"])
def test_a_tiling_that_is_there_no_more_falls_to_the_model(name, ships):  # noqa: F811
    ships(64, {name: 1.0, "winograd.f4": 2.0}, DEEP)
    assert taken(DEEP, 64, MACHINE) == (HOPPER, None)


def test_best_takes_nothing_that_no_gpu_has_run():
    assert not any(untried(name) for name in ALGORITHMS)


def test_best_lists_and_prepares_the_tensor_kernels_that_it_takes(monkeypatch):
    best, own = find("conv", "best", "cuda"), find("conv", HOPPER, "cuda")
    direct = find("conv", "direct.tuned", "cuda").kernels(DEEP, 64)
    assert best.kernels(DEEP, 64) == (*own.kernels(DEEP, 64), *direct)  # for want of memory
    launched = Run(monkeypatch)
    monkeypatch.setattr(choose.machines, "current", lambda: AMPERE)
    choose.fp32("x", choose._prepare("w", SUITE_56, 64), "y", SUITE_56)
    expected = choices(SUITE_56, 64, AMPERE)[0].algorithm
    assert launched.log == [(expected, (expected, "w", 64))]


SUITE_56 = Conv(112, 112, 64, 128, 3, 3, 1, 1, **MAPS)


def test_hopper_s_kernels_are_for_hopper_alone():
    made = [one for one in wgmma.FP16X3.products(DEEP, 64, H200) if one.split == 1]
    kernels = tuple(kernel for one in made for kernel in one.kernels())
    assert {kernel.entry for kernel in kernels} == {"tensor_taps", "tensor_wgmma"}
    assert not any(kernel.meant_for("sm_80") for kernel in kernels)
    kernels += find("conv", ANY, "cuda").kernels(DEEP, 1)
    assert not any(kernel.meant_for("sm_75") for kernel in kernels)  # best.fp32 is for sm_75 too


def test_memory_that_does_not_hold_it_gives_way_to_what_was_measured(ships, monkeypatch):  # noqa: F811
    ships(64, {"winograd.f4": 9e3, "texture.split": 9.1e3}, DEEP)
    Run(monkeypatch, {HOPPER: MemoryError("no room")})
    assert taken(DEEP, 64, MACHINE)[0] == HOPPER
    state = choose._prepare("w", DEEP, 64)
    assert state.variant.full_name == "winograd.f4"
    assert state.says == "takes winograd.f4, memory holds no other"
    assert choose._kernels(DEEP, 64) == (HOPPER, "winograd.f4", "direct.tuned")


def test_memory_that_does_not_hold_the_model_s_choice_gives_way_to_none_beside_it(
    ships,  # noqa: F811
    monkeypatch,
):
    ran = Run(monkeypatch, {HOPPER: MemoryError("no room")})
    state = choose._prepare("w", DEEP, 64)
    assert state.variant.full_name == "direct.tuned"
    assert state.says == "takes direct.tuned, memory holds no other"
    ran.full = {HOPPER: MemoryError("no room"), "direct.tuned": MemoryError("none at all")}
    with pytest.raises(MemoryError, match="none at all"):
        choose._prepare("w", DEEP, 64)


def test_another_run_s_times_and_drops_are_not_overruled_by_the_model(here, ships, monkeypatch):  # noqa: F811
    ships(64, {"winograd.f4": 9e3, "texture.split": 9.1e3}, DEEP)
    assert taken(DEEP, 64, MACHINE)[0] == HOPPER
    here(100, {HOPPER: 9e4, "winograd.f4": 9e3}, DEEP)
    assert taken(DEEP, 64, MACHINE)[0] != HOPPER
    names = [choice.algorithm for choice in choices(DEEP, 64, MACHINE)]
    for dropped, expected in ((names[:2], names[2]), (names, names[0])):
        row = Measured("it", 64, {"texture.split": 1.0}, DAY, dropped=tuple(dropped))
        monkeypatch.setattr(measured, "near", lambda *_, row=row: [row])
        assert choose.decide(DEEP, 64, MACHINE).model == expected


@pytest.mark.parametrize(
    ("arch", "expected"),
    [("sm_75", False), ("sm_80", True), ("sm_87", True), ("sm_90a", True), ("sm_103", True),
     ("sm_121", True), ("sm_70", False)],
)  # fmt: skip
def test_an_architecture_that_is_not_listed_runs_what_the_one_below_does(arch, expected):
    able = find("conv", ANY, "cuda").kernels(DEEP, 64)
    assert all(kernel.meant_for(arch) == expected for kernel in able)
    hopper = find("conv", HOPPER, "cuda").kernels(DEEP, 64)
    assert any(not kernel.meant_for(arch) for kernel in hopper) == (arch != "sm_90a")


def test_further_tilings_are_the_model_s_next():
    found = [variant.full_name for variant in further(DEEP, 64, H200)]
    assert len(found) == len(set(found)) == choose.FURTHER
    kind = wgmma.FP16X3
    words = [made.word for made in kind.products(DEEP, 64, H200)]
    own = [name.partition(TILED)[2] for name in found if name.startswith(HOPPER)]
    assert own == words[1 : 1 + len(own)] and own
    assert all(possible(name, DEEP, H200) for name in found)
    assert not further(SHALLOW, 64, H200) and not further(
        DEEP, 64, replace(H100, compute_capability=75)
    )


def test_further_tilings_are_for_tuning_alone():
    shape = Shape("", DEEP, 64)
    assert tuning.tilings(ConvRequest(tune=True), shape) and not tuning.tilings(
        ConvRequest(), shape
    )


def test_tune_tries_further_tilings_and_keeps_one_that_wins(gpu, monkeypatch):  # noqa: F811
    problem = replace(DEEP, C=64)
    winner = further(problem, 64, MACHINE)[1].full_name
    gpu[64] = {winner: 3.0, HOPPER: 4.0, ANY: 7.0}
    compiled = []
    monkeypatch.setattr(
        compared, "compile_all", lambda shapes, of, _: compiled.extend(map(of, shapes))
    )
    document, said = tune("64,14,14,256,3,1,1", "--batch", 64, "--only", "best")
    assert winner in {variant.full_name for variant in compiled[0]}
    (case,) = document["cases"]
    assert case["tuned"]["algorithm"] == winner and case["tuned"]["off"] == pytest.approx(
        4 / 3, rel=1e-3
    )
    row = next(e for e in case["candidates"] if e["name"] == winner)
    assert row["command"] == case["command"] == (
        "lenetgpu conv 64,14,14,256,3,1,1 --batch 64 --tune"
    )  # fmt: skip
    assert taken(problem, 64, MACHINE)[0] == winner and "1 of 1 choices kept" in said


ENDS = [{"bias": True}, {"relu": True}, {"bias": True, "relu": True}, {"dtype": "fp16"},
        {"bias": True, "dtype": "bf16"}, {"bias": True, "relu": True, "dtype": "fp16"}]  # fmt: skip
ENDED = replace(DEEP, bias=True, relu=True)
ends = pytest.mark.parametrize("ends", ENDS, ids=lambda e: "-".join(map(str, e.values())))


@ends
@pytest.mark.parametrize("capability", [75, 80, 90])
def test_what_a_problem_wants_is_taken_by_those_that_take_it(ends, capability, monkeypatch):
    problem, machine = replace(DEEP, **ends), replace(OTHER_H200, compute_capability=capability)
    monkeypatch.setattr(choose.machines, "current", lambda: machine)
    one = {ONE} if "dtype" not in ends else set()
    expected = {75: set(), 80: {ANY}, 90: {ANY, HOPPER, *one}}[capability]
    assert {c.algorithm for c in choices(problem, 64)} == expected
    rows = dict(explain(problem, 64, machine))
    refusal = find("conv", "best", "cuda").refusal(problem)
    if expected:
        assert refusal is None and taken(problem, 64)[0] in expected
        refused = {name for name, why in rows.items() if why.startswith("not taken, ")}
        assert refused == choose.PRICED.keys() - expected
        assert rows["winograd.f4"].startswith("not taken, supports ")
        listed = choose._kernels(problem, 64)
        assert set(variant_of(taken(problem, 64)[0]).kernels(problem, 64)) <= set(listed)
    else:
        alone = "supports a bias, ReLU, fp16 and bf16 by products on tensor cores alone"
        assert refusal == f"{alone}, and {ANY} is not taken: it needs cuda 8.0"
        assert rows == {"chosen": f"none: it {refusal}"}
        with pytest.raises(LenetError, match=r"^best.fp32 supports a bias, .* cuda 8\.0$"):
            taken(problem, 64)
    assert find("conv", "best", "cuda").refusal(DEEP) is None


def test_best_refuses_what_none_of_it_takes():
    best = find("conv", "best", "cuda").refusal
    assert best(replace(ENDED, groups=2)) == "supports one group, not 2"
    assert "is not taken: supports images" in best(Conv(4096, 4096, 64, 1, 1, 1, bias=True, **MAPS))


@ends
def test_the_table_of_the_plain_shape_counts_for_those_that_take_it(ends, ships):  # noqa: F811
    ships(64, {"winograd.f4": 1.0, ONE: 2.0, ANY: 3.0, HOPPER: 4.0}, DEEP)
    problem = replace(DEEP, **ends)
    name, found = taken(problem, 64, MACHINE)
    us = {ANY: 3.0, HOPPER: 4.0} | ({ONE: 2.0} if "dtype" not in ends else {})
    assert (name, found.us) == (min(us, key=us.get), us)
    rows = dict(explain(problem, 64, MACHINE))
    assert rows["chosen"] == f"{name}, as measured"
    without = f"without {', '.join(want for want in WANTS if want in problem.wants)}"
    assert f", 64 images, {without}, " in rows["measured on"]
    assert rows["because"].startswith(f"{us[name]:,.2f} us measured {without}; ")
    assert taken(DEEP, 64, MACHINE)[0] == "winograd.f4"
    assert "without" not in dict(explain(DEEP, 64, MACHINE))["measured on"]
    assert "lacks" not in measured.row_of(problem, found)


def test_a_table_of_none_that_takes_it_leaves_it_to_the_model(ships):  # noqa: F811
    ships(64, {"winograd.f4": 1.0, "direct.tuned": 2.0}, DEEP)
    first = choices(ENDED, 64, MACHINE)[0].algorithm
    assert taken(ENDED, 64, MACHINE) == (first, None)


def test_what_was_measured_of_the_problem_itself_comes_first(here, ships):  # noqa: F811
    ships(64, {ONE: 1.0, HOPPER: 2.0}, DEEP)
    assert taken(ENDED, 64, MACHINE)[0] == ONE
    assert here(64, {ANY: 3.0, HOPPER: 4.0}, ENDED)
    name, found = taken(ENDED, 64, MACHINE)
    assert (name, found.us, found.lacks) == (ANY, {ANY: 3.0, HOPPER: 4.0}, ())
    assert taken(DEEP, 64, MACHINE)[0] == ONE  # whose row is of the plain shape
    assert taken(replace(ENDED, relu=False), 64, MACHINE)[1].lacks == ("bias",)
    assert here(40, {HOPPER: 4.0}, DEEP)
    assert taken(ENDED, 40, MACHINE)[0] == HOPPER  # nearer


def test_few_products_are_taken_where_nothing_else_takes_what_is_wanted(ships):  # noqa: F811
    problem = replace(SHALLOW, bias=True)
    assert {c.algorithm for c in choices(problem, 64, MACHINE)} == {ANY, HOPPER, ONE}
    error = dict(explain(problem, 64, MACHINE))["its error"]
    assert error == "up to 3.6 times that of fp32 sums of 27 products"
    ships(64, {ONE: 1.0, "direct.tuned": 2.0}, SHALLOW)
    error = dict(explain(problem, 64, MACHINE))["its error"]
    assert error == "at most that of fp32 sums of 27 products, as measured"


def test_a_bias_goes_with_the_filters_and_want_of_memory_has_a_way(ships, monkeypatch):  # noqa: F811
    ran = Run(monkeypatch)
    for problem in (ENDED, replace(ENDED, dtype="fp16")):
        name = taken(problem, 64, MACHINE)[0]
        state = choose._prepare(("w", "b"), problem, 64)
        choose.fp32("x", state, "y", problem)
        assert ran.log.pop() == (name, (name, ("w", "b"), 64))
    ran.full = {HOPPER: MemoryError("no room")}
    ships(64, {HOPPER: 1.0, ONE: 2.0}, DEEP)
    assert choose._prepare(("w", "b"), ENDED, 64).variant.full_name == ONE
    ran.full[ANY] = MemoryError("no room")
    with pytest.raises(MemoryError):
        choose._prepare(("w", "b"), replace(ENDED, dtype="fp16"), 64)


def test_tune_keeps_what_was_measured_of_a_problem_with_its_ends(gpu):  # noqa: F811
    problem = replace(ENDED, C=64)
    first = choices(problem, 64, MACHINE)[0].algorithm
    slow = next(name for name in (ANY, HOPPER) if name != first)
    gpu[64] = {slow: 3.0, first: 4.0}
    document, _ = tune("64,14,14,256,3,1,1", "--batch", 64, "--bias", "--relu")
    (case,) = document["cases"]
    assert case["tuned"]["algorithm"].partition(TILED)[0] == slow and case["tuned"]["why"] is None
    assert case["command"] == ("lenetgpu conv 64,14,14,256,3,1,1 --bias --relu --batch 64 --tune")
    name, found = taken(problem, 64, MACHINE)
    assert name.partition(TILED)[0] == slow and found.lacks == ()
    assert taken(replace(DEEP, C=64), 64, MACHINE)[1] is None


@pytest.mark.gpu
@pytest.mark.parametrize("ends", [{}, *ENDS], ids=lambda e: "-".join(map(str, e.values())))
def test_what_is_taken_and_each_further_tiling_is_right(ends, rng):
    import cupy

    problem = replace(DEEP, **ends)
    x, w = random_input("conv", problem, 64, rng)
    expected = reference(x, w, problem, cupy).get()
    for variant in (find("conv", "best", "cuda"), *further(problem, 64)):
        if (why := variant.refusal(problem)) is not None:
            pytest.skip(why)
        verdict = check_variant(variant, problem, x, w, expected)
        assert verdict.passed, f"{variant.full_name}: {verdict}"


def test_what_was_tuned_with_a_bias_was_compared_with_nobody(here):  # noqa: F811
    """No algorithm that adds fp32 takes one: its time is measured, its error is not."""
    problem = replace(SHALLOW, bias=True)
    assert here(64, {ANY: 1.0}, problem)
    rows = dict(explain(problem, 64, MACHINE))
    assert rows["chosen"] == f"{ANY}, as measured"
    assert rows["its error"] == "up to 3.6 times that of fp32 sums of 27 products"
