"""The table of measured convolutions: the times that scripts/conv_choices.py selects."""

import json
from dataclasses import replace

import pytest

from lenetgpu.dispatch import measured
from lenetgpu.dispatch.algorithms import TILED
from lenetgpu.gpu.machines import H200
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import wgmma
from lenetgpu.stages.conv.tf32 import wgmma as tf32

MAPS = {"reads": "NCHW", "writes": "NCHW"}
DAY, NAMED_H100 = "2026-11-22", "NVIDIA H100 80GB HBM3"
SPLIT, ONE = "tensor.wgmma_fp16x3", "tensor.wgmma_tf32x3"
SHAPE = "64,56,56,64,3,1,1"
PROBLEM = Conv(56, 56, 64, 64, 3, 3, 1, 1, **MAPS)
TWO = [("direct.tuned", 2.0), ("winograd.f2", 3.0)]


def test_table_matches_the_measurements(script):
    assert script("conv_choices").text() == measured.TABLE.read_text()


def planted(root, name, date, entries_, **more):
    case = {"shape": "16,9,9,16,3,1,0", "images": 4, "label": "x", "candidates": entries_}
    document = {"date": date, "device": {"kind": "cuda", "name": "Some GPU"}, "cases": [case]}
    path = root / "some-gpu" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document | more))


def entry(name, us, status="right", **more):
    return {"name": name, "status": status, "median_ms": us / 1e3} | MAPS | more


def test_table_prefers_fullest_then_newest_run(script, tmp_path):
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
    [{"status": "wrong"}, {"name": "best.fp32"}, {"reads": "NHWC"}, {"median_ms": None}],
    ids=str,
)
def test_table_omits_unusable_candidates(change, script, tmp_path):
    table = script("conv_choices").table
    third = entry("texture.split", 1.0) | change
    planted(tmp_path, "conv/a.json", DAY, [entry("direct.tuned", 2.0), third])
    assert table(tmp_path)["rows"] == []  # one alone is no choice
    planted(tmp_path, "conv/a.json", DAY,
            [entry("direct.tuned", 2.0), entry("winograd.f2", 3.0), third])  # fmt: skip
    (row,) = table(tmp_path)["rows"]
    assert row["us"] == {"direct.tuned": 2.0, "winograd.f2": 3.0}


def test_table_omits_quick_cpu_and_refused_runs(script, tmp_path):
    table, two = script("conv_choices").table, [entry(*one) for one in TWO]
    for more in ({"quick": True}, {"device": {"kind": "cpu", "name": "x"}}):
        planted(tmp_path, "conv/a.json", DAY, two, **more)
        assert table(tmp_path)["rows"] == []
    case = {"shape": "16,9,9,16,3,1,0 --bias --dtype fp16", "images": 4, "label": "x"}
    entries = [entry("direct.grouped", 2.0), entry("best.fp32", 1.0, "refused")]
    planted(tmp_path, "conv/a.json", DAY, [], cases=[case | {"candidates": entries}])
    assert table(tmp_path)["rows"] == []


@pytest.fixture
def timed(script):
    """Return a function that names the candidates of SHAPE that count, next to an fp32 kernel."""

    def of(*entries, shape=SHAPE, machine=H200, **more):
        plain = entry("direct.tuned", 9.0, relative_error=1e-6)
        case = {"shape": shape, "images": 64, "candidates": [plain, *entries]}
        return {*script("conv_choices").measured_us(case | more, machine)[0]} - {"direct.tuned"}

    return of


def product(name, us=1.0, **more):
    return entry(name, us, relative_error=1e-7, **more)


def test_table_uses_times_of_the_current_kernel(timed):
    own = wgmma.FP16X3.plan(PROBLEM, 64, H200).tiling.entry
    other = {"tensor_halo": "tensor_wgmma", "tensor_wgmma": "tensor_halo"}[own]
    assert timed(product(SPLIT, launched=["tensor_split", own])) == {SPLIT}
    assert timed(product(SPLIT, launched=["tensor_split", other])) == set()
    assert timed(product(SPLIT)) == {SPLIT}  # older documents do not say


def test_tilings_are_tied_to_their_kernel(timed):
    found = wgmma.FP16X3.products(PROBLEM, 64, H200)
    for entry_ in ("tensor_halo", "tensor_wgmma"):
        made = next(one for one in found if one.tiling.entry == entry_)
        name = f"{SPLIT}{TILED}{made.word}"
        for launched in ("tensor_halo", "tensor_wgmma"):
            expected = {name} if launched == entry_ else set()
            assert timed(product(name, launched=[launched])) == expected
    assert timed(product(f"{SPLIT}{TILED}halo-1x1")) == set()


def test_time_of_another_tiling_counts_until_model_predicts_more(timed):
    made = wgmma.FP16X3.plan(PROBLEM, 64, H200)
    threads, shared = made.tiling.threads, made.tiling.shared_bytes(made.layout)
    us = wgmma.FP16X3.cycles(made, 64, H200) / H200.clock_mhz
    own, other = ({"block": [threads, 1, 1], "shared_bytes": b} for b in (shared, shared - 16))
    fewer = own | {"block": [threads - 128, 1, 1]}
    for slow, how, expected in (
        (2.0, own, {SPLIT}), (1.2, other, {SPLIT}), (1.4, other, set()), (1.4, fewer, set()),
    ):  # fmt: skip
        assert timed(product(SPLIT, slow * us, **how)) == expected, (slow, how)


def test_single_launch_rows_match_kernel_and_threads(timed):
    own = tf32.plan(PROBLEM, 64, H200)
    assert timed(product(ONE, launched=[own.kernel().entry])) == {ONE}
    assert timed(product(ONE, launched=["tf32_another"], block=[own.threads, 1, 1])) == set()
    assert timed(product(ONE, block=[own.threads, 1, 1])) == {ONE} == timed(product(ONE))
    assert timed(product(ONE, block=[own.threads + 32, 1, 1])) == set()


def test_cudnn_error_on_the_same_data_is_the_limit(script):
    """Without errors on the same images, the predicted error of Winograd counts."""
    table = script("conv_choices")

    def ran(name, us, error, **more):
        return entry(name, us, relative_error=error, **more)

    found = [ran("direct.tuned", 9, 2e-7), ran(SPLIT, 3.21987, 4e-7)]
    for error, us in ((5e-7, {"direct.tuned": 9.0, SPLIT: 3.22}), (3e-7, {"direct.tuned": 9.0})):
        peer = ran(table.NAMES["cuda"], 9, error)
        case = {"shape": "256,14,14,256,3,1,1", "images": 64, "candidates": [*found, peer]}
        assert table.measured_us(case, H200) == (us, () if SPLIT in us else (SPLIT,))
    case = {"shape": "128,28,28,128,3,1,1", "images": 64}
    older = [ran(name, 9, 1e-7) for name in ("direct.tuned", "winograd.f4", table.NAMES["cuda"])]
    assert table.measured_us(case | {"candidates": older}, H200)[1] == ("winograd.f4",)
    newer = [e | {"same_images": {"rms": 1e-7}} for e in older]
    assert table.measured_us(case | {"candidates": newer}, H200)[1] == ()


def test_former_names_of_tilings_and_kernels_are_read(timed):
    former = {"halo": "taps", "winograd": "pairs"}
    for made in wgmma.FP16X3.products(PROBLEM, 64, H200):
        kind, _, size = made.word.partition("-")
        if kind in former:
            word = f"{former[kind]}-{size}"
            assert replace(wgmma.FP16X3, word=word).products(PROBLEM, 64, H200) == (made,)
            name = f"{SPLIT}{TILED}{word}"
            assert timed(product(name, launched=["tensor_taps"])) == {name}
