"""Which times the table that ships is made of: of whose GPU, and of which kernel."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from test_conv_tuned import (  # noqa: F401
    DAY,
    MAPS,
    NAMED_H100,
    Bench,
    entry,
    gpu,
    here,
    own_cache,
    planted,
    ships,
    tune,
)

from lenetgpu.dispatch import measured
from lenetgpu.dispatch.algorithms import TILED
from lenetgpu.dispatch.measured import counted
from lenetgpu.gpu.machines import H100, H200, USUAL
from lenetgpu.lab.conv.given import taken as taken_shape
from lenetgpu.measure import document
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import wgmma
from lenetgpu.stages.conv.tf32 import wgmma as tf32

HALVES, ONE = "tensor.wgmma_fp16x3", "tensor.wgmma_tf32x3"
SHAPE = "64,56,56,64,3,1,1"
PROBLEM = Conv(56, 56, 64, 64, 3, 3, 1, 1, **MAPS)


@pytest.fixture
def told(script):
    """What counts of candidates of SHAPE, beside one that adds fp32."""

    def of(*entries, shape=SHAPE, machine=H200, **more):
        plain = entry("direct.tuned", 9.0, relative_error=1e-6)
        case = {"shape": shape, "images": 64, "candidates": [plain, *entries]}
        return {*script("conv_choices").told(case | more, machine)[0]} - {"direct.tuned"}

    return of


def product(name, us=1.0, **more):
    return entry(name, us, relative_error=1e-7, **more)


def test_times_of_the_kernel_that_is_launched_now_count(told):
    own = wgmma.FP16X3.plan(PROBLEM, 64, H200).tiling.entry
    other = {"tensor_taps": "tensor_wgmma", "tensor_wgmma": "tensor_taps"}[own]
    assert told(product(HALVES, launched=["tensor_halves", own])) == {HALVES}
    assert told(product(HALVES, launched=["tensor_halves", other])) == set()
    assert told(product(HALVES)) == {HALVES}  # older documents do not say
    fp32 = [entry(name, 8.0, launched=["x"]) for name in ("winograd.f2", "texture.split")]
    assert told(*(e | {"relative_error": 1e-7} for e in fp32)) == {"winograd.f2", "texture.split"}


def test_a_tiling_counts_by_its_own_kernel_while_it_is_there(told):
    found = wgmma.FP16X3.products(PROBLEM, 64, H200)
    for entry_ in ("tensor_taps", "tensor_wgmma"):
        made = next(one for one in found if one.tiling.entry == entry_)
        name = f"{HALVES}{TILED}{made.word}"
        for launched in ("tensor_taps", "tensor_wgmma"):
            expected = {name} if launched == entry_ else set()
            assert told(product(name, launched=[launched])) == expected
    assert told(product(f"{HALVES}{TILED}taps-1x1")) == set()


def test_a_time_of_another_tiling_stands_until_the_model_promises_more(told):
    made = wgmma.FP16X3.plan(PROBLEM, 64, H200)
    threads, shared = made.tiling.threads, made.tiling.shared_bytes(made.layout)
    us = wgmma.FP16X3.clocks(made, 64, H200) / H200.clock_mhz
    own, other = ({"block": [threads, 1, 1], "shared_bytes": b} for b in (shared, shared - 16))
    fewer = own | {"block": [threads - 128, 1, 1]}
    for slow, how, expected in (
        (2.0, own, {HALVES}), (1.2, other, {HALVES}), (1.4, other, set()), (1.4, fewer, set()),
    ):  # fmt: skip
        assert told(product(HALVES, slow * us, **how)) == expected, (slow, how)


def test_a_product_in_one_launch_counts_by_its_kernel_or_its_threads(told):
    own = tf32.plan(PROBLEM, 64, H200)
    assert told(product(ONE, launched=[own.kernel().entry])) == {ONE}
    assert told(product(ONE, launched=["tf32_another"], block=[own.threads, 1, 1])) == set()
    assert told(product(ONE, block=[own.threads, 1, 1])) == {ONE} == told(product(ONE))
    assert told(product(ONE, block=[own.threads + 32, 1, 1])) == set()


def test_the_plan_is_that_of_the_gpu_that_was_measured(script, monkeypatch, told):
    choices = script("conv_choices")
    names = (NAMED_H100, "NVIDIA H200", "Some GPU")
    machines = [choices.machine_of({"device": {"name": name}}) for name in names]
    assert machines == [H100, H200, USUAL]
    asked = []
    monkeypatch.setitem(choices.PRICED, ONE, lambda *a: (asked.append(a), (0.0, tf32.plan(*a)))[1])
    told(product(ONE, launched=["x"]), machine=H100)
    assert asked == [(PROBLEM, 64, H100)]


def test_every_gpu_has_its_rows(script, tmp_path):
    two = [entry("direct.tuned", 2.0), entry("texture.split", 3.0)]
    for name in (NAMED_H100, "NVIDIA H200"):
        device = {"kind": "cuda", "name": name}
        planted(tmp_path, "conv/a.json", DAY, two, device=device)
        (tmp_path / "some-gpu").rename(tmp_path / script("measured").folder_of(device))
    table = script("conv_choices").table(tmp_path)
    assert [row["device"] for row in table["rows"]] == [NAMED_H100, "NVIDIA H200"]
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(table))
    problem = Conv(9, 9, 16, 16, 3, 3, **MAPS)
    assert {*measured.read_table(path)} == {(NAMED_H100, problem), ("NVIDIA H200", problem)}


def test_a_bias_behind_the_shape_is_the_problem_s(script, told):
    problem = script("conv_choices").problem_of
    ends = {"bias": True, "relu": True, "dtype": "fp16"}
    case = {"shape": f"{SHAPE} --bias --relu --dtype fp16", **ends}
    made = problem(case)
    assert (made.bias, made.relu, made.dtype, made.H) == (True, True, "fp16", 56)
    assert problem({"shape": SHAPE}) == PROBLEM
    line = "mb1ic64ih56oc64oh28kh3sh2ph1dh1 --bias"
    plain = taken_shape(line.partition(" ")[0]).problem
    assert problem({"shape": line, "bias": True}).bias and problem({"shape": line}).C == plain.C
    own = [wgmma.FP16X3.plan(PROBLEM, 64, H200).tiling.entry]
    assert told(product(HALVES, launched=own), **(case | ends)) == {HALVES}


def test_documents_name_what_a_candidate_launched(gpu, monkeypatch):  # noqa: F811
    gpu[16] = {}
    document_, _ = tune("16,9,9,16,3", "--batch", 1)
    assert not any("launched" in row for row in document_["cases"][0]["candidates"])
    launched = [SimpleNamespace(kernel=SimpleNamespace(entry=e)) for e in ("in", "sum", "sum")]
    monkeypatch.setattr(Bench, "launched", launched)
    monkeypatch.setattr(document, "launch_json", lambda *_: {})
    document_, _ = tune("16,9,9,16,3", "--batch", 1)
    (case,) = document_["cases"]
    timed = [row for row in case["candidates"] if row.get("median_ms")]
    assert timed and all(row["launched"] == ["in", "sum"] for row in timed)


def test_tune_keeps_no_winograd_that_errs_more_by_the_model(gpu):  # noqa: F811
    gpu[16] = {"winograd.f4": 1.0, "winograd.f2": 2.0}
    document_, _ = tune("16,9,9,16,3", "--batch", 1)
    (case,) = document_["cases"]
    assert case["tuned"]["algorithm"] == "winograd.f2"
    assert "winograd.f4" not in case["tuned"]["us"]


def test_where_all_had_the_same_images_the_limit_is_cudnn_s_alone():
    """Our own fp32 sums may err more than a plan of cuDNN's; older files know the largest alone."""

    def of(name, rms):
        return entry(name, 1.0, relative_error=rms, same_images={"rms": rms})

    peer, sums = of("torch cudnn", 2e-7), of("direct.tuned", 6e-7)
    near, far = of("tensor.wgmma_fp16x3", 2e-7), of("winograd.f2", 3e-7)
    us, dropped = counted([sums, near, far], peer)
    assert {*us} == {"direct.tuned", "tensor.wgmma_fp16x3"} and dropped == ("winograd.f2",)
    older = {name: value for name, value in far.items() if name != "same_images"}
    assert counted([sums, near, older], peer)[1] == ()
    assert counted([sums, near, of("tensor.fp16x3", 7e-7)])[1] == ("tensor.fp16x3",)
