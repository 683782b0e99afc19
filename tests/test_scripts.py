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
    made = peers.Candidate(name, maker, precision, "pinned", lambda: None, lambda: np.array(answer))
    made.samples = [ms] * 3
    return made


def test_ratios_use_best_peer_and_plain_copy(script):
    peers = script("peers")
    made = [
        candidate(peers, "copy", peers.BUS, 2.0),
        candidate(peers, "ours", peers.OURS, 3.0, "int8"),
        candidate(peers, "slow", "torch", 9.0),
        candidate(peers, "quick", "torch", 6.0),
        candidate(peers, "other", "torch", 1.0, "fp32"),
    ]
    (ours,) = (row for row in peers.summary(made) if row["name"] == "ours")
    assert (ours["peer"], ours["times_faster"], ours["over_copy"]) == ("quick", 2, 1.5)


def test_candidate_with_wrong_labels_is_not_timed(script):
    peers, said = script("peers"), []
    right = candidate(peers, "right", "torch")
    wrong = candidate(peers, "wrong", "torch", answer=(1,) * 4)
    assert peers.check([right, wrong], np.arange(4), np.arange(4), said.append) == [right]
    assert right.facts == {"flips": 0, "judged": 4, "correct": 4}
    assert said == ["wrong: WRONG, 3 of 4 labels differ; not timed"]


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
