"""scripts/measure.py takes every figure's file; peers' rows are made the same on every device."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.check.truth import reference_scores, reference_stages
from lenetgpu.gpu.nvrtc import source_hash
from lenetgpu.papers import course

DOCUMENT = {
    "command": "infer",
    "date": "2026-11-22",
    "device": {"kind": "cpu", "name": "X", "cores": 2},
    "data": "/somewhere/else/t10k",
    "plan": [{"stages": ["conv1"], "variant": "tiled.blocked"}],
    "stages": [],
}
WRITES = f"import json, sys; json.dump({DOCUMENT}, open(sys.argv[1], 'w')); print('said')"


def job(measure, target, code, text=""):
    command = (sys.executable, "-c", code, "{json}")
    return measure.Job("plans", target, command, 1, text=text)


def test_every_measured_file_of_a_device_has_a_job(script):
    measure = script("measure")
    for folder, jobs in (("nvidia-h200", measure.gpu_jobs), ("cpu-2-cores", measure.cpu_jobs)):
        made = {one.target for one in jobs(quick=False)}
        made |= {name for one in jobs(quick=False) for name in (one.text, one.picture) if name}
        files = (ROOT / "docs" / "measured" / folder).rglob("*.*")
        there = {str(path.relative_to(ROOT / "docs" / "measured" / folder)) for path in files}
        assert there <= made | {"course.png", "streams.png", "sanitize.json", measure.RUN}


def test_what_fails_is_said_and_the_rest_goes_on(script, tmp_path):
    measure = script("measure")
    jobs = [
        job(measure, "plans/a.json", "import sys; print('no such plan'); sys.exit(1)"),
        job(measure, "plans/b.json", "pass"),
        job(measure, "infer.json", WRITES, text="infer.txt"),
        measure.Job("plans", "plans/c.json", (sys.executable, "{mnist}"), 1),
    ]
    said = []
    failed = measure.run(jobs, tmp_path, False, said.append)
    assert [line.partition(":")[0] for line in failed] == [
        "plans/a.json", "plans/b.json", "plans/c.json",
    ]  # fmt: skip
    assert "exit code 1; no such plan" in failed[0]
    assert "LENETGPU_MNIST: expected" in failed[2]
    assert "about 0 minutes" in said[0] and len(said) > 2 * len(jobs)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == [
        "infer.json", "infer.txt", "run.json",
    ]  # fmt: skip
    assert (tmp_path / "infer.txt").read_text() == "said\n"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.delenv("LENETGPU_MNIST", raising=False)
    monkeypatch.delenv("LENETGPU_COURSE", raising=False)


def test_a_file_keeps_what_it_had_where_its_command_fails(script, tmp_path):
    measure = script("measure")
    (tmp_path / "infer.json").write_text("before")
    (failed,) = measure.run(
        [job(measure, "infer.json", "open(__import__('sys').argv[1], 'w').write('{')")],
        tmp_path, False, lambda line: None,
    )  # fmt: skip
    assert "expected its JSON" in failed
    assert (tmp_path / "infer.json").read_text() == "before"


def test_a_command_that_hangs_is_ended(script, tmp_path, monkeypatch):
    measure = script("measure")
    monkeypatch.setattr(measure, "LEAST_PATIENCE_S", 0.3)
    monkeypatch.setattr(measure, "PATIENCE", 0.1)
    (failed,) = measure.run(
        [job(measure, "infer.json", "print('hm', flush=True); import time; time.sleep(60)")],
        tmp_path, False, lambda line: None,
    )  # fmt: skip
    assert "it ran past 0 s; hm" in failed


def test_a_document_gets_kernels_and_no_path_and_keeps_its_commit(script):
    measure = script("measure")
    found = measure.finished(json.loads(json.dumps(DOCUMENT)), quick=True)
    assert found["data"] == "t10k"
    assert found["quick"]
    tiled = "lenetgpu/stages/conv/tiled.py"
    assert found["kernels"][tiled] == source_hash(ROOT / tiled)
    assert "lenetgpu/cpu/tile.py" in found["kernels"]
    kept = measure.finished(DOCUMENT | {"commit": "abc"}, quick=False)
    assert kept["commit"] == "abc" and "quick" not in kept


@pytest.mark.parametrize(
    ("commit", "said"),
    [(None, "commit not recorded"), ("a" * 40, "commit " + "a" * 10),
     ("a" * 40 + "+", "commit " + "a" * 10 + "+"), ("abc1234", "commit abc1234")],
)  # fmt: skip
def test_a_table_says_the_commit_and_whether_it_was_changed(script, commit, said):
    document = DOCUMENT | {"commit": commit, "driver": "580.1"}
    assert script("measured").where(document) == f"X, 2 cores, 2026-11-22, {said}, driver 580.1"


def kernels(script, *parts):
    measured = script("measured")
    return set(measured.kernels_of(measured.load("nvidia-h200", *parts)))


def test_a_document_names_the_kernels_that_it_ran_and_no_others(script):
    fused, conv = "lenetgpu/stages/fused/wgmma/", "lenetgpu/stages/conv/"
    assert kernels(script, "plans", "int8.json") == {
        f"{fused}int8_features.cu", f"{fused}fp16_classifier.cu",
    }  # fmt: skip
    course = kernels(script, "course.json")
    assert {f"{conv}direct.cu", "lenetgpu/measure/roofline.cu"} <= course
    assert not any(name.startswith(fused) for name in course)
    peers = kernels(script, "peers.json")
    assert f"{fused}int8_features.cu" in peers and f"{conv}direct.cu" not in peers
    overfeat = kernels(script, "conv", "overfeat.json")
    assert {f"{conv}texture.cu", f"{conv}tuned/winograd.cu"} <= overfeat
    assert f"{conv}prefetch/single.cu" not in overfeat  # one channel only


def test_a_candidate_without_a_time_brings_no_kernel(script):
    measured = script("measured")
    document = measured.load("nvidia-h200", "conv", "overfeat.json")
    for case in document["cases"]:
        for entry in case["candidates"]:
            if entry["name"].startswith(("texture", "best")):
                entry["status"] = "skipped"
    assert "lenetgpu/stages/conv/texture.cu" not in measured.kernels_of(document)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--device", "cpu", "--dry-run"], 0, "cpu_peers.py"),
        (["--device", "cpu", "--only", "infer", "--dry-run"], 0, "infer.json"),
        (
            ["--device", "cpu", "--only", "conv"],
            2,
            "some of peers, infer, weights, scale, instrument, cold, cells on cpu",
        ),
        (["--device", "tpu"], 2, "expected auto, cpu, cuda"),
    ],
)
def test_parts_are_chosen_before_anything_runs(script, arguments, code, said):
    done = CliRunner().invoke(script("measure").main, arguments)
    assert done.exit_code == code
    assert said in done.output


def test_the_estimate_is_what_the_last_run_took(script, tmp_path):
    measure = script("measure")
    jobs = [job for job in measure.cpu_jobs(quick=False) if job.part in ("peers", "infer")]
    assert measure.guesses(jobs, tmp_path, False)["infer.json"] == 10
    measure._remember(tmp_path / measure.RUN, {"infer.json": 33.0})
    measure._remember(tmp_path / measure.RUN, {"peers.json": 44.0})
    assert measure.guesses(jobs, tmp_path, False) == {"infer.json": 33.0, "peers.json": 44.0}


def contestant(beside, name, maker, precision, samples, **facts):
    one = beside.Contestant(name, maker, precision, lambda: None, lambda: None)
    one.samples, one.facts = samples, {"flips": 0, **facts}
    return one


def test_a_ratio_is_over_the_best_right_peer_of_the_precision(script):
    beside = script("beside")
    rows = beside.summary([
        contestant(beside, "lenetgpu int8 graph", "lenetgpu", "int8", [1.0, 3.0, 2.0]),
        contestant(beside, "torch fp16", "torch", "fp16", [8.0, 9.0, 7.0]),
        contestant(beside, "jax fp16", "jax", "fp16", [16.0, 18.0, 14.0]),
        contestant(beside, "torch fp16 wrong", "torch", "fp16", [1.0, 1.0, 1.0], flips=21),
        contestant(beside, "torch fp32", "torch", "fp32", [4.0, 4.0, 4.0]),
    ])  # fmt: skip
    ours = next(row for row in rows if row["maker"] == "lenetgpu")
    assert ours["median_ms"] == 2.0
    assert (ours["peer"], ours["times_faster"]) == ("torch fp16", 4.0)
    assert "peer" not in next(row for row in rows if row["name"] == "torch fp32")


def test_the_scaling_tables_first_column_is_the_headline(script):
    beside = script("beside")
    rows = beside.summary(
        [contestant(beside, "lenetgpu fp16 graph", "lenetgpu", "fp16", [2.0, 1.0, 3.0])]
    )
    larger = [contestant(beside, "fp16", "lenetgpu", "", [30.0, 10.0, 20.0], images=100_000)]
    found = {row["images"]: row["ns_per_image"] for row in beside.scaling(rows, larger, 10_000)}
    assert found == {10_000: 200.0, 100_000: 200.0}


def test_who_was_not_measured_is_named_once(script):
    beside = script("beside")
    names = [e["name"] for e in beside.missing("cuda", ["tinygrad"], {"TensorRT": "none there"})]
    assert sorted(names) == ["ONNX Runtime on the GPU", "TensorRT", "cuDNN called by hand"]


def test_planar_weights_are_the_same_network(script, shipped_weights, rng):
    beside = script("beside")
    images = rng.integers(0, 256, (3, 28, 28, 1), dtype=np.uint8)
    outputs = reference_stages(images, shipped_weights)
    planar = beside.planar(shipped_weights)
    features = outputs["pool2"].transpose(0, 3, 1, 2).reshape(3, -1)
    hidden = np.maximum(features @ planar["fc1"].astype(np.float64), 0)
    np.testing.assert_allclose(hidden @ planar["fc2"], outputs["fc2"], rtol=1e-9, atol=1e-9)
    window = images[0, 3:8, 7:12, 0] / 255
    direct = (planar["conv1"][:, 0] * window).sum((1, 2))
    np.testing.assert_allclose(direct, outputs["conv1"][0, 3, 7], rtol=1e-6, atol=1e-6)


def test_the_onnx_model_is_the_same_network(script, shipped_weights, rng):
    pytest.importorskip("onnx", reason="the extra `peers` brings it")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `peers` brings it")
    model = script("beside").onnx_model(shipped_weights)
    images = rng.integers(0, 256, (50, 28, 28, 1), dtype=np.uint8)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    x = (images.transpose(0, 3, 1, 2) / np.float32(255)).astype(np.float32)
    _, labels = reference_scores(images, shipped_weights)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], labels)


def test_a_cpus_plans_stand_once_each_beside_their_peers(script, tmp_path):
    out = tmp_path / "peers.json"
    done = CliRunner().invoke(
        script("cpu_peers").main, ["--quick", "--rounds", "2", "--images", "30", "--json", out]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(out.read_text())
    plans = [row["plans"] for row in document["rows"] if row["maker"] == "lenetgpu"]
    assert sorted(map(sorted, plans)) == [
        ["cublas", "unrolled"],
        ["fft"],
        ["fp32"],
        ["serial"],
        ["tiled"],
    ]
    assert all(len(row["samples_ms"]) == 2 for row in document["rows"])
    assert all(row["flips"] == 0 for row in document["rows"])
    measured = {row["maker"] for row in document["rows"]}
    absent = {entry["name"] for entry in document["not_measured"]}
    assert ("torch" in measured) != ("PyTorch" in absent)
    assert ("onnxruntime" in measured) != ("ONNX Runtime" in absent)


def test_a_cpus_figures_are_of_seven_samples_at_least(script):
    done = CliRunner().invoke(script("cpu_peers").main, ["--rounds", "6", "--images", "5"])
    assert done.exit_code == 2
    assert "expected at least 7, found 6" in done.output


@pytest.mark.parametrize(("flips", "judged", "right"), [(20, 10_000, True), (21, 10_000, False),
                                                        (0, 100, True), (1, 100, False),
                                                        (20, 100, False)])  # fmt: skip
def test_flips_are_allowed_by_their_share(script, flips, judged, right):
    one = contestant(script("beside"), "x", "torch", "fp32", [1.0], judged=judged)
    one.facts["flips"] = flips
    assert one.right == right


def test_a_suite_is_not_watched_for_longer_than_it_is_timed(script):
    """Two seconds for each of some hundreds of candidates would be most of an hour."""
    jobs = [job for job in script("measure").gpu_jobs(quick=False) if job.part == "conv"]
    assert jobs
    for job in jobs:
        assert float(job.command[job.command.index("--watch") + 1]) <= 0.2


def test_kernels_of_every_row_of_the_course(script):
    """Rows of passes, of stages merged and of plans by their transfers and streams too."""
    measured = script("measured")
    listed = [(figure.stage, figure.variant) for figure in course.FIGURES]
    for rows in (course.UNTIMED, course.LINEAR, course.MOVES, course.BEYOND, course.AFTER):
        listed += [(stage, variant) for _, _, stage, variant in rows]

    def sources(*only):
        rows = [{"stage": s, "variant": v, "status": "right"} for s, v in only or listed]
        device = {"kind": "cuda", "name": "NVIDIA H200"}
        return set(measured.kernels_of({"command": "compare", "device": device, "rows": rows}))

    stages = "lenetgpu/stages/"
    assert f"{stages}conv/course/image.cu" in sources()
    assert sources(("pool1", "mean")) == {f"{stages}pool/looped.cu"}
    merged = sources(("pool2+fc1", course.MERGED))
    assert merged == {f"{stages}pool/looped.cu", f"{stages}fc/tiled.cu"}
    assert (
        sources(("all", course.HOST))
        == sources(("all", course.TOTAL))
        > {f"{stages}conv/course/image.cu"}
    )
