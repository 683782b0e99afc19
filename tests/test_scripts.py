"""The scripts that take and show figures: measure.py, peers.py, measured.py, tables.py."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
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
def test_every_script_finds_what_it_imports(script, name):
    script(name)


def runs(measure, monkeypatch, codes):
    """Jobs that run these lines of Python, which find their target in sys.argv."""
    monkeypatch.setattr(
        measure,
        "command_of",
        lambda job, places: [sys.executable, "-c", codes[job.target], str(places["json"])],
    )
    return [measure.Job("plans", name, "", 1, text="infer.txt") for name in codes]


def test_what_fails_is_said_and_the_rest_goes_on(measure, monkeypatch, tmp_path):
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


def test_every_measured_file_has_a_job_and_data_is_asked_for(measure):
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--device", "cpu", "--only", "conv"], "expected some of peers"),
     (["--device", "tpu"], "expected auto, cpu, cuda")],
)  # fmt: skip
def test_parts_are_chosen_before_anything_runs(measure, arguments, said):
    done = CliRunner().invoke(measure.main, arguments)
    assert done.exit_code == 2 and said in done.output


def contestant(peers, name, maker, samples, answer=(0, 1, 2, 3), precision="fp16"):
    made = peers.Contestant(
        name, maker, precision, "pinned", lambda: None, lambda: np.array(answer)
    )
    made.samples = list(samples)
    return made


def test_ratios_are_over_the_best_peer_and_the_bare_copy(script):
    peers = script("peers")
    rows = {
        row["name"]: row
        for row in peers.summary(
            [
                contestant(peers, "copy", peers.BUS, [1.0, 2.0, 3.0]),
                contestant(peers, "ours", peers.OURS, [3.0, 3.0, 3.0], precision="int8"),
                contestant(peers, "slow", "torch", [9.0] * 3),
                contestant(peers, "quick", "torch", [6.0] * 3),
                contestant(peers, "other", "torch", [1.0] * 3, precision="fp32"),
            ]
        )
    }
    assert rows["ours"]["peer"] == "quick" and rows["ours"]["times_faster"] == 2
    assert rows["ours"]["over_copy"] == 1.5


def test_a_contestant_with_other_labels_is_not_timed(script):
    peers, said = script("peers"), []
    right, wrong = (
        contestant(peers, "right", "torch", []),
        contestant(peers, "wrong", "torch", [], (1,) * 4),
    )
    assert peers.check([right, wrong], np.arange(4), np.arange(4), said.append) == [right]
    assert right.facts == {"flips": 0, "judged": 4, "correct": 4}
    assert said == ["wrong: WRONG, 3 of 4 labels differ; not timed"]


def test_planar_weights_are_the_same_network(script, shipped_weights):
    planar = script("peers").planar(shipped_weights)
    assert planar["conv2"].shape == (64, 32, 5, 5)
    np.testing.assert_array_equal(planar["conv1"][3, 0], shipped_weights["conv1"][:, :, 0, 3])
    features = np.arange(1024).reshape(4, 4, 64)
    channels_first = features.transpose(2, 0, 1).ravel()
    np.testing.assert_array_equal(planar["fc1"], shipped_weights["fc1"][channels_first])


@pytest.mark.parametrize(
    ("commit", "said"),
    [(None, "commit not recorded"), ("a" * 40 + "+", "commit " + "a" * 10 + "+")],
)
def test_a_table_says_the_commit_and_whether_it_was_changed(script, commit, said):
    document = DOCUMENT | {"commit": commit, "driver": "580.1"}
    assert script("measured").where(document) == f"X, 2 cores, 2026-11-22, {said}, driver 580.1"


def test_a_document_names_the_kernels_that_it_ran_and_no_others(script):
    measured = script("measured")

    def kernels(*parts):
        return set(measured.kernels_of(measured.load("nvidia-h200", *parts)))

    fused, conv = "lenetgpu/stages/fused/wgmma/", "lenetgpu/stages/conv/"
    assert kernels("plans", "int8.json") == {
        f"{fused}int8_features.cu", f"{fused}fp16_classifier.cu",
    }  # fmt: skip
    course = kernels("course.json")
    assert {f"{conv}direct.cu", "lenetgpu/measure/roofline.cu"} <= course
    assert not any(name.startswith(fused) for name in course)
    overfeat = kernels("conv", "overfeat.json")
    assert f"{conv}texture.cu" in overfeat and f"{conv}prefetch/single.cu" not in overfeat
    streams = kernels("streams.json")
    assert f"{fused}int8_features.cu" in streams and any("stages/pool" in name for name in streams)


def test_a_table_says_which_kernels_changed_since_its_figures(script):
    measured, source = script("measured"), "lenetgpu/stages/fused/wgmma/int8_features.cu"
    document = measured.load("nvidia-h200", "plans", "int8.json")
    now = measured.kernels_of(document)
    assert (
        measured.kernels_line((document | {"kernels": now},))
        == "kernels as they are in the sources"
    )
    old = measured.kernels_line((document | {"kernels": now | {source: "0" * 64}},))
    assert old == "since then changed: fused/wgmma/int8_features.cu"
    assert measured.kernels_line((document | {"kernels": {}},)) == "kernels not recorded"


def test_a_part_is_replaced_between_its_markers_and_nowhere_else(script):
    tables = script("tables")
    text = "a\n<!-- begin:x -->\nold\n<!-- end:x -->\nb"
    assert tables.filled("p", text, "x", "new") == text.replace("old", "new")
    for wrong in ("a", text + text):
        with pytest.raises(Exception, match="once each"):
            tables.filled("p", wrong, "x", "new")


def test_a_stale_page_is_noticed_and_a_new_variant_makes_none_stale(script, monkeypatch):
    tables = script("tables")
    page = (ROOT / "docs" / "matrix.md").read_text()
    assert tables.updated("docs/matrix.md", page, named_only=True) == page
    assert tables.updated("docs/matrix.md", page.replace("| conv1 |", "| conv9 |")) == page
    ladder = (ROOT / "docs" / "ladder.md").read_text()
    more = [*tables.variants("conv", "cuda"), SimpleNamespace(full_name="mine.new")]
    monkeypatch.setattr(tables, "variants", lambda *kinds: more if kinds[1:] == ("cuda",) else [])
    assert "mine.new" not in tables.updated("docs/ladder.md", ladder, named_only=True)
