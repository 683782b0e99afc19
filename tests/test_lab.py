"""Commands of the laboratory: statistics, comparisons, suites, traces, tables, plots."""

import json
from dataclasses import replace

import numpy as np
import pytest
from terminal import run

from lenetgpu.check.reference import network_reference
from lenetgpu.dispatch import candidates as comparing
from lenetgpu.errors import LenetError
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.network import SPANS, STAGES
from lenetgpu.papers import course
from lenetgpu.papers.course_ladder import PASSES_OF, step_rows
from lenetgpu.plan import resolve
from lenetgpu.stages import find, variants
from lenetgpu.stages.registry import cpu, make_variant


def test_suite_covers_every_convolution_of_the_report():
    kinds = {unit.name: unit.kind for unit in (*STAGES, *SPANS)}
    named = [(figure.stage, figure.variant) for figure in course.FIGURES]
    named += [
        (stage, name) for _, _, stage, name in (*course.UNTIMED, *course.BEYOND, *course.AFTER)
    ]
    covered = {
        (kinds[stage], PASSES_OF if name in (course.RELU, course.MEAN) else name)
        for stage, name in named
        if name not in (course.SERIAL_RELU, course.SERIAL_MEAN, course.TOTAL)
    }
    of_the_report = {
        (v.kind, v.full_name)
        for v in variants("conv", "cuda")
        if (v.paper or "").startswith("report ")
    }
    assert of_the_report and of_the_report <= covered
    assert covered <= {(v.kind, v.full_name) for v in variants()}


def test_table_10_matches_the_layouts():
    for row in course.layout_rows():
        assert row["report_before"] == row["before"]
        kept = [extent for extent in row["report_after"] if extent != 1]
        assert kept == [extent for extent in row["after"] if extent != 1], row


def test_ladder_gives_a_verdict_for_each_step():
    def row(variant, ms):
        return {"stage": "conv1", "variant": variant, "report_ms": 1.0, "median_ms": ms}

    times = {"direct.basic": 4.0, "direct.tight": 4.01, "direct.shared_constant": 2.0,
             "direct.whole_warps": 3.0}  # fmt: skip
    steps = step_rows([row(name, ms) for name, ms in times.items()])
    assert [step["verdict"] for step in steps] == ["gone", "holds", "turned"]
    assert steps[1]["report_gain"] == pytest.approx(2000 / 450)


def test_block_plan_runs_spans_and_override_splits_them():
    plan = resolve("block", "cuda")
    assert [bound.name for bound in plan.stages] == [
        "conv1+pool1", "conv2+pool2", "fc1", "fc2", "argmax",
    ]  # fmt: skip
    split = resolve("block", "cuda", {"pool1": "basic"})
    assert [bound.name for bound in split.stages][:3] == ["conv1", "pool1", "conv2+pool2"]
    chosen = resolve("tiled", "cuda", {"conv2": "block.unrolled"})
    assert "conv2+pool2" in [bound.name for bound in chosen.stages]
    with pytest.raises(LenetError, match="pool2: variant block.unrolled of conv2 includes it"):
        resolve("tiled", "cuda", {"conv2": "block", "pool2": "basic"})


def test_wrong_variant_fails_its_check(shipped_weights, digits):
    images = digits.images[:200]
    facts = network_reference(images, shipped_weights)
    right = find("conv", "serial", "cpu")

    def shifted(x, w, y, problem):
        """Compute a convolution shifted by one pixel."""
        right.launch(x, right.prepare(w, problem, len(x)), y, problem)
        y[:] = np.roll(y, 5, axis=2)

    wrong = make_variant(
        shifted, kind="conv", family="broken", reads="NHWC", writes="NHWC", needs=cpu()
    )
    checked = StageBench(wrong, stage_of("conv1"), 20, facts).check()
    assert not checked.verdict.passed
    assert checked.first_bad == "conv1"
    assert checked.flips > 0


def test_wrong_candidate_exits_with_1(monkeypatch):
    broken = make_variant(
        lambda x, y, problem: None,
        kind="argmax", family="broken", reads="NC", writes="N", needs=cpu(),
    )  # fmt: skip
    broken = replace(broken, name="nothing", run=lambda x, y, problem: None)
    real = comparing.variants
    monkeypatch.setattr(comparing, "variants", lambda *a: [*real(*a), broken])
    result = run("compare", "argmax", "--batch", 50, "--device", "cpu", "--seconds", 0.1, code=1)
    assert "WRONG: broken.nothing" in result.stderr
    row, note = (line for line in result.stdout.splitlines() if "broken.nothing" in line)
    assert "WRONG" in row and "first bad stage argmax" in note


def test_compare_on_cpu_writes_every_format(tmp_path):
    what = "pool2"
    out, table, md = tmp_path / "c.json", tmp_path / "c.csv", tmp_path / "c.md"
    run("compare", what, "--batch", 20, "--device", "cpu", "--seconds", 1, "--rounds", 6,
        "--json", out, "--csv", table, "--markdown", md, code=0)  # fmt: skip
    document = json.loads(out.read_text())
    kind = stage_of(what).kind
    assert {e["name"] for e in document["candidates"]} == {
        v.full_name for v in variants(kind, "cpu")
    }
    for entry in document["candidates"]:
        assert entry["status"] == "right"
        assert entry["label_flips"] == 0
        assert len(entry["samples_ms"]) >= 5
        assert entry["ratio"]["low"] <= entry["ratio"]["median"] <= entry["ratio"]["high"]
        assert entry["name"] in table.read_text()
        assert entry["name"] in md.read_text()


def test_suite_runs_without_gpu(tmp_path):
    pytest.importorskip("vl_convert")
    out, picture = tmp_path / "suite.json", tmp_path / "ladder.png"
    run("compare", "--suite", "report", "--batch", 1, "--device", "cpu",
        "--json", out, "--plot", picture, code=0)  # fmt: skip
    document = json.loads(out.read_text())
    serial = [r for r in document["rows"] if r["variant"] == "serial.loops"]
    assert serial
    assert all(row["status"] == "right" for row in serial)
    assert {row["status"] for row in document["rows"]} == {"right", "absent"}
    assert picture.stat().st_size > 10_000


def test_profile_writes_every_format(tmp_path):
    names = {form: tmp_path / f"p.{form}" for form in ("json", "csv", "markdown", "trace")}
    options = [word for form, path in names.items() for word in (f"--{form}", path)]
    result = run("profile", "--limit", 200, "--device", "cpu", "--plan", "tiled", *options, code=0)
    assert "hint:" in result.output
    document = json.loads(names["json"].read_text())
    assert document["command"] == "profile"
    total = sum(row["median_ms"] for row in document["stages"])
    compute = document["timing_ms"]["compute"]["median"]
    assert total + document["residual_ms"] == pytest.approx(compute)
    for row in document["stages"]:
        assert row["roofline"] > 0
        assert row["bound"] in ("compute", "memory")
    assert len(names["csv"].read_text().splitlines()) == 1 + len(document["stages"])
    assert names["markdown"].read_text().count("\n") == 2 + len(document["stages"])
    events = json.loads(names["trace"].read_text())["traceEvents"]
    shown = {event["name"] for event in events if event["ph"] == "X"}
    assert {"conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "argmax"} <= shown
    assert sum(e["dur"] for e in events if e["ph"] == "X") > 0


def test_suite_row_without_memory_is_skipped(monkeypatch, shipped_weights, rng):
    from lenetgpu.papers import course_ladder as suites

    def refuse(*arguments):
        raise MemoryError("Unable to allocate 7 GiB")

    images = rng.integers(0, 256, (4, 28, 28, 1), dtype=np.uint8)
    monkeypatch.setattr(suites, "StageBench", refuse)
    suite = suites.CourseRun(
        "cpu", images, network_reference(images, shipped_weights), None, lambda line: None
    )
    found = suite._measure("argmax", "serial.loops")
    assert found["status"] == "skipped"
    assert "7 GiB" in found["note"]
