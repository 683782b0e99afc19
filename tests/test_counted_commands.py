"""Counters in profile, compare, the suite and the docs: whose they are, when, and as what.

An `ncu` that runs nothing (pretended_ncu.py) says what its test wants.
"""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import pretended_ncu
import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.files import assets
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab import compare as shown
from lenetgpu.lab import counters as counted
from lenetgpu.lab import profile as profiling
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.measure.comparison import Candidate, Comparison
from lenetgpu.measure.counters import document
from lenetgpu.measure.counters.work import Images, Work
from lenetgpu.measure.outcome import Request
from lenetgpu.papers.course import LADDERS, MEAN, RELU
from lenetgpu.papers.course_counters import (
    NVVP,
    PASSES,
    PASSES_OF,
    described,
    kernels_of_rows,
    places,
    suite_keys,
)
from lenetgpu.papers.course_ladder import step_rows
from lenetgpu.plan import resolve
from lenetgpu.stages import find

GPU = Gpu(0, "Card", 90)
IMAGES = Images(assets.default_digits(), assets.default_weights(), 10_000)
POOL = {PASSES_OF: ["relu_in_place", "looped_mean"]}


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Install an `ncu` that is told so."""

    def install(**told):
        pretended_ncu.install(tmp_path / "bin", monkeypatch, **({"kernels": POOL} | told))

    return install


def test_every_row_of_the_suite_is_counted_but_the_serial_ones_and_the_plan():
    keys = suite_keys()
    own = places(keys)
    left = {key for key in keys if key not in own and key[1] not in PASSES}
    assert {name for _, name in left} == {
        "serial relu",
        "serial mean",
        "serial.loops",
        "plan course",
    }
    assert len(own) >= 50
    for figure in NVVP:
        assert (figure.stage, figure.variant) in own


def test_a_pass_has_the_counters_of_its_own_kernel(pretended):
    pretended()
    own = places([("pool1", PASSES_OF), ("conv2", "direct.two_maps")])
    (rows,) = document.find([Work("suite", tuple(own.values()))], IMAGES, GPU).rows
    by_key = dict(zip(own, rows, strict=True))
    relu = kernels_of_rows("pool1", RELU, by_key)
    mean = kernels_of_rows("pool1", MEAN, by_key)
    assert [row["kernels"][0]["kernel"] for row in (relu, mean)] == ["relu_in_place", "looped_mean"]
    assert (mean["stage"], mean["variant"], mean["launches"]) == ("pool1", "mean", 1)
    assert kernels_of_rows("pool2", MEAN, by_key) is None
    assert described(mean) == (
        "measured loads 12%, stores 100%, shared 50%, active warps 31%, DRAM 1,501 GB/s, "
        "75% wait for long_scoreboard"
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["profile", "--counters", "--device", "cpu"],
            ["a GPU", "device cpu (asked for)"],
        ),
        (["compare", "fc1", "--counters", "--device", "cpu"], ["expected a GPU", "device cpu"]),
        (["compare", "plans", "--counters"], ["--counters: expected a stage", "found plans"]),
    ],
)
def test_counters_are_refused_on_a_cpu_before_anything_is_timed(words, parts):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def profiled(monkeypatch, find_counters):
    """`profile --counters` of a CPU's run that says it was a GPU's, and what was done in order."""
    order = []
    outcome = profiling.infer(Request(limit=70, device="cpu", plan="tiled", timing=True))

    def infer(request, progress):
        order.append("timed")
        outcome.gpu = GPU
        return outcome

    def count(works, images, gpu):
        order.append((works, images))
        return find_counters(works, images, gpu)

    monkeypatch.setattr(profiling, "choose_device", lambda *_: (GPU, "found"))
    monkeypatch.setattr(profiling, "infer", infer)
    monkeypatch.setattr(profiling.counters_of, "find", count)
    return profiling.profile(Request(skip=3, chunk=7), counters=True), order


def test_profile_counts_its_plan_when_every_time_is_taken(pretended, monkeypatch):
    pretended()
    found, order = profiled(monkeypatch, document.find)
    (works, images) = order[1]
    assert order[0] == "timed" and works == [Work.of(resolve("tiled", "cpu"))]
    assert (images.count, images.data) == (70, assets.default_digits())
    counters = found.counters
    assert counters["source"] == "ncu" and counters["rows"][0]["stage"] == "conv1"
    assert json.loads(found.as_json())["counters"] == counters
    rows = {row["name"]: row for row in csv.DictReader(found.table().csv().splitlines())}
    assert float(rows["conv1"]["counters.global_load_efficiency"]) == 0.125
    assert rows["input"]["counters.global_load_efficiency"] == ""
    lines = found.table().markdown().splitlines()
    at = [cell.strip() for cell in lines[0].split("|")].index("loads eff.")
    cells = {line.split("|")[1].strip(): line.split("|")[at].strip() for line in lines[2:]}
    assert (cells["conv1"], cells["input"]) == ("12.5%", "-")


def test_ctrl_c_under_ncu_leaves_what_was_timed(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    found, _ = profiled(monkeypatch, interrupt)
    assert found.outcome.interrupted and found.rows and found.counters is None


def compared(names, **more):
    """A comparison of pool1's variants that were all right, and its document."""
    candidates = []
    for name in names:
        variant = find("pool", name, "cuda")
        bench = object.__new__(StageBench)
        bench.variant, bench.problem = variant, variant.laid_out(stage_of("pool1").problem)
        candidates.append(Candidate(name, lambda: None, status="right", bench=bench))
    comparison = Comparison("pool1", names[0], candidates)
    entries = [{"name": name, "status": "right"} for name in names]
    return comparison, {"what": "pool1", "interrupted": False, "candidates": entries} | more


def test_each_candidate_has_its_own_and_a_guest_none(pretended):
    pretended(errors={"layout.quad_looped": "needs more memory"})
    comparison, held = compared(["fused.maps_looped", "layout.quad_looped", PASSES_OF])
    comparison.candidates[0].status = "wrong"
    comparison.candidates[2].bench = SimpleNamespace(problem=None)  # no bench of the package
    counted.count_candidates(comparison, held, IMAGES, GPU, lambda line: None)
    wrong, failed, guest = (entry["counters"] for entry in held["candidates"])
    assert wrong is guest is None and failed["error"] == "needs more memory"
    assert held["counters"]["source"] == "ncu"
    assert all(candidate.bench is None for candidate in comparison.candidates)


def test_what_was_interrupted_is_not_counted(monkeypatch):
    monkeypatch.setattr(document, "find", lambda *_: pytest.fail("counted"))
    comparison, held = compared([PASSES_OF], interrupted=True)
    counted.count_candidates(comparison, held, IMAGES, GPU, lambda line: None)
    assert held["candidates"][0]["counters"] is None and "counters" not in held


def test_columns_of_counters_follow_those_of_times(pretended):
    pretended()
    comparison, held = compared(["fused.maps_looped", PASSES_OF])
    counted.count_candidates(comparison, held, IMAGES, GPU, lambda line: None)
    held |= {"command": "compare", "reference_again": None}
    for entry in held["candidates"]:
        entry |= {"note": "", "median_ms": 1.0}
    rows = list(csv.DictReader(shown.table(held).csv().splitlines()))
    assert [row["counters.occupancy"] for row in rows] == ["0.3114", "0.3114"]
    del held["counters"]
    assert "counters" not in shown.table(held).csv()


def suite():
    """Rows of the suite that were right, with times, and one that was wrong."""
    rows = [
        {"stage": stage, "variant": name, "status": "right", "median_ms": 1.0, "explanation": "e"}
        for stage, ladder in LADDERS
        for name, _ in ladder
    ]
    rows.append({"stage": "pool1", "variant": "fused.relu_in_mean", "status": "wrong"})
    return {"what": "suite course", "interrupted": False, "rows": rows}


def test_the_ladder_says_why_by_counters(pretended):
    pretended()
    held = suite()
    counted.count_suite(held, IMAGES, GPU, lambda line: None)
    by_key = {(row["stage"], row["variant"]): row for row in held["rows"]}
    assert by_key["pool1", MEAN]["explanation"].startswith("e, measured loads 12%")
    assert by_key["pool1", "fused.relu_in_mean"]["counters"] is None
    steps = {step["step"]: step["why"] for step in step_rows(held["rows"])}
    why = steps["direct.basic to direct.tight"]
    assert why.count("wait for long_scoreboard") == 2 and " -> e, measured" in why
    assert "measured" not in by_key["all", LADDERS[-1][1][0][0]]["explanation"]


def test_what_is_counted_from_addresses_is_no_reason_that_was_measured(monkeypatch):
    from lenetgpu.measure.counters import ncu

    monkeypatch.setattr(ncu.shutil, "which", lambda *_, **__: None)
    held = suite()
    counted.count_suite(held, IMAGES, GPU, lambda line: None)
    assert held["counters"]["source"] == "counted"
    assert {row.get("explanation") for row in held["rows"]} == {"e", None}
    by_key = {(row["stage"], row["variant"]): row for row in held["rows"]}
    assert by_key["conv2", "direct.two_maps"]["counters"]["global_store_efficiency"] == 0.25


@pytest.fixture
def measured(pretended, script):
    pretended()
    plans = {name: resolve(name, "cuda") for name in ("course", "fp16x3")}
    made = json.loads(json.dumps(script("counters").measured(GPU, plans, 10_000)))
    return made | {"commit": "0123456789abcdef"}


def test_every_kernel_of_the_file_is_hashed(measured, script):
    found = script("measured").kernels_of(measured)
    for name in ("pool/looped.cu", "conv/course/maps.cu", "fused/wgmma/fp16x3_features.cu"):
        assert f"lenetgpu/stages/{name}" in found


def test_without_ncu_there_is_no_file(script, monkeypatch):
    from lenetgpu.errors import LenetError
    from lenetgpu.measure.counters import ncu

    monkeypatch.setattr(ncu.shutil, "which", lambda *_, **__: None)
    with pytest.raises(LenetError, match="expected ncu on PATH"):
        script("counters").measured(GPU, {}, 10_000)
