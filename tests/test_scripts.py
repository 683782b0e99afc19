"""Scripts that take and show measurements: measure.py, peers.py, measured.py, tables.py."""

import json
import sys

import numpy as np
import pytest
from conftest import ROOT

from lenetgpu.gpu.nvrtc import source_hash

LEARNING = ("train", "make_digits")  # need extras
SCRIPTS = [path.stem for path in (ROOT / "scripts").glob("*.py") if path.stem not in LEARNING]
DOCUMENT = {
    "command": "infer",
    "date": "2026-11-22",
    "device": {"kind": "cpu", "name": "X", "cores": 2},
    "data": "/somewhere/else/t10k",
    "plan": [{"stages": ["conv1"], "variant": "tiled.blocked"}],
    "stages": [],
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.delenv("LENETGPU_MNIST", raising=False)
    monkeypatch.delenv("LENETGPU_COURSE", raising=False)


@pytest.fixture
def measure(script):
    return script("measure")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_imports(script, name):
    script(name)


def runs(measure, monkeypatch, codes):
    """Replace the jobs by these lines of Python, which find their target in sys.argv."""
    monkeypatch.setattr(
        measure,
        "command_of",
        lambda job, paths: [sys.executable, "-c", codes[job.target], str(paths["json"])],
    )
    return [measure.Job("plans", name, "", 1, text="infer.txt") for name in codes]


def test_failed_job_is_reported_and_others_continue(measure, monkeypatch, tmp_path):
    writes = f"import json, sys; json.dump({DOCUMENT}, open(sys.argv[1], 'w')); print('said')"
    codes = {
        "a.json": "import sys; print('no such plan'); sys.exit(1)",
        "b.json": "pass",
        "c.json": writes,
    }
    (tmp_path / "b.json").write_text("before")
    failed = measure.run(runs(measure, monkeypatch, codes), tmp_path, False, lambda line: None)
    assert [line.partition(":")[0] for line in failed] == ["a.json", "b.json"]
    assert "exit code 1; no such plan" in failed[0] and "expected its JSON" in failed[1]
    assert (tmp_path / "b.json").read_text() == "before"
    assert (tmp_path / "infer.txt").read_text() == "said\n"
    found = json.loads((tmp_path / "c.json").read_text())
    tiled = "lenetgpu/stages/conv/tiled.py"
    assert found["data"] == "t10k" and found["kernels"][tiled] == source_hash(ROOT / tiled)


def test_measured_files_have_jobs_and_data_is_required(measure):
    for folder, device in (("nvidia-h200", "cuda"), ("cpu-2-cores", "cpu")):
        made = {job.target for job in measure.jobs_of(device, False)}
        place = ROOT / "docs" / "measured" / folder
        there = {path.relative_to(place).as_posix() for path in place.rglob("*.json")}
        assert there - made <= {"sanitize.json", "streams.json", "instrument.json",
                                "instrument-loaded.json", "end_to_end.json", "one.json",
                                "cold.json",
                                "again/pascal-multi-best.json", "again/256x56-3x3.json",
                                }  # fmt: skip
    job = next(job for job in measure.jobs_of("cpu", True) if job.part == "peers")
    with pytest.raises(measure.MeasureError, match="LENETGPU_MNIST: expected"):
        measure.command_of(job, measure.data() | {"json": "x"})


def candidate(peers, name, maker, ms=1.0, precision="fp16", answer=(0, 1, 2, 3)):
    made = peers.Candidate(name, maker, precision, "pinned", lambda: np.array(answer))
    made.calls = made.samples = [ms] * 3
    return made


def test_ratios_use_best_peer_and_plain_copy(script):
    peers = script("peers")
    made = [
        candidate(peers, "copy", peers.BUS, 2.0, "uint8"),
        candidate(peers, "ours", peers.OURS, 3.0, "int8"),
        candidate(peers, "slow", "torch", 9.0),
        candidate(peers, "quick", "torch", 6.0),
        candidate(peers, "other", "torch", 1.0, "fp32"),
    ]
    (ours,) = (row for row in peers.summary(made) if row["name"] == "ours")
    assert (ours["peer"], ours["times_faster"], ours["over_copy"]) == ("quick", 2, 1.5)


def test_queued_calls_are_over_the_kernels_and_jobs_over_one_process(script):
    peers = script("peers")
    made = [
        candidate(peers, name, peers.OURS, ms)
        for name, ms in (("queued", 5), ("one", 8), ("two", 4))
    ]
    made[0].where, made[1].where, made[2].where = "queued", "classify", "classify"
    made[1].facts, made[2].facts = ({"images": 9, "workers": more} for more in ("", "--workers 2"))
    made[2].found = {"wall_ms": [1.0, 2.0, 6.0]}
    made.append(candidate(peers, "kernels", peers.KERNELS, 4.0))
    made[3].where = peers.KERNELS
    queued, two, one, _ = peers.summary(made)
    assert (queued["over_kernels"], queued["beyond_us"]) == (1.25, 1000)
    assert (two["times_alone"], two["wall_ms"]) == (2, 2) and "times_alone" not in one


def test_samples_are_medians_of_calls_and_processes_are_not_repeated(script, monkeypatch):
    peers, ran = script("peers"), []
    monkeypatch.setattr(peers, "cpu_ms", lambda call, times=1: [call() for _ in range(times)] and 6)
    call = candidate(peers, "call", peers.OURS)
    call.calls, call.samples = [], []
    process = peers.Candidate("p", peers.OURS, "fp32", "classify", lambda: ran.append(0) or 7.0)
    peers.measure([call, process], 5)
    assert call.samples == [6] * 5 and len(call.calls) == 15
    assert process.samples == process.calls == [7.0] * 3 and len(ran) == 3


def test_process_reports_its_pass_and_the_first_copy_that_differs(script, monkeypatch, tmp_path):
    peers = script("peers")
    monkeypatch.setattr(peers.scale, "run", lambda words, workers, device: {
        "timing_ms": {"end_to_end": {"median": 3.0}}} if "infer" in words else {
        "this_run": {"seconds": 0.5, "images_per_second": 12.0}})  # fmt: skip
    infer = peers.process("infer", "", ["infer"], tmp_path / "labels.npy", 2, images=2)
    assert infer.run() > 0 and infer.found == {"pass_ms": [3.0]}
    job = peers.process("classify", " --workers 2", ["classify"], tmp_path / "out", 2, images=6)
    assert job.run() == 500 and job.found["images_per_second"] == [12.0]
    monkeypatch.setattr(peers.shutil, "rmtree", lambda *path, **how: None)
    (tmp_path / "out").mkdir()
    for number, labels in enumerate(([1, 2, 1], [2, 1, 3])):
        np.save(tmp_path / "out" / f"part-{number}.npy", labels)
    assert list(job.labels()) == [1, 3] and not job.found


def test_candidate_with_wrong_labels_is_not_timed(script, capsys):
    peers = script("peers")
    right = candidate(peers, "right", "torch")
    wrong = candidate(peers, "wrong", "torch", answer=(1,) * 4)
    assert peers.check([right, wrong], np.arange(4), np.arange(4)) == [right]
    assert right.facts == {"flips": 0, "judged": 4, "correct": 4}
    assert capsys.readouterr().err == "wrong: WRONG, 3 of 4 labels differ; not timed\n"


def test_tables_name_kernels_changed_since_measured(script):
    measured, source = script("measured"), "lenetgpu/stages/fused/wgmma/int8_features.cu"
    document = measured.load("nvidia-h200", "plans", "int8.json")
    now = measured.kernels_of(document)
    same = measured.kernels_line((document | {"kernels": now},))
    assert same == "kernels as they are in the sources"
    old = measured.kernels_line((document | {"kernels": now | {source: "0" * 64}},))
    assert old == "since then changed: fused/wgmma/int8_features.cu"
    assert measured.kernels_line((document | {"kernels": {}},)) == "kernels not recorded"


def test_only_text_between_markers_is_replaced(script):
    tables = script("tables")
    text = "a\n<!-- begin:x -->\nold\n<!-- end:x -->\nb"
    assert tables.filled("p", text, "x", "new") == text.replace("old", "new")
    for wrong in ("a", text + text):
        with pytest.raises(Exception, match="once each"):
            tables.filled("p", wrong, "x", "new")
